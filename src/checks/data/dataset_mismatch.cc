// SPDX-License-Identifier: Apache-2.0
// **dataset-mismatch, sampler-mismatch.** Judged only if samplers split one dataset among several
// ranks. Ranks with their own shards and samplers may have any length, order and seed. An index
// must mean the same row on every rank, unless a rank's own repeated draws of an index differ too:
// that is augmentation. Conflicts are counted for each pair of ranks. The finding names the ranks
// that conflict with the majority, from the first conflict on, if in three steps or more most of
// what they draw after others conflicts; a rank whose whole batches change now and then is not
// reported.
//
// Sampler lengths may differ by 1. Epochs are compared between ranks in the same pass. If
// neighboring ranks share a sampler position in groups of k, and the sampler's replica count is 1/k
// of the world size, the job uses sequence or tensor parallelism inside the group: that is
// information, and what these ranks share counts once. This applies from four ranks on, only if the
// groups consist of neighbors, and only if some ranks of a group have different gradients (with a
// sampler that is given the node number as its rank, they do not). In all other cases equal
// positions are a mistake. In such a run this information explains pair-too-similar and
// too-consistent.
//
// Ranks that have gone through the same several datasets twice, each in its own order, read
// different datasets at a step by design. The attributes that a dataset keeps are hashed when its
// loader is first iterated. A dataset that fills these attributes while it is read, and was read
// earlier on one rank, differs on that rank by design.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kConflicts = 8;
constexpr std::uint64_t kMostly = 3;  // ratio; smaller if rows change only at times
constexpr std::uint64_t kSteps = 3;
constexpr std::size_t kPairs = 65536;
constexpr std::size_t kDataSets = 64;  // per rank, for taking turns between them
constexpr std::uint64_t kRounds = 2;   // through all, to count as taking turns
constexpr const char* kOtherRows =
    "Prepare the data identically on every rank: the same files in the same order, the same subset "
    "(a seed for random_split), the same normalization and tokenizer.";
constexpr const char* kSubset =
    "Give random_split, or whatever selects the subset, the same generator and seed on every rank: "
    "a sampler splits positions, so different subsets share some samples and lose others.";
constexpr const char* kContents =
    "Load and prepare the data identically on every rank: the same files, labels and "
    "normalization, and the same seed for generated data. A sampler splits the positions of a "
    "single dataset.";
constexpr const char* kNoSharedData =
    "No sampler splits one dataset among the ranks, so their data may differ.";

struct OtherDataSet : Differing {};

std::string sentence(const OtherDataSet& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " differ in their dataset: "
                       : who.words() + " had another dataset: ") +
         listed(seen.differ);
}

struct OtherRows {
  std::uint64_t indices_in_conflict = 0;
  static constexpr std::tuple kFields{
      field("indices_in_conflict", &OtherRows::indices_in_conflict)};
};

std::string sentence(const OtherRows& /*seen*/, const Who& who) {
  return who.everyone
             ? who.the_ranks() + " read different samples at the same positions of the dataset"
             : who.words() +
                   " read other samples than the others at the same positions of the dataset";
}

