// SPDX-License-Identifier: Apache-2.0
// **dataset-mismatch, sampler-mismatch.** Judged only where samplers split one data set among
// several ranks. Ranks with shards and samplers of their own may have any length, order and
// seed. An index must mean the same row on every rank, unless a rank's own draws of an index
// differ too: then it is augmentation. Conflicts are counted for each pair of ranks: the ranks that
// conflict with most others are named, from the first conflict on, if in three steps or more most
// of what they draw after others conflicts: a rank whose batches are changed as a whole now and
// then is quiet. Sampler lengths may differ by 1. Epochs are compared between ranks in the same
// pass. Neighboring ranks that share a place of the sampler k by k, where the sampler has a k-th
// of the world as replicas, are sequence or tensor parallelism inside the group: information, and
// what they share counts once. Ranks that have gone twice through the same several data sets, each
// in its own order, read others at a step by design. From four ranks on, and only if the groups are
// of neighbors, and only if some of a group have gradients of their own (a sampler that is given
// the number of the node in the place of the rank has not); else the same places are a mistake.
// Statistics of such a run are of alike ranks. What a data set keeps is hashed when its loader is
// first iterated; one that fills these attributes while it is read, and was read on one rank
// before, differs there by design.

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
constexpr std::uint64_t kMostly = 3;  // of a rank that changes rows now and then fewer conflict
constexpr std::uint64_t kSteps = 3;
constexpr std::size_t kPairs = 65536;
constexpr std::size_t kDataSets = 64;  // of a rank, between which it may take turns
constexpr std::uint64_t kRounds = 2;   // through all of them, until that is what they do
constexpr const char* kOtherRows =
    "Prepare the data alike on every rank: the same files in the same order, the same subset "
    "(a seed for random_split), the same normalization and tokenizer.";
constexpr const char* kSubset =
    "Give random_split, or whatever chose the subset, the same generator and seed on every rank: a "
    "sampler splits positions, so subsets that differ share samples, and lose others.";
constexpr const char* kContents =
    "Load and prepare the data alike on every rank: the same files, labels, normalization and seed "
    "of whatever generates it. A sampler splits positions of what must be one data set.";
constexpr const char* kNoSharedData =
    "No sampler splits one data set among the ranks, so their data may differ.";

struct OtherDataSet : Differing {};

std::string sentence(const OtherDataSet& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " differ in their data set: "
                       : who.words() + " had another data set: ") +
         listed(seen.differ);
}

struct OtherRows {
  std::uint64_t indices_in_conflict = 0;
  static constexpr std::tuple kFields{
      field("indices_in_conflict", &OtherRows::indices_in_conflict)};
};

std::string sentence(const OtherRows& /*seen*/, const Who& who) {
  return who.everyone
             ? who.the_ranks() + " read different samples at the same places of the data set"
             : who.words() +
                   " read other samples than the others at the same places of the data set";
}

// What the data set says of itself, and whether an index means the same sample on every worker.
// Both need a sampler that splits one data set among the workers.
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
  // Draws of the same index, by two workers or by one.
  struct Pair {
    std::uint64_t agreed = 0;
    std::uint64_t conflicts = 0;
    std::uint64_t first_conflict = 0;  // step
    std::uint64_t agreed_since = 0;    // then
    std::uint64_t steps = 0;           // with a conflict
    std::uint64_t last_conflict = 0;   // step
  };
  struct Odd {
    Blame blame;
    std::uint64_t conflicts = 0;
    std::uint64_t first_step = 0;
  };

  // Data sets of a rank.
  struct Read {
    std::set<std::uint64_t> sets;
    std::uint64_t last = 0;
    std::uint64_t turns = 0;  // from one to another
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

  // Ranks that go through the same data sets again and again, each in its own order, read others at
  // a step by design.
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

  // Augmentation gives a worker's own draws of an index other rows, too, on every worker.
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

  // The ranks that read the same, from pair to pair, if they are more than half of all; else none.
  Ranks alike(const Ranks& all) const {
    std::map<std::uint32_t, std::uint32_t> group;  // the lowest rank that is known to be alike
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

  // Of what a rank draws since its first conflict more would conflict, if it were prepared
  // otherwise; or, where it draws nothing that others drew, of what they draw after it. A batch
  // that is changed as a whole conflicts in all its rows.
  bool now_and_then(std::uint32_t rank) const {
    const auto seen = [&](const std::map<std::uint32_t, Pair>& by_rank) {
      const auto at = by_rank.find(rank);
      return at == by_rank.end() ? Pair{} : at->second;
    };
    Pair pair = seen(drew_);
    if (pair.agreed + pair.conflicts == 0) pair = seen(before_others_);
    return pair.steps < kSteps || pair.conflicts < kMostly * pair.agreed_since;
  }

  // Those that conflict with the many that read the same; where there are no such, all that
  // conflict, once draws of one's own have shown that an index has the same row each time.
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
  std::map<std::uint32_t, Pair> own_;            // by rank: draws by the same worker
  std::map<std::uint32_t, Pair> drew_;           // by rank: of what others had drawn
  std::map<std::uint32_t, Pair> before_others_;  // by rank: what others drew after it
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
    .compares = "length and contents of the data set of all ranks",
    .fires = "now; rows after 8 conflicts in 3 steps",
    .consequence =
        "The same index means other samples, or samples prepared otherwise: a sampler that splits "
        "indices reads some twice and others never, and the model learns from both.",
    .cannot_see =
        "Differences that show in no hash: a data set that does not keep its samples, before an "
        "index was drawn by two ranks, in one pass or the next, where a pass's first step had the "
        "indices of all ranks. Rows are compared as the model gets them, so augmentation on the "
        "way "
        "makes them others: of a rank whose rows differ now and then nothing is said.",
    .mistake =
        "files = glob.glob(\"data/*.jsonl\")                # in the order of the file system\n"
        "train, val = random_split(data, [0.9, 0.1])      # without a seed in common",
    .fix =
        "Sort file lists before use and check that every host has the same files: a sampler splits "
        "positions, so lists that differ are read twice in part and not at all in part.",
    .resembles = "pytorch/pytorch#70103",
    .precedence = 90,
    .explains = kDatasetMismatchExplains,
    .fingerprints = kDatasetMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<DatasetMismatch>,
};

}  // namespace presum::checks
