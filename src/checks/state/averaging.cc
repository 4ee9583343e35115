// SPDX-License-Identifier: Apache-2.0
#include "checks/state/averaging.h"

#include <algorithm>
#include <utility>

#include "checks/state/state_hashes.h"

namespace presum::checks {

void Averaging::see(const StepRecord& record) {
  constexpr auto kKind = StateHash::Kind::kParameters;
  if (record.workers.size() < 2 || record.workers.size() < record.workers_expected) return;
  const auto shards = shards_of(record, kKind);
  if (shards.empty()) return;
  if (std::ranges::any_of(shards,
                          [&](auto shard) { return !differing(record, kKind, shard).empty(); })) {
    apart_ = true;
    if (record.step - equal_at_ >= distance_) times_ = 0;
    return;
  }
  if (std::exchange(apart_, false)) {
    const std::uint64_t distance = record.step - equal_at_;
    times_ = distance == distance_ ? times_ + 1 : 1;
    distance_ = distance;
  }
  equal_at_ = record.step;
}

}  // namespace presum::checks
