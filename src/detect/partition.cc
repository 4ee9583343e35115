// SPDX-License-Identifier: Apache-2.0
#include "detect/partition.h"

#include <algorithm>

#include "base/hash.h"

namespace presum::detect {
namespace {

constexpr std::array kWeights = {0.03, 0.03, 0.04};
// Limit per step; the choice of losses varies from step to step.
constexpr std::size_t kLossesMax = 1024;
constexpr double kPartitionLeastEffect = 0.25;  // in standard deviations over assignments
// The ratio to the random assignments that matters, by Test: at most, at least, at most.
constexpr std::array kRatios = {0.5, 1.25, 0.8};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(splitmix64(seed)) {}
  std::size_t below(std::size_t n) {
    state_ += 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>((mix64(state_) >> 32) * n >> 32);
  }

 private:
  std::uint64_t state_;
};

void shuffle(std::vector<double>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

// The rank (position from 1) of the first value; ties are broken at random.
template <class Values>
std::size_t rank_of_first(const Values& values, Random& random) {
  std::size_t below = 0;
  std::size_t equal = 0;
  for (std::size_t k = 1; k < values.size(); ++k) {
    below += values[k] < values[0] ? 1 : 0;
    equal += values[k] == values[0] ? 1 : 0;
  }
  return 1 + below + random.below(equal + 1);
}

struct Snapshots {
  double mean = 0;
  double sd = 0;
};

template <class Values>
Snapshots snapshots_of_rest(const Values& values) {
  const double n = double(values.size() - 1);
  Snapshots m;
  for (std::size_t k = 1; k < values.size(); ++k) m.mean += values[k] / n;
  for (std::size_t k = 1; k < values.size(); ++k) {
    m.sd += (values[k] - m.mean) * (values[k] - m.mean) / n;
  }
  m.sd = std::sqrt(m.sd);
  return m;
}

}  // namespace

double closest(std::span<const double> losses, std::vector<double>& scratch) {
  constexpr std::size_t kFew = 8;  // up to this size, comparing all pairs is faster than sorting
  if (losses.size() < 2) return std::nan("");
  double least = std::abs(losses[1] - losses[0]);
  if (losses.size() <= kFew) {
    for (std::size_t a = 2; a < losses.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) least = std::min(least, std::abs(losses[a] - losses[b]));
    }
    return least;
  }
  scratch.assign(losses.begin(), losses.end());
  std::ranges::sort(scratch);
  for (std::size_t k = 1; k < scratch.size(); ++k) {
    least = std::min(least, scratch[k] - scratch[k - 1]);
  }
  return least;
}

std::array<double, Partition::kBets> partition_bets(std::size_t rank) {
  constexpr auto kN = double(Partition::kAssignments);
  const auto top = [&](std::size_t j) { return 0.2 + (rank <= j ? 0.8 * kN / double(j) : 0); };
  const double tilt = (2 * double(rank) - 1 - kN) / kN;
  return {top(1), top(4), top(16), 1 - 0.4 * tilt, 1 - 0.9 * tilt};
}

bool Partition::update(const std::vector<std::vector<double>>& losses, bool weigh_alike,
                       std::uint64_t step) {
  if (!gather(losses, step)) return false;
  Random random(step);
  Values means{};
  Values gaps{};
  for (std::size_t k = 0; k < kAssignments; ++k) {
    if (k > 0) shuffle(pool_, random);
    means[k] = between();
    gaps[k] = closeness();
  }
  const std::size_t rank = rank_of_first(means, random);
  const Snapshots spread = snapshots_of_rest(means);
  const double effect = spread.sd > 0 ? (means[0] - spread.mean) / spread.sd : 0;
  const double ratio = spread.mean > 0 ? means[0] / spread.mean : 1;
  if (weigh_alike) take(kEven, rank, -effect, ratio, step);
  take(kUneven, kAssignments + 1 - rank, effect, ratio, step);
  const Snapshots gap = snapshots_of_rest(gaps);
  take(kClose, rank_of_first(gaps, random), gap.sd > 0 ? (gap.mean - gaps[0]) / gap.sd : 0,
       gap.mean > 0 ? gaps[0] / gap.mean : 1, step);
  ++steps_;
  return true;
}

bool Partition::gather(const std::vector<std::vector<double>>& losses, std::uint64_t step) {
  pool_.clear();
  counts_.clear();
  const std::size_t first = losses.empty() ? 0 : splitmix64(step) % losses.size();
  for (std::size_t k = 0; k < losses.size(); ++k) {
    const auto& own = losses[(first + k) % losses.size()];
    if (own.size() < 2 || pool_.size() + own.size() > kLossesMax) continue;
    pool_.insert(pool_.end(), own.begin(), own.end());
    counts_.push_back(own.size());
  }
  if (counts_.size() < 2) return false;
  const auto [low, high] = std::ranges::minmax(pool_);
  if (low == high) return false;
  mean_ = sum(pool_) / double(pool_.size());
  set_unit();
  return true;
}

// The unit of distance: the typical distance between neighbors among the sorted losses of all
// ranks.
void Partition::set_unit() {
  scratch_ = pool_;
  std::ranges::sort(scratch_);
  const std::size_t n = scratch_.size();
  const double half = scratch_[n - 1 - n / 4] - scratch_[n / 4];
  unit_ = 2 * half / double(n);
}

// The sum of squares between ranks.
double Partition::between() const {
  double total = 0;
  const double* at = pool_.data();
  for (const std::size_t count : counts_) {
    double own = 0;
    for (std::size_t k = 0; k < count; ++k) own += *at++ - mean_;
    total += own * own / double(count);
  }
  return total;
}

// The sum over ranks of d / (d + unit), with d the distance between a rank's two closest losses: a
// repeated micro-batch lowers it by nearly 1, and no single rank with widely spread losses
// dominates it.
double Partition::closeness() {
  double total = 0;
  std::size_t at = 0;
  for (const std::size_t count : counts_) {
    const double d = closest(std::span(pool_).subspan(at, count), scratch_);
    if (d > 0) total += d / (d + unit_);
    at += count;
  }
  return total;
}

void Partition::take(Test test, std::size_t rank, double effect, double ratio, std::uint64_t step) {
  Track& track = tracks_[test];
  advance(track.block, partition_bets(rank), step, track.seen);
  track.seen.add({bounded(effect), bounded(ratio)});
}

double Partition::evidence(Test test) const {
  return kWeights[test] / double(kBets) * sum(std::span(tracks_[test].block).first(kBets));
}

Window Partition::window(Test test, std::uint64_t step) const {
  return window_of(tracks_[test].block, kBets, 0, kBets, tracks_[test].seen, step);
}

bool Partition::matters(Test test, const Window& window) {
  if (window.effect < kPartitionLeastEffect) return false;
  return test == kUneven ? window.difference >= kRatios[test] : window.difference <= kRatios[test];
}

void Partition::reset(Test test) { clear(tracks_[test].block, kBets, 0, kBets); }

void Partition::restart(std::uint64_t step) {
  for (Track& track : tracks_) begin_at(track.block, kBets, step);
  raised_at_ = {};
}

}  // namespace presum::detect
