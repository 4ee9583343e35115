// SPDX-License-Identifier: Apache-2.0
#include "checks/data/sampler_mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr const char* kNoSampler = "No sampler was found on any rank.";
constexpr const char* kNotDistributed =
    "The samplers do not split the data among ranks, so each may have its own settings.";

constexpr const char* kOtherData =
    "The ranks read different datasets, whose samplers need not match.";
constexpr const char* kAmongAll =
    "If the groups are replicas of one model, reduce gradients among all of them: give fully_shard "
    "the mesh with both dimensions, or DDP the group of all ranks. Under tensor or pipeline "
    "parallelism, give the samplers the rank and the size of the data-parallel group.";
constexpr const char* kExperts =
    "Nothing, if each group has its own experts, or its own copy of another part of the model.";
constexpr const char* kUndividedStream =
    "Split the stream among the ranks by this job's rank and world size (split_dataset_by_node, "
    "split_by_node), and check whether it restarts, with different shards, before a pass ends.";
constexpr const char* kUndivided =
    "Not every rank's sampler divides the data among the ranks: give the loader a "
    "DistributedSampler with this job's rank and world size, or split the data into disjoint "
    "shards. A custom sampler that divides the data must shuffle with the same seed on all ranks.";

struct OtherSampler : Differing {};

std::string sentence(const OtherSampler& seen, const Who& who) {
  return who.words() +
         (who.ranks.size() == 1 ? " had a sampler that does not fit the others': "
                                : " had samplers that do not fit together: ") +
         listed(seen.differ);
}

struct DividedAmongJob {
  std::uint64_t divided_among = 0;
  std::uint64_t reduced_among = 0;
  bool another_model = false;  // the job reduces another model among all ranks

  std::uint64_t key() const { return another_model ? 1 : 0; }
  static constexpr std::tuple kFields{field("divided_among", &DividedAmongJob::divided_among),
                                      field("reduced_among", &DividedAmongJob::reduced_among),
                                      field("another_model", &DividedAmongJob::another_model)};
};

std::string sentence(const DividedAmongJob& seen, const Who& who) {
  return fmt::format(
      "{} reduced gradients among {} ranks, and their samplers divide the data among {}",
      who.words(), seen.reduced_among, seen.divided_among);
}

struct SharedInGroups {
  std::uint64_t ranks_per_place = 0;
  static constexpr std::tuple kFields{field("ranks_per_place", &SharedInGroups::ranks_per_place)};
};

std::string sentence(const SharedInGroups& seen, const Who& who) {
  return fmt::format(
      "{} share their data in groups of {}, as with sequence or tensor parallelism inside the "
      "data-parallel group",
      who.words(), seen.ranks_per_place);
}

std::string plain(std::uint64_t value) {
  return value_text(
      *find_fingerprint_kind(static_cast<std::uint32_t>(FingerprintKind::kSamplerSeed)), value);
}

void add(Mismatch& found, const Split& held, const Blame& blame, const char* name,
         const char* shown = nullptr) {
  found.blame.add(blame);
  found.seen.differ.emplace_back(shown == nullptr ? name : shown);
  found.seen.values.emplace_back("sampler_" + std::string(name), held.text(plain));
}

// Epochs are compared between ranks that are in the same pass over the data.
void compare_epochs(const StepRecord& record, Mismatch& found) {
  const Split passes = split(record, FingerprintKind::kDataPass);
  std::vector<RankValue> epochs;
  for (const WorkerRecord& w : record.workers) {
    const std::uint64_t* pass = w.fingerprint_of(FingerprintKind::kDataPass);
    const std::uint64_t* epoch = w.fingerprint_of(FingerprintKind::kSamplerEpoch);
    const bool most =
        passes.groups.empty() || (pass != nullptr && *pass == passes.groups.front().value);
    if (epoch != nullptr && most) epochs.push_back({*epoch, w.rank});
  }
  const Split held = split(std::move(epochs));
  if (!held.differs()) return;
  // Ranks that are still in epoch 0 did not call set_epoch, even if they are the majority.
  const auto first = std::ranges::find(held.groups, 0U, &Split::Group::value);
  const bool later = !passes.groups.empty() && passes.groups.front().value > 0;
  const bool behind = later && first != held.groups.end();
  add(found, held, behind ? Blame{first->ranks, false} : held.blame(), "epoch");
}

// With padding, the replicas of one sampler have equal lengths; without it, they differ by at most
// one.
void compare_lengths(const StepRecord& record, Mismatch& found) {
  const Split held = split(record, FingerprintKind::kSamplerLength);
  std::vector<RankNumber> lengths;
  for (const Split::Group& g : held.groups) {
    for (const std::uint32_t rank : g.ranks) {
      lengths.push_back({static_cast<double>(g.value), rank});
    }
  }
  const Blame blame = apart(lengths, 1);
  if (!blame.ranks.empty()) add(found, held, blame, "length");
}

// Positions are comparable only if the samplers divide the data into equally many parts.
void compare_places(const StepRecord& record, Mismatch& found) {
  if (split(record, FingerprintKind::kSamplerReplicas).differs()) return;
  const Split places = split(record, FingerprintKind::kSamplerRank);
  const Ranks shared = places.shared();
  const bool everyone = shared.size() == record.workers.size();
  if (!shared.empty()) add(found, places, {shared, everyone}, "rank", "the same rank");
}

