// SPDX-License-Identifier: Apache-2.0
#include "detect/pair_panel.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "base/pairs.h"

namespace presum::detect {
namespace {

constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();
constexpr double kWeight = 0.1;            // total over all pairs
constexpr double kPairLeastEffect = 2;     // in standard deviations over pairs
constexpr double kLeastDifference = 0.02;  // in cosine
// Relative distance from the untouched pairs at which a pair is dropped.
constexpr double kSettled = 1e-3;

std::uint64_t tie(std::uint64_t step, std::size_t pair) {
  return splitmix64(splitmix64(step) ^ (pair + 1));
}

std::pair<std::size_t, std::size_t> pair_at(std::size_t position, std::size_t workers) {
  std::size_t i = 0;
  for (std::size_t row = workers - 1; position >= row; --row, ++i) position -= row;
  return {i, i + 1 + position};
}

}  // namespace

void PairTail::touch(std::uint32_t i, std::uint32_t j, std::uint64_t step) {
  const auto same = [&](const Entry& e) { return e.i == i && e.j == j; };
  if (std::ranges::any_of(entries_, same)) return;
  Entry entry{.i = i, .j = j};
  for (std::size_t k = 0; k < kPairStakes.size(); ++k) {
    entry.block[k] = untouched_[k];
    entry.block[kPairStakes.size() + k] = untouched_[k] * double(step);
  }
  entries_.push_back(entry);
}

void PairTail::take(Entry& entry, bool extreme, double pairs, const Reading& shown,
                    std::uint64_t step) {
  std::array<double, kPairStakes.size()> e{};
  for (std::size_t k = 0; k < e.size(); ++k) {
    e[k] = 1 - kPairStakes[k] + (extreme ? kPairStakes[k] * pairs : 0);
  }
  advance(entry.block, e, step, entry.seen);
  entry.seen.add(shown);
}

// All other pairs lose the same share. A pair whose evidence is back at that of the others is no
// longer stored.
void PairTail::settle() {
  for (std::size_t k = 0; k < kPairStakes.size(); ++k) {
    untouched_[k] = (1 - kPairStakes[k]) * (untouched_[k] + 1);
  }
  std::erase_if(entries_, [&](const Entry& entry) {
    for (std::size_t k = 0; k < kPairStakes.size(); ++k) {
      if (entry.block[k] > untouched_[k] * (1 + kSettled)) return false;
    }
    return true;
  });
}

void PairTail::restart(std::uint64_t step) {
  for (Entry& entry : entries_) begin_at(entry.block, kPairStakes.size(), step);
}

void PairPanel::restart(std::uint64_t step) {
  for (PairTail& tail : tails_) tail.restart(step);
  named_.clear();
}

bool PairPanel::fits() const {
  return std::ranges::all_of(tails_, [&](const PairTail& tail) {
    return std::ranges::all_of(
        tail.entries(), [&](const PairTail::Entry& e) { return e.i < e.j && e.j < workers_; });
  });
}

bool PairPanel::update(std::span<const std::uint32_t> replicas, std::span<const float> cosines,
                       std::uint64_t step) {
  const std::size_t n = replicas.size();
  if (n < 3 || cosines.size() != pairs_of(n)) return false;
  const Extremes found = find(cosines, step);
  if (found.known < 2 || cosines[found.low] == cosines[found.high]) return false;
  position_.assign(workers_, kAbsent);
  for (std::uint32_t p = 0; p < n; ++p) position_[replicas[p]] = p;
  for (const bool similar : {false, true}) {
    const double sign = similar ? 1 : -1;
    const auto reading = [&](std::uint32_t i, std::uint32_t j) -> std::optional<Reading> {
      if (position_[i] == kAbsent || position_[j] == kAbsent) return std::nullopt;
      const auto cosine = double{cosines[pair_position(position_[i], position_[j], n)]};
      if (!std::isfinite(cosine)) return std::nullopt;
      const double difference = bounded(cosine - found.middle);
      return Reading{sign * scale_.distance(difference), sign * difference};
    };
    const auto [a, b] = pair_at(similar ? found.high : found.low, n);
    tails_[similar].update(replicas[a], replicas[b], double(found.known), step, reading);
  }
  ++steps_;
  return true;
}

PairPanel::Extremes PairPanel::find(std::span<const float> cosines, std::uint64_t step) {
  Extremes found;
  scratch_.clear();
  for (std::size_t p = 0; p < cosines.size(); ++p) {
    if (!std::isfinite(cosines[p])) continue;
    if (scratch_.empty()) found.low = found.high = p;
    scratch_.push_back(double{cosines[p]});
    const auto wins = [&](std::size_t champion, bool beats) {
      return cosines[p] == cosines[champion] ? tie(step, p) > tie(step, champion) : beats;
    };
    if (wins(found.low, cosines[p] < cosines[found.low])) found.low = p;
    if (wins(found.high, cosines[p] > cosines[found.high])) found.high = p;
  }
  found.known = scratch_.size();
  if (found.known == 0) return found;
  found.middle = median(scratch_);
  for (double& x : scratch_) x = std::abs(x - found.middle);
  scale_.update(scratch_);
  return found;
}

std::vector<PairPanel::Crossing> PairPanel::crossings(double level, std::uint64_t step,
                                                      std::uint64_t cooldown) {
  std::vector<Crossing> out;
  const double pairs = double(workers_) * double(workers_ - 1) / 2;
  const double weight = kWeight / 2 / (pairs * double(kPairStakes.size()));
  for (const bool similar : {false, true}) {
    tails_[similar].forget_if([&](const PairTail::Entry& entry) {
      const double evidence = weight * PairTail::evidence(entry);
      if (!(evidence >= level)) return false;
      const std::size_t k = kPairStakes.size();
      const Window w = window_of(entry.block, k, 0, k, entry.seen, step);
      const bool slight = w.effect < kPairLeastEffect || w.difference < kLeastDifference;
      const Crossing crossing{entry.i, entry.j, similar, evidence, w};
      if (!slight && !cooling(crossing, step, cooldown)) out.push_back(crossing);
      return true;
    });
  }
  return out;
}

bool PairPanel::named(std::uint32_t worker, std::uint64_t step) const {
  return std::ranges::any_of(named_, [&](const NamedPair& n) {
    return (n.i == worker || n.j == worker) && step - n.last <= kBlameSteps;
  });
}

bool PairPanel::cooling(const Crossing& crossing, std::uint64_t step, std::uint64_t cooldown) {
  std::erase_if(named_, [&](const NamedPair& n) {
    return step - n.raised > cooldown && step - n.last > kBlameSteps;
  });
  const auto same = std::ranges::find_if(named_, [&](const NamedPair& n) {
    return n.i == crossing.i && n.j == crossing.j && (n.similar != 0) == crossing.similar;
  });
  if (same == named_.end()) {
    named_.push_back({crossing.i, crossing.j, crossing.similar ? 1U : 0U, step, step});
    return false;
  }
  same->last = step;
  const bool cooling = step - same->raised <= cooldown;
  if (!cooling) same->raised = step;
  return cooling;
}

}  // namespace presum::detect
