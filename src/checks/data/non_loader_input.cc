// SPDX-License-Identifier: Apache-2.0
#include "checks/data/non_loader_input.h"

#include <algorithm>

#include "base/hash.h"

namespace presum::checks {
namespace {

constexpr std::size_t kGroupsMax = 64;

}  // namespace

Ranks ranks_of(const StepContext& context, const Members& members) {
  Ranks ranks;
  for (const std::size_t i : members) insert(ranks, context.record.workers[i].rank);
  return ranks;
}

std::uint64_t content_of(const StepContext& context, std::size_t place) {
  return context.batches[place].set +
         mix64(value_of(context.record.workers[place], FingerprintKind::kBatch));
}

bool is_dealt(const WorkerRecord& w) {
  return !w.indices.empty() || w.fingerprint_of(FingerprintKind::kDataClass) != nullptr ||
         w.fingerprint_of(FingerprintKind::kBatch) == nullptr;
}

void NonLoaderInput::watch(const StepContext& context) {
  Members known;
  for (std::size_t i = 0; i < context.workers(); ++i) {
    if (context.batches[i].known) known.push_back(i);
  }
  const Ranks among = ranks_of(context, known);
  for (auto& [ranks, group] : groups_) group.known += std::ranges::includes(among, ranks);
}

NonLoaderInput::Group* NonLoaderInput::equal(const StepContext& context, const Members& members) {
  const auto dealt = [&](std::size_t i) { return is_dealt(context.record.workers[i]); };
  if (std::ranges::any_of(members, dealt)) return nullptr;
  const Ranks ranks = ranks_of(context, members);
  if (groups_.size() >= kGroupsMax && !groups_.contains(ranks)) return &(beyond_ = {});
  Group& out = groups_.try_emplace(ranks, Group{context.record.step, 0, 1}).first->second;
  ++out.equal;
  return &out;
}

const NonLoaderInput::Group* NonLoaderInput::find(const Ranks& ranks) const {
  const auto found = groups_.find(ranks);
  return found == groups_.end() ? nullptr : &found->second;
}

std::uint64_t NonLoaderInput::undecided() const {
  std::uint64_t most = 0;
  for (const auto& [ranks, group] : groups_) {
    const bool always = group.equal == group.known && group.known < kToSee;
    if (always) most = std::max(most, kToSee - group.known);
  }
  return most;
}

}  // namespace presum::checks
