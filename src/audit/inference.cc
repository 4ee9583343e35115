// SPDX-License-Identifier: Apache-2.0
#include "audit/inference.h"

#include <algorithm>
#include <bit>

namespace presum::audit {
namespace {

constexpr std::uint64_t kRuns = 256;
constexpr std::uint64_t kAllOf = 65'536;    // elements
constexpr std::uint64_t kBehindMax = 1024;  // elements
constexpr std::uint32_t kRingMax = 64;

bool is_ring(SumOrder order) { return order == SumOrder::kRing || order == SumOrder::kRingDown; }

std::vector<Scheme> schemes_of(Dtype dtype) {
  using enum Dtype;
  switch (dtype) {
    case kF64:
      return {{kF64, kF64}, {kF32, kF32}};
    case kF32:
      return {{kF32, kF32}, {kBF16, kF32}, {kF16, kF32}, {kBF16, kBF16}, {kF16, kF16}};
    case kBF16:
    case kF16:
      break;
  }
  return {{dtype, kF32}, {dtype, dtype}};
}

// Dividing by a power of two equals multiplying by its inverse.
std::vector<Division> divisions_after(std::uint32_t divisor) {
  if (divisor == 1) return {Division::kNone};
  if (std::has_single_bit(divisor)) return {Division::kAfterDivide};
  return {Division::kAfterDivide, Division::kAfterMultiply};
}

// Returns whether SumOrder::kExact is possible: an exact sum is rounded only once, regardless of
// its order.
bool is_wide(Scheme scheme) {
  return scheme.accumulation == Dtype::kF32 || scheme.accumulation == Dtype::kF64;
}

}  // namespace

Sample::Sample(std::uint64_t elements, std::size_t workers)
    : elements_(elements), run_(std::clamp<std::uint64_t>(2048 / workers, 64, 256)) {}

Sample::Run Sample::from(std::uint64_t position) const {
  if (elements_ <= kAllOf) return {std::min(position, elements_), elements_};
  for (std::uint64_t run = position / (elements_ / kRuns + 1); run < kRuns; ++run) {
    const std::uint64_t first = run * (elements_ / kRuns) + run * (elements_ % kRuns) / kRuns;
    if (first + run_ > position) return {first, first + run_};
  }
  return {elements_, elements_};
}

template <class Real>
Inference<Real>::Inference(std::uint32_t workers, Dtype dtype, std::uint32_t divisor)
    : workers_(workers),
      dtype_(dtype),
      divisor_(divisor),
      own_(workers),
      schemes_(schemes_of(dtype)),
      sum_(workers, divisor),
      bounds_(workers, dtype) {
  dividings_.push_back({Division::kNone, divisions_after(divisor)});
  if (divisor > 1) dividings_.push_back({Division::kBeforeMultiply, {Division::kBeforeMultiply}});
  if (!std::has_single_bit(divisor)) {
    dividings_.push_back({Division::kBeforeDivide, {Division::kBeforeDivide}});
  }
  plan();
}

// In the order of preference among hypotheses that reproduce equally many elements.
template <class Real>
void Inference<Real>::plan() {
  using enum SumOrder;
  for (const SumOrder kind : {kExact, kSequential, kTree, kHalving, kRing, kRingDown}) {
    if (is_ring(kind) && workers_ > kRingMax) continue;
    for (const Scheme scheme : schemes_) {
      if (kind == kExact && !is_wide(scheme)) continue;
      const auto test = [&](Division division) {
        trials_.push_back(
            {Hypothesis{scheme, division, kind}, true, RingTrack(is_ring(kind) ? workers_ : 1)});
      };
      if (kind == kExact && divisor_ > 1) test(Division::kOnce);
      for (const Dividing& dividing : dividings_) std::ranges::for_each(dividing.after, test);
    }
  }
}

template <class Real>
void Inference<Real>::add(std::uint64_t first, const Rows<Real>& rows,
                          std::span<const Real> result) {
  for (Trial& trial : trials_) trial.track.skip(first - position_);
  position_ = first + result.size();
  check_bounds(rows, result);
  given_by_all_.assign(result.size(), 1);
  for (const Scheme scheme : schemes_) {
    for (const Dividing& dividing : dividings_) {
      sum_.prepare(rows, scheme.wire, dividing.before);
      try_orders(scheme, dividing, result);
    }
  }
  for (std::uint32_t w = 0; w < workers_; ++w) {
    own_[w] += result.size() - differing(rows[w], result);
  }
  examined_ += result.size();
  telling_ += static_cast<std::uint64_t>(std::ranges::count(given_by_all_, 0));
  drop_losers();
}

template <class Real>
std::uint64_t Inference<Real>::count_same(std::span<const Real> values,
                                          std::span<const Real> result) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const bool given = same(values[i], result[i]);
    count += given;
    given_by_all_[i] &= static_cast<std::uint8_t>(given);
  }
  return count;
}

