// SPDX-License-Identifier: Apache-2.0
#include "detect/replay.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/hash.h"

namespace presum::detect {
namespace {

// The place of the pair (a, b) among those of `count` workers.
std::size_t place_of_pair(std::size_t a, std::size_t b, std::size_t count) {
  const auto [low, high] = std::minmax(a, b);
  return low * count - low * (low + 1) / 2 + (high - low - 1);
}

std::vector<float> reordered(const std::vector<float>& values,
                             const std::vector<std::size_t>& order) {
  std::vector<float> out;
  if (values.size() != order.size()) return out;
  for (const std::size_t at : order) out.push_back(values[at]);
  return out;
}

}  // namespace

Replay::Replay(std::span<const StepRecord> steps, std::uint64_t block, std::uint64_t seed)
    : steps_(steps), block_(block), state_(splitmix64(seed)), order_(steps.front().workers.size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
}

const StepRecord& Replay::next() {
  if (played_ % block_ == 0) shuffle();
  reorder(steps_[played_ % steps_.size()]);
  record_.step = played_++;
  return record_;
}

// Fisher and Yates. The modulo's bias is below 2^-53.
void Replay::shuffle() {
  for (std::size_t left = order_.size(); left > 1; --left) {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::swap(order_[left - 1], order_[mix64(state_) % left]);
  }
}

void Replay::reorder(const StepRecord& from) {
  const std::size_t count = order_.size();
  record_ = from;
  for (std::size_t i = 0; i < count; ++i) {
    WorkerRecord& worker = record_.workers[i] = from.workers[order_[i]];
    worker.replica = worker.rank = static_cast<std::uint32_t>(i);
  }
  for (GroupRecord& group : record_.groups) {
    group.norms = reordered(group.norms, order_);
    group.maxima = reordered(group.maxima, order_);
    group.fingerprints.clear();
  }
  if (from.cosines.size() != count * (count - 1) / 2) return;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      record_.cosines[place_of_pair(i, j, count)] =
          from.cosines[place_of_pair(order_[i], order_[j], count)];
    }
  }
}

FalseAlarms false_alarms(std::span<const StepRecord> steps, std::uint64_t block, double level,
                         std::uint64_t count, std::uint64_t seed, const Progress& progress) {
  return false_alarms(
      [&](std::uint64_t stretch) -> Steps {
        auto replay = std::make_shared<Replay>(steps, block, splitmix64(seed) + stretch);
        return [replay]() -> const StepRecord& { return replay->next(); };
      },
      level, count, progress);
}

}  // namespace presum::detect
