// SPDX-License-Identifier: Apache-2.0
#include "audit/inference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace presum::audit {
namespace {

constexpr std::uint64_t kRuns = 256;
constexpr std::uint64_t kAllOf = 65'536;     // elements
constexpr std::uint64_t kMostBehind = 1024;  // elements
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

// Dividing by a power of two and multiplying by its inverse are one.
bool is_power_of_two(std::uint32_t divisor) { return std::has_single_bit(divisor); }

std::vector<Division> divisions_after(std::uint32_t divisor) {
  if (divisor == 1) return {Division::kNone};
  if (is_power_of_two(divisor)) return {Division::kAfterDivide};
  return {Division::kAfterDivide, Division::kAfterMultiply};
}

// The exact sum is rounded once, in whatever way it was added.
bool is_wide(Scheme scheme) {
  return scheme.accumulation == Dtype::kF32 || scheme.accumulation == Dtype::kF64;
}

Order order_of(SumOrder kind, std::uint32_t workers, std::uint32_t start) {
  switch (kind) {
    case SumOrder::kTree:
      return tree(workers);
    case SumOrder::kHalving:
      return halving(workers);
    case SumOrder::kRingDown:
      return ring_down(workers, start);
    default:
      return ring(workers, start);
  }
}

template <class Real>
Real inverse(std::uint32_t divisor) {
  return static_cast<Real>(1.0 / divisor);
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
      adder_(workers),
      prepared_(workers),
      sum_(kBlock),
      finished_(kBlock),
      bounds_(workers, dtype) {
  ways_.push_back({Division::kNone, divisions_after(divisor)});
  if (divisor > 1) ways_.push_back({Division::kBeforeMultiply, {Division::kBeforeMultiply}});
  if (!is_power_of_two(divisor)) {
    ways_.push_back({Division::kBeforeDivide, {Division::kBeforeDivide}});
  }
  plan();
}

// In the order of preference among hypotheses that reproduce as much.
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
      for (const Way& way : ways_) std::ranges::for_each(way.after, test);
    }
  }
}

