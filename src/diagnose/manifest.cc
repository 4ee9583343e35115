// SPDX-License-Identifier: Apache-2.0
#include "diagnose/manifest.h"

#include <string>

#include "base/hash.h"
#include "diagnose/sampler.h"
#include "diagnose/settings.h"

namespace presum::diagnose {
namespace {

constexpr std::size_t kIndices = 16384;
constexpr std::uint64_t kConflicts = 8;
constexpr const char* kNoSharedData =
    "No sampler splits one data set among the workers, so their data may differ.";

}  // namespace

void Manifest::update(const StepContext& context, SignalLog& log) {
  if (context.alone()) return log.cannot(Check::kManifestMismatch, kOneWorker);
  if (!distributed_sampling(context.record)) {
    return log.cannot(Check::kManifestMismatch, kNoSharedData);
  }
  compare_facts(context, log);
  compare_rows(context, log);
}

void Manifest::compare_facts(const StepContext& context, SignalLog& log) const {
  Mismatch found =
      compare_kinds(context, Check::kManifestMismatch, [](FingerprintKind) { return true; });
  if (found.looked) log.checked(Check::kManifestMismatch);
  if (found.names.empty()) return;
  Signal signal = sighting(Check::kManifestMismatch, context.record.step, found.blame);
  signal.confidence = 0.95;
  signal.title =
      signal.everyone ? "The ranks differ in their data set: " : "{Ranks} had another data set: ";
  signal.title += listed(found.names);
  signal.evidence = std::move(found.evidence);
  signal.evidence.emplace_back("differ", listed(found.names));
  log.add(std::move(signal), 1);
}

void Manifest::compare_rows(const StepContext& context, SignalLog& log) {
  for (const WorkerRecord& w : context.record.workers) {
    if (w.samples.thinned != 0 || w.samples.hashes.size() != w.indices.size()) continue;
    for (std::size_t i = 0; i < w.indices.size(); ++i)
      draw(w.indices[i], w.samples.hashes[i], w.rank);
  }
  // Augmentation gives a worker's own draws of an index other rows, too.
  if (conflicts_ < kConflicts || conflicts_ <= agreed_ || own_conflicts_ > 0 || own_agreed_ == 0) {
    return;
  }
  Signal signal = sighting(Check::kManifestMismatch, context.record.step, blame(context.record));
  signal.key = 1;
  signal.confidence = 0.9;
  signal.title =
      signal.everyone
          ? "The ranks read different samples at the same places of the data set"
          : "{Ranks} read other samples than the others at the same places of the data set";
  signal.evidence = {{"indices_in_conflict", static_cast<std::int64_t>(conflicts_)},
                     {"indices_agreed", static_cast<std::int64_t>(agreed_)}};
  log.add(std::move(signal), 1);
}

void Manifest::draw(std::uint64_t index, std::uint64_t row, std::uint32_t rank) {
  if ((mix64(index) & mask_) != 0) return;
  const auto [found, fresh] = drawn_.try_emplace(index, Drawn{row, rank});
  if (fresh) {
    if (drawn_.size() > kIndices) thin();
    return;
  }
  const Drawn before = found->second;
  const bool agree = before.row == row;
  if (before.rank == rank) {
    ++(agree ? own_agreed_ : own_conflicts_);
    return;
  }
  ++(agree ? agreed_ : conflicts_);
  if (agree) return;
  ++conflicts_of_[before.rank];
  ++conflicts_of_[rank];
}

// Half of the indices, the same in every pass.
void Manifest::thin() {
  mask_ = 2 * mask_ + 1;
  std::erase_if(drawn_, [&](const auto& entry) { return (mix64(entry.first) & mask_) != 0; });
}

// The one rank that takes part in nearly all conflicts, or all that take part in any.
Blame Manifest::blame(const StepRecord& record) const {
  Blame out;
  for (const auto& [rank, count] : conflicts_of_) {
    if (record.workers.size() > 2 && 10 * count >= 9 * conflicts_) return {{rank}, false};
    insert(out.ranks, rank);
  }
  out.everyone = out.ranks.size() >= record.workers.size();
  return out;
}

}  // namespace presum::diagnose