// The dataset's description of itself, and whether an index means the same sample on every rank.
// Both need a sampler that splits one dataset among the ranks.
class DatasetMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (!distributed_sampling(context.record)) {
      return log.cannot(&kDatasetMismatch, kNoSharedData);
    }
    compare_facts(context, log);
    compare_rows(context, log);
  }

 private:
  // Draws of the same index by two ranks or by one.
  struct Pair {
    std::uint64_t agreed = 0;
    std::uint64_t conflicts = 0;
    std::uint64_t first_conflict = 0;  // step
    std::uint64_t agreed_since = 0;    // since the first conflict
    std::uint64_t steps = 0;           // with a conflict
    std::uint64_t last_conflict = 0;   // step
  };
  struct Odd {
    Blame blame;
    std::uint64_t conflicts = 0;
    std::uint64_t first_step = 0;
  };

  // Datasets that a rank read.
  struct Read {
    std::set<std::uint64_t> sets;
    std::uint64_t last = 0;
    std::uint64_t turns = 0;  // switches from one to another
  };

  void compare_facts(const StepContext& context, SignalLog& log) {
    Mismatch found = compare_kinds(context, &kDatasetMismatch);
    if (found.looked) log.checked(&kDatasetMismatch);
    const bool turns = take_turns(context.record);
    const auto& names = found.seen.differ;
    if (names.empty()) return;
    if (turns) return log.forget(&kDatasetMismatch, key_of(OtherDataSet{}));
    const auto differs = [&](const char* name) {
      return std::ranges::find(names, name) != names.end();
    };
    const char* remedy = differs("data subset")     ? kSubset
                         : differs("data contents") ? kContents
                                                    : "";
    Signal signal = sighting(&kDatasetMismatch, context, std::move(found.blame), 0.95,
                             OtherDataSet{std::move(found.seen)});
    signal.remedy = remedy;
    log.add(std::move(signal), 1);
  }

  // Ranks that cycle through the same datasets, each in its own order, read different datasets at a
  // step by design.
  bool take_turns(const StepRecord& record) {
    for (const WorkerRecord& w : record.workers) {
      Read& read = read_[w.rank];
      const std::uint64_t data = data_of(w);
      if (read.sets.size() < kDataSets) read.sets.insert(data);
      read.turns += std::exchange(read.last, data) != data;
    }
    return std::ranges::all_of(read_, [&](const auto& read) {
      const auto& sets = read.second.sets;
      return sets.size() > 1 && sets == read_.begin()->second.sets &&
             read.second.turns > kRounds * sets.size();
    });
  }

  void compare_rows(const StepContext& context, SignalLog& log) {
    for (const DrawnAgain& again : context.draws.again()) compare_draws(again);
    const Odd found = odd(all_ranks(context.record));
    if (found.blame.ranks.empty()) return;
    Signal signal =
        sighting(&kDatasetMismatch, context, found.blame, 0.9, OtherRows{found.conflicts});
    signal.first_step = found.first_step;
    signal.remedy = kOtherRows;
    log.add(std::move(signal), kAllSteps);
  }

  void compare_draws(const DrawnAgain& now) {
    if (now.row == 0 || now.first_row == 0 || !now.same_index) return;
    const bool agree = now.first_row == now.row;
    if (now.first_rank == now.rank) return count(own_[now.rank], agree, now.step);
    count(drew_[now.rank], agree, now.step);
    count(before_others_[now.first_rank], agree, now.step);
    const auto key = std::minmax(now.first_rank, now.rank);
    if (pairs_.size() >= kPairs && !pairs_.contains(key)) return;
    count(pairs_[key], agree, now.step);
  }

  void count(Pair& pair, bool agree, std::uint64_t step) {
    if (!agree && pair.conflicts == 0) pair.first_conflict = step;
    if (!agree && (pair.steps == 0 || pair.last_conflict != step)) {
      ++pair.steps;
      pair.last_conflict = step;
    }
    ++(agree ? pair.agreed : pair.conflicts);
    pair.agreed_since += agree && pair.conflicts > 0;
  }

  // Augmentation also changes the rows of a rank's own repeated draws of an index, on every rank.
  bool may_augment(const Ranks& many) const {
    const bool changed =
        std::ranges::any_of(own_, [](const auto& own) { return own.second.conflicts > 0; });
    if (!changed) return false;
    return many.empty() || !std::ranges::all_of(many, [&](std::uint32_t rank) {
             const auto own = own_.find(rank);
             return own != own_.end() && own->second.conflicts == 0 &&
                    own->second.agreed >= kConflicts;
           });
  }

  // The ranks that are pairwise known to read the same rows, if they are more than half; else none.
  Ranks alike(const Ranks& all) const {
    std::map<std::uint32_t, std::uint32_t> group;  // the lowest rank known to read the same rows
    for (const std::uint32_t rank : all) group[rank] = rank;
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& [ranks, pair] : pairs_) {
        if (pair.conflicts > 0 || pair.agreed == 0) continue;
        const std::uint32_t lowest = std::min(group[ranks.first], group[ranks.second]);
        changed = changed || group[ranks.first] != lowest || group[ranks.second] != lowest;
        group[ranks.first] = group[ranks.second] = lowest;
      }
    }
    std::map<std::uint32_t, Ranks> members;
    for (const auto& [rank, lowest] : group) insert(members[lowest], rank);
    for (auto& [lowest, ranks] : members) {
      if (2 * ranks.size() > all.size()) return std::move(ranks);
    }
    return {};
  }

  // True if a rank's rows change only occasionally. If the rank's data were prepared differently,
  // more of its draws since its first conflict would conflict. For a rank that draws nothing that
  // others drew before, the draws of others after it count. A batch that is changed as a whole
  // conflicts in all its rows.
  bool now_and_then(std::uint32_t rank) const {
    const auto seen = [&](const std::map<std::uint32_t, Pair>& by_rank) {
      const auto at = by_rank.find(rank);
      return at == by_rank.end() ? Pair{} : at->second;
    };
    Pair pair = seen(drew_);
    if (pair.agreed + pair.conflicts == 0) pair = seen(before_others_);
    return pair.steps < kSteps || pair.conflicts < kMostly * pair.agreed_since;
  }

  // The ranks that conflict with the majority. Without a majority, all ranks that conflict, once a
  // rank's own repeated draws have shown that an index always gives the same row.
  Odd odd(const Ranks& all) const {
    const bool some =
        std::ranges::any_of(pairs_, [](const auto& p) { return p.second.conflicts > 0; });
    if (!some) return {};
    const Ranks many = alike(all);
    if (may_augment(many) || (many.empty() && own_.empty())) return {};
    const auto of_many = [&](std::uint32_t rank) { return std::ranges::binary_search(many, rank); };
    std::map<std::uint32_t, Odd> by_rank;
    for (const auto& [ranks, pair] : pairs_) {
      if (pair.conflicts == 0) continue;
      for (const auto& [rank, other] : {ranks, std::pair(ranks.second, ranks.first)}) {
        if (of_many(rank) || (!many.empty() && !of_many(other))) continue;
        const auto [at, fresh] = by_rank.try_emplace(rank, Odd{{{rank}, false}, 0, UINT64_MAX});
        at->second.conflicts += pair.conflicts;
        at->second.first_step = std::min(at->second.first_step, pair.first_conflict);
      }
    }
    Odd out{{}, 0, UINT64_MAX};
    for (const auto& [rank, of] : by_rank) {
      if (of.conflicts < kConflicts || (!many.empty() && now_and_then(rank))) continue;
      out.blame.add(of.blame);
      out.conflicts += of.conflicts;
      out.first_step = std::min(out.first_step, of.first_step);
    }
    out.blame.everyone = out.blame.ranks.size() >= all.size();
    return out;
  }

  std::map<std::uint32_t, Read> read_;           // by rank
  std::map<std::uint32_t, Pair> own_;            // by rank: repeated draws by the same rank
  std::map<std::uint32_t, Pair> drew_;           // by rank: its draws of what others had drawn
  std::map<std::uint32_t, Pair> before_others_;  // by rank: others' draws of what it had drawn
  std::map<std::pair<std::uint32_t, std::uint32_t>, Pair> pairs_;  // by rank; at most 65,536
};

}  // namespace

