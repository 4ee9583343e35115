// SPDX-License-Identifier: Apache-2.0
#include "audit/survey.h"

#include <algorithm>

#include "base/float_environment.h"
#include "base/try.h"

namespace presum::audit {

namespace {

// Local sums of two neighbors, then the order for half as many ranks.
Order of_pairs(const Order& order) {
  Order out{2 * order.root, {}};
  std::uint32_t last = order.root;
  for (const Addition& step : order.additions) last = std::max({last, step.into, step.from});
  for (std::uint32_t i = 0; i <= last; ++i) out.additions.push_back({2 * i, 2 * i + 1});
  for (const Addition& step : order.additions) {
    out.additions.push_back({2 * step.into, 2 * step.from});
  }
  return out;
}

// How values are added: in one order, or in one order per piece of a ring.
struct Summation {
  std::string name;
  Scheme scheme;
  std::vector<Order> pieces;
};

std::vector<Order> ring_pieces(std::uint32_t workers) {
  std::vector<Order> out;
  for (std::uint32_t start = 0; start < workers; ++start) {
    out.push_back(ring(workers, (start + 1) % workers));
  }
  return out;
}

std::vector<Order> split_pieces(std::uint32_t workers) {
  std::vector<Order> out;
  for (const Order& order : ring_pieces(workers / 2)) out.push_back(of_pairs(order));
  return out;
}

std::string split_name(std::uint32_t workers) { return std::to_string(workers / 2) + " x 2"; }

bool can_split(std::uint32_t workers) { return workers % 2 == 0 && workers > 2; }

std::vector<Summation> summations_of(const SurveyOptions& o) {
  const Scheme own{o.dtype, o.dtype};
  const auto turn = arrival(o.workers, o.seed);
  std::vector<Summation> summations = {{"sequential", own, {ring(o.workers, 0)}},
                                       {"ring", own, ring_pieces(o.workers)},
                                       {"tree", own, {tree(o.workers)}},
                                       {"halving", own, {halving(o.workers)}},
                                       {"arrival", own, {in_turn(turn)}}};
  if (can_split(o.workers)) {
    summations.push_back({split_name(o.workers), own, split_pieces(o.workers)});
  }
  const auto add_ring = [&](const char* name, Scheme scheme) {
    summations.push_back({name, scheme, ring_pieces(o.workers)});
  };
  if (o.dtype == Dtype::kF32) {
    add_ring("bf16 cast", {Dtype::kBF16, Dtype::kF32});
    add_ring("bf16 ring", {Dtype::kBF16, Dtype::kBF16});
    add_ring("fp16 ring", {Dtype::kF16, Dtype::kF16});
  } else if (o.dtype != Dtype::kF64) {
    add_ring("fp32 ring", {o.dtype, Dtype::kF32});
  }
  return summations;
}

template <class Real>
class SurveyOf final : public Survey {
 public:
  explicit SurveyOf(const SurveyOptions& options)
      : options_(options),
        summations_(summations_of(options)),
        rows_(options.workers),
        cast_(options.workers),
        adder_(options.workers),
        exact_(options.workers, options.dtype, 1),
        sums_(summations_.size(), std::vector<Real>(kBlock)),
        other_(kBlock),
        changed_(kBlock) {
    for (const Summation& s : summations_) result_.rows.push_back({s.name, {}});
    result_.rows.push_back({"exact", {}});
    result_.pairs = {{"ring | arrival"}, {"ring | tree"}};
    if (can_split(options.workers)) {
      result_.pairs.push_back(
          {std::to_string(options.workers) + " x 1 | " + split_name(options.workers)});
    }
    result_.pairs.push_back({"any of " + std::to_string(kSurveyOrders) + " orders"});
    result_.pairs.push_back({"exact, any of " + std::to_string(kSurveyOrders) + " orders"});
  }

  void add(Leaves leaves, std::size_t count) override {
    const base::DefaultFloatEnvironment environment;
    for (std::size_t first = 0; first < count; first += kBlock) {
      read_rows(leaves, options_.dtype, first, std::min(kBlock, count - first), rows_);
      add_block();
    }
  }

  SurveyResult result() const override { return result_; }