template <class Real>
void Inference<Real>::add(std::uint64_t first, const Rows<Real>& rows,
                          std::span<const Real> result) {
  skip(first - position_);
  position_ = first + result.size();
  check_bounds(rows, result);
  given_by_all_.assign(result.size(), 1);
  for (const Scheme scheme : schemes_) {
    for (const Way& way : ways_) {
      prepare(rows, scheme.wire, way.before);
      try_way(scheme, way, result);
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
void Inference<Real>::skip(std::uint64_t elements) {
  for (Trial& trial : trials_) trial.track.skip(elements);
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

// What the workers add: their values in the wire's format, divided where that comes first.
template <class Real>
void Inference<Real>::prepare(const Rows<Real>& rows, Dtype wire, Division before) {
  prepared_.count = rows.count;
  std::ranges::copy(rows.values, prepared_.values.begin());
  with_rounding<Real>(wire, [&](auto rounding) {
    const Real factor = inverse<Real>(divisor_);
    const Real divisor = static_cast<Real>(divisor_);
    for (std::size_t worker = 0; worker < workers_; ++worker) {
      for (Real& x : prepared_[worker]) {
        x = rounding(x);
        if (before == Division::kBeforeMultiply) x = rounding(x * factor);
        if (before == Division::kBeforeDivide) x = rounding(x / divisor);
      }
    }
  });
}

template <class Real>
void Inference<Real>::try_way(Scheme scheme, const Way& way, std::span<const Real> result) {
  using enum SumOrder;
  for (const SumOrder kind : {kExact, kSequential, kTree, kHalving}) {
    try_order(scheme, way, kind, result);
  }
  try_ring(scheme, way, kRing, result);
  try_ring(scheme, way, kRingDown, result);
}

template <class Real>
auto Inference<Real>::wanted(Scheme scheme, const Way& way, SumOrder kind) -> std::vector<Trial*> {
  std::vector<Trial*> found;
  for (Trial& trial : trials_) {
    const Hypothesis& h = trial.hypothesis;
    const bool of_way = std::ranges::find(way.after, h.division) != way.after.end() ||
                        (way.before == Division::kNone && h.division == Division::kOnce);
    if (trial.active && of_way && h.order == kind && h.scheme.wire == scheme.wire &&
        h.scheme.accumulation == scheme.accumulation) {
      found.push_back(&trial);
    }
  }
  return found;
}

template <class Real>
void Inference<Real>::sum(Scheme scheme, SumOrder kind, std::uint32_t start) {
  adder_.add(prepared_, order_of(kind, workers_, start), scheme.accumulation, sum_);
  if (scheme.wire != scheme.accumulation) {
    round_to(scheme.wire, std::span(sum_).first(prepared_.count));
  }
}

template <class Real>
std::span<const Real> Inference<Real>::finished(Division division, Dtype wire) {
  const auto sum = std::span(sum_).first(prepared_.count);
  const bool multiply = division == Division::kAfterMultiply;
  if (!multiply && division != Division::kAfterDivide) return sum;
  const Real factor = inverse<Real>(divisor_);
  const Real divisor = static_cast<Real>(divisor_);
  with_rounding<Real>(wire, [&](auto rounding) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      finished_[i] = rounding(multiply ? sum[i] * factor : sum[i] / divisor);
    }
  });
  return std::span(finished_).first(sum.size());
}

template <class Real>
void Inference<Real>::try_order(Scheme scheme, const Way& way, SumOrder kind,
                                std::span<const Real> result) {
  const auto trials = wanted(scheme, way, kind);
  for (Trial* trial : trials) {
    Hypothesis& h = trial->hypothesis;
    if (kind == SumOrder::kExact) {
      const bool once = h.division == Division::kOnce;
      Exact<Real>(workers_, scheme.wire, once ? divisor_ : 1).rounded(prepared_, sum_);
    } else if (trial == trials.front()) {
      sum(scheme, kind, 0);
    }
    h.examined += result.size();
    h.reproduced += count_same(finished(h.division, scheme.wire), result);
  }
}

template <class Real>
void Inference<Real>::try_ring(Scheme scheme, const Way& way, SumOrder kind,
                               std::span<const Real> result) {
  const auto trials = wanted(scheme, way, kind);
  if (trials.empty()) return;
  std::vector<std::vector<std::uint64_t>> masks(trials.size(),
                                                std::vector<std::uint64_t>(result.size()));
  for (std::uint32_t start = 0; start < workers_; ++start) {
    sum(scheme, kind, start);
    for (std::size_t t = 0; t < trials.size(); ++t) {
      const auto values = finished(trials[t]->hypothesis.division, scheme.wire);
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

// Workers in turn are tried to the end in each format, since they show which elements tell nothing.
template <class Real>
void Inference<Real>::drop_losers() {
  std::uint64_t best = 0;
  for (const Trial& trial : trials_) best = std::max(best, trial.hypothesis.reproduced);
  for (Trial& trial : trials_) {
    const Hypothesis& h = trial.hypothesis;
    trial.active =
        trial.active && (h.order == SumOrder::kSequential || h.reproduced + kMostBehind >= best);
  }
}

template <class Real>
void Inference<Real>::check_bounds(const Rows<Real>& rows, std::span<const Real> result) {
  std::size_t way = 0;
  bounds_.add(rows, divisor_, 1, result, way++);
  if (is_power_of_two(divisor_)) return;
  // The sum is rounded, and so are its quotient and the inverse.
  bounds_.add(rows, divisor_, 4, result, way++);
  for (const Division before : {Division::kBeforeMultiply, Division::kBeforeDivide}) {
    prepare(rows, dtype_, before);
    bounds_.add(prepared_, 1, 1, result, way++);
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
    if (h.order == best.order && h.division == best.division && h.scheme.wire == best.scheme.wire &&
        h.scheme.accumulation == best.scheme.accumulation) {
      out.pieces = trial.track.pieces();
    }
  }
  return out;
}

template class Inference<float>;
template class Inference<double>;

}  // namespace presum::audit