constexpr FingerprintKind kDatasetMismatchKinds[] = {
    FingerprintKind::kDataClass, FingerprintKind::kDataLength, FingerprintKind::kDataAttributes,
    FingerprintKind::kDataSubset, FingerprintKind::kDataContents};
constexpr Check kDatasetMismatchExplains[] = {
    &kRankOutlier,     &kPairTooSimilar,  &kTooConsistent, &kLossEvent,     &kDuplicateData,
    &kSamplerMismatch, &kOverlappingData, &kDataCoverage,  &kTokenImbalance};
constinit const CheckInfo kDatasetMismatch{
    .id = "dataset-mismatch",
    .severity = Severity::kWarning,
    .compares = "the length and contents of the dataset on all ranks",
    .fires = "immediately; rows after 8 conflicts in 3 steps",
    .consequence =
        "The same index means different samples, or samples that are prepared differently: a "
        "sampler that splits indices reads some samples twice and others never.",
    .cannot_see =
        "Differences that no hash shows. If a dataset does not keep its samples, a difference "
        "shows only once two ranks have drawn the same index, in the same pass or the next, and "
        "only if the indices of all ranks are known for the first step of the pass. Rows are "
        "compared as the model receives them, so augmentation changes them: a rank whose rows "
        "differ only now and then is not reported.",
    .mistake =
        "files = glob.glob(\"data/*.jsonl\")                # in file system order\ntrain, val = "
        "random_split(data, [0.9, 0.1])      # no common seed",
    .fix =
        "Sort file lists before use and check that every host has the same files. A sampler splits "
        "positions: if the lists differ, some files are read twice and others never.",
    .resembles = "pytorch/pytorch#70103",
    .precedence = 90,
    .explains = kDatasetMismatchExplains,
    .fingerprints = kDatasetMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<DatasetMismatch>,
};

}  // namespace presum::checks