 private:
  void add_block() {
    const Truth<Real>& truth = exact_.truth(rows_);
    for (std::size_t w = 0; w < summations_.size(); ++w) {
      sum(summations_[w], sums_[w]);
      measure(w, sums_[w], truth);
    }
    measure(summations_.size(), truth.rounded, truth);
    compare_pairs(truth);
    result_.elements += rows_.count;
  }

  void measure(std::size_t row, std::span<const Real> sum, const Truth<Real>& truth) {
    result_.rows[row].measures.add(sum.first(rows_.count), truth, options_.dtype, 1);
  }

  void sum(const Summation& s, std::span<Real> out) {
    const Rows<Real>& rows = s.scheme.wire == options_.dtype ? rows_ : cast(s.scheme.wire);
    // Pieces are cut like those of a ring: equally long, except a shorter last one.
    const std::uint64_t piece =
        std::max<std::uint64_t>(1, (options_.elements + s.pieces.size() - 1) / s.pieces.size());
    for (std::size_t at = 0; at < rows.count;) {
      const std::uint64_t position = result_.elements + at;
      const std::uint64_t number = std::min(position / piece, s.pieces.size() - 1);
      const bool last = number + 1 == s.pieces.size();
      const std::size_t end =
          last ? rows.count : std::min(rows.count, at + ((number + 1) * piece - position));
      adder_.add(rows, s.pieces[number], s.scheme, other_);
      std::ranges::copy(std::span(other_).subspan(at, end - at), out.subspan(at).begin());
      at = end;
    }
  }

  const Rows<Real>& cast(Dtype wire) {
    cast_ = rows_;
    if constexpr (std::is_same_v<Real, float>) {
      for (std::size_t worker = 0; worker < rows_.workers(); ++worker) {
        round_to(wire, cast_[worker]);
      }
    }
    return cast_;
  }

  std::uint64_t differing_rows(std::size_t a, std::size_t b) const {
    return differing(std::span<const Real>(sums_[a]).first(rows_.count),
                     std::span<const Real>(sums_[b]).first(rows_.count));
  }

  void compare_pairs(const Truth<Real>& truth) {
    constexpr std::size_t kRing = 1;
    constexpr std::size_t kTree = 2;
    constexpr std::size_t kArrival = 4;
    constexpr std::size_t kSplit = 5;
    std::size_t pair = 0;
    result_.pairs[pair++].differing += differing_rows(kRing, kArrival);
    result_.pairs[pair++].differing += differing_rows(kRing, kTree);
    if (can_split(options_.workers)) {
      result_.pairs[pair++].differing += differing_rows(kRing, kSplit);
    }
    result_.pairs[pair++].differing += changes(sums_[kArrival], [&](const auto& turn) {
      adder_.add(rows_, in_turn(turn), {options_.dtype, options_.dtype}, other_);
    });
    result_.pairs[pair].differing +=
        changes(truth.rounded, [&](const auto& turn) { exact_.rounded(rows_, turn, other_); });
  }

  // Number of elements of `base` that any of the orders changes.
  template <class Add>
  std::uint64_t changes(std::span<const Real> base, Add&& add_in) {
    std::ranges::fill(changed_, false);
    for (std::uint32_t order = 1; order < kSurveyOrders; ++order) {
      add_in(arrival(options_.workers, options_.seed + order));
      for (std::size_t i = 0; i < rows_.count; ++i) {
        changed_[i] = changed_[i] | !same(base[i], other_[i]);
      }
    }
    return static_cast<std::uint64_t>(std::count(
        changed_.begin(), changed_.begin() + static_cast<std::ptrdiff_t>(rows_.count), 1));
  }

  SurveyOptions options_;
  std::vector<Summation> summations_;
  Rows<Real> rows_;
  Rows<Real> cast_;
  Adder<Real> adder_;
  Exact<Real> exact_;
  std::vector<std::vector<Real>> sums_;
  std::vector<Real> other_;
  std::vector<std::uint8_t> changed_;
  SurveyResult result_;
};

}  // namespace

Result<std::unique_ptr<Survey>> Survey::create(const SurveyOptions& options) {
  PRESUM_TRY(check_arguments(options.workers, options.dtype, 1));
  using Made = std::unique_ptr<Survey>;
  if (options.dtype == Dtype::kF64) return Made(new SurveyOf<double>(options));
  return Made(new SurveyOf<float>(options));
}

}  // namespace presum::audit