// Both the number of replicas and the positions must fit the number of ranks.
void compare_replicas(const StepRecord& record, Mismatch& found) {
  const Split held = split(record, FingerprintKind::kSamplerReplicas);
  Blame blame;
  for (const Split::Group& g : held.groups) {
    if (g.value != record.workers_expected) blame.ranks = unite(blame.ranks, g.ranks);
  }
  blame.everyone = blame.ranks.size() == record.workers.size();
  if (!blame.ranks.empty()) add(found, held, blame, "replicas");
}

// By class and length; dataset-mismatch reports different contents.
bool several_data_sets(const StepRecord& record) {
  return split(record, FingerprintKind::kDataClass).differs() ||
         split(record, FingerprintKind::kDataLength).differs();
}

bool must_be_equal(FingerprintKind kind) {
  return kind != FingerprintKind::kSamplerEpoch && kind != FingerprintKind::kSamplerLength &&
         kind != FingerprintKind::kSamplerReplicas;
}

// Samplers that are not distributed are not judged: ranks may read their own shards.
class Sampler final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (split(context.record, FingerprintKind::kSamplerReplicas).known == 0) {
      const bool some = split(context.record, FingerprintKind::kSamplerClass).known > 0;
      return log.cannot(&kSamplerMismatch, some ? kNotDistributed : kNoSampler);
    }
    if (several_data_sets(context.record)) return log.cannot(&kSamplerMismatch, kOtherData);
    log.checked(&kSamplerMismatch);
    Mismatch found = compare_kinds(context, &kSamplerMismatch, must_be_equal);
    compare_epochs(context.record, found);
    compare_lengths(context.record, found);
    const std::size_t each = shares_places(context.record) ? ranks_per_place(context.record) : 1;
    if (each > 1) {
      log.add(shared_in_groups(&kSamplerMismatch, context, each), 1);
    } else {
      compare_places(context.record, found);
      const std::size_t among = divides_among_job(context.record, context.roster);
      among > 0 ? watch_groups(context, among, log) : compare_replicas(context.record, found);
    }
    if (found.seen.differ.empty()) return;
    for (std::string& name : found.seen.differ) {
      if (name.starts_with("sampler ")) name.erase(0, 8);
    }
    Signal signal = sighting(&kSamplerMismatch, context, std::move(found.blame), 0.95,
                             OtherSampler{std::move(found.seen)});
    signal.remedy = undivided_remedy(context.record);
    log.add(std::move(signal), 1);
  }

 private:
  // Groups that train separately, or hold experts; with experts, the job reduces another model
  // among all ranks.
  static void watch_groups(const StepContext& context, std::size_t among, SignalLog& log) {
    const DividedAmongJob seen{among, context.record.workers_expected,
                               context.roster.widest_group() >= among};
    Signal signal = sighting(&kSamplerMismatch, context, of_all(context.record), 0.9, seen);
    signal.remedy = seen.another_model ? kExperts : kAmongAll;
    if (seen.another_model) {
      signal.severity = Severity::kInfo;
      log.forget(&kSamplerMismatch, key_of(DividedAmongJob{}));
    }
    log.add(std::move(signal), 1);
  }
};

}  // namespace

std::string undivided_remedy(const StepRecord& record) {
  const bool undivided = std::ranges::any_of(record.workers, [](const WorkerRecord& w) {
    return w.fingerprint_of(FingerprintKind::kSamplerClass) != nullptr &&
           w.fingerprint_of(FingerprintKind::kSamplerReplicas) == nullptr;
  });
  const bool stream = split(record, FingerprintKind::kDataLength).known == 0;
  return !undivided ? "" : stream ? kUndividedStream : kUndivided;
}

Signal shared_in_groups(Check check, const StepContext& context, std::size_t each) {
  Signal signal = sighting(check, context, of_all(context.record), 0.9, SharedInGroups{each});
  signal.severity = Severity::kInfo;
  signal.remedy =
      "If this is intended, pass the group of ranks that hold different data as `process_group=`, "
      "so that presum compares those. If not, give every rank its own data.";
  return signal;
}

constexpr FingerprintKind kSamplerMismatchKinds[] = {
    FingerprintKind::kSamplerClass,    FingerprintKind::kSamplerSeed,
    FingerprintKind::kSamplerEpoch,    FingerprintKind::kSamplerRank,
    FingerprintKind::kSamplerReplicas, FingerprintKind::kSamplerLength,
    FingerprintKind::kSamplerShuffle,  FingerprintKind::kSamplerDropLast};
constexpr Check kSamplerMismatchExplains[] = {&kDuplicateData, &kEpochNotSet,    &kOverlappingData,
                                              &kDataCoverage,  &kPairTooSimilar, &kTooConsistent};
constinit const CheckInfo kSamplerMismatch{
    .id = "sampler-mismatch",
    .severity = Severity::kWarning,
    .compares = "the seed, epoch, rank, replica count and settings of all samplers",
    .fires = "immediately",
    .consequence =
        "Ranks read overlapping parts of the data, leave parts out, or train on them alone.",
    .cannot_see = "Samplers that do not expose their seed, epoch or rank.",
    .mistake = "sampler = DistributedSampler(data, seed=seed + rank)",
    .fix = "Give every rank's sampler the same seed, epoch and settings, and its own rank.",
    .resembles = "NVlabs/LongLive#71",
    .precedence = 120,
    .explains = kSamplerMismatchExplains,
    .fingerprints = kSamplerMismatchKinds,
    .compares_ranks = true,
    .make = make<Sampler>,
};

}  // namespace presum::checks
