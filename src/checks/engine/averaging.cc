// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/averaging.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "checks/engine/state_hashes.h"

namespace presum::checks {

namespace {

bool takes_own_steps(const StepRecord& record) {
  return record.distinct_gradients > 1 &&
         std::ranges::all_of(record.workers, [](const WorkerRecord& w) {
           return !w.number.is_reduced() && w.use == StepUse::kUsed;
         });
}

std::uint64_t hash_of(const WorkerRecord& worker) {
  std::uint64_t out = 0;
  for (const StateHash& s : worker.states) {
    if (s.kind == StateHash::Kind::kParameters) out = mix64(out ^ mix64(s.group) ^ s.value);
  }
  return out | 1;
}

}  // namespace

void Averaging::see(const StepRecord& record) {
  constexpr auto kKind = StateHash::Kind::kParameters;
  const std::uint64_t part = looks_++ % kRound;
  if (record.workers.size() < 2 || record.workers.size() < record.workers_expected) return;
  const auto reads = [](const WorkerRecord& w) { return w.reduced_fingerprint != 0; };
  if (std::ranges::all_of(record.workers, reads)) {
    kept_own_ = std::ranges::all_of(record.workers, [](const WorkerRecord& w) {
      return w.reduced_fingerprint == w.fingerprint;
    });
  }
  const auto shards = shards_of(record, kKind);
  const bool stepped = own_steps_ > 0;
  own_steps_ = takes_own_steps(record) ? own_steps_ + 1 : 0;
  if (shards.empty()) return;
  const auto differs = [&](auto shard) { return !differing(record, kKind, shard).empty(); };
  const bool apart = std::ranges::any_of(shards, differs);
  const std::uint64_t hash = hash_of(record.workers.front());
  const bool moved = hashes_[part] != 0 && hashes_[part] != hash;
  hashes_[part] = hash;
  equal_ = apart ? 0 : equal_ + (stepped && moved);
  if (apart) {
    const auto unreduced = [](const WorkerRecord& w) {
      return w.number.unreduced > 0 || !w.number.is_reduced();
    };
    apart_ = kept_own_ || std::ranges::all_of(record.workers, unreduced);
    apart_parts_.set(part);
    if (distance_ > 0 && (record.step - again_at_) % distance_ == 0) times_ = 0;
    return;
  }
  if (!std::exchange(apart_, false)) return;
  const std::uint64_t distance = record.step - std::exchange(again_at_, record.step);
  const bool shows = distance % kRound != 0 || apart_parts_[part];
  const bool again = distance_ > 0 && distance % distance_ == 0;  // a record may be missing
  times_ = !shows ? 0 : again ? times_ + 1 : 1;
  if (!again) distance_ = distance;
}

}  // namespace presum::checks