template <class Real>
void Inference<Real>::try_orders(Scheme scheme, const Dividing& dividing,
                                 std::span<const Real> result) {
  using enum SumOrder;
  for (const SumOrder kind : {kExact, kSequential, kTree, kHalving}) {
    try_order(scheme, dividing, kind, result);
  }
  try_ring(scheme, dividing, kRing, result);
  try_ring(scheme, dividing, kRingDown, result);
}

template <class Real>
auto Inference<Real>::active_trials(Scheme scheme, const Dividing& dividing, SumOrder kind)
    -> std::vector<Trial*> {
  std::vector<Trial*> found;
  for (Trial& trial : trials_) {
    const Hypothesis& h = trial.hypothesis;
    const bool of_dividing =
        std::ranges::find(dividing.after, h.division) != dividing.after.end() ||
        (dividing.before == Division::kNone && h.division == Division::kOnce);
    if (trial.active && of_dividing && h.order == kind && h.scheme == scheme) {
      found.push_back(&trial);
    }
  }
  return found;
}

template <class Real>
void Inference<Real>::try_order(Scheme scheme, const Dividing& dividing, SumOrder kind,
                                std::span<const Real> result) {
  const auto trials = active_trials(scheme, dividing, kind);
  for (Trial* trial : trials) {
    Hypothesis& h = trial->hypothesis;
    if (kind == SumOrder::kExact) {
      const bool once = h.division == Division::kOnce;
      sum_.add_exactly(scheme.wire, once ? divisor_ : 1);
    } else if (trial == trials.front()) {
      sum_.add(scheme, kind, 0);
    }
    h.examined += result.size();
    h.reproduced += count_same(sum_.divided(h.division, scheme.wire), result);
  }
}

template <class Real>
void Inference<Real>::try_ring(Scheme scheme, const Dividing& dividing, SumOrder kind,
                               std::span<const Real> result) {
  const auto trials = active_trials(scheme, dividing, kind);
  if (trials.empty()) return;
  std::vector<std::vector<std::uint64_t>> masks(trials.size(),
                                                std::vector<std::uint64_t>(result.size()));
  for (std::uint32_t start = 0; start < workers_; ++start) {
    sum_.add(scheme, kind, start);
    for (std::size_t t = 0; t < trials.size(); ++t) {
      const auto values = sum_.divided(trials[t]->hypothesis.division, scheme.wire);
      for (std::size_t i = 0; i < result.size(); ++i) {
        masks[t][i] |= static_cast<std::uint64_t>(same(values[i], result[i])) << start;
      }
    }
  }
  const std::uint64_t all = RingTrack::all_of(workers_);
  for (std::size_t t = 0; t < trials.size(); ++t) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      given_by_all_[i] &= static_cast<std::uint8_t>(masks[t][i] == all);
    }
    trials[t]->track.add(masks[t]);
    trials[t]->hypothesis.examined += result.size();
    trials[t]->hypothesis.reproduced = trials[t]->track.reproduced();
  }
}

// Never drops sequential order, in any format, because it shows which elements are not telling.
template <class Real>
void Inference<Real>::drop_losers() {
  std::uint64_t best = 0;
  for (const Trial& trial : trials_) best = std::max(best, trial.hypothesis.reproduced);
  for (Trial& trial : trials_) {
    const Hypothesis& h = trial.hypothesis;
    trial.active =
        trial.active && (h.order == SumOrder::kSequential || h.reproduced + kBehindMax >= best);
  }
}

template <class Real>
void Inference<Real>::check_bounds(const Rows<Real>& rows, std::span<const Real> result) {
  std::size_t division = 0;
  bounds_.add(rows, divisor_, 1, result, division++);
  if (std::has_single_bit(divisor_)) return;
  // The sum, its quotient and the inverse are rounded.
  bounds_.add(rows, divisor_, 4, result, division++);
  for (const Division before : {Division::kBeforeMultiply, Division::kBeforeDivide}) {
    sum_.prepare(rows, dtype_, before);
    bounds_.add(sum_.prepared(), 1, 1, result, division++);
  }
}

template <class Real>
Inferred Inference<Real>::inferred(std::uint64_t elements, const Excess& all) const {
  std::vector<Hypothesis> hypotheses;
  for (const Trial& trial : trials_) hypotheses.push_back(trial.hypothesis);
  const Excess sample = bounds_.excess();
  const Evidence evidence{.elements = elements,
                          .examined = examined_,
                          .telling = telling_,
                          .all = elements == examined_ ? sample : all,
                          .sample = sample,
                          .own = own_};
  Inferred out = conclude(std::move(hypotheses), evidence, workers_, dtype_);
  if (!is_ring(out.order)) return out;
  const Hypothesis& best = out.hypotheses.front();
  for (const Trial& trial : trials_) {
    const Hypothesis& h = trial.hypothesis;
    if (h.order == best.order && h.division == best.division && h.scheme == best.scheme) {
      out.pieces = trial.track.pieces();
    }
  }
  return out;
}

template class Inference<float>;
template class Inference<double>;

}  // namespace presum::audit
