// SPDX-License-Identifier: Apache-2.0
// **duplicate-data.** The sets of rows must be equal. Where the ranks sent the fingerprints of
// whole batches (`batch`: all tensors of the forward pass), these must be equal too, because rows
// come from one tensor, and all batches may share that tensor (a grid, positions). If all ranks
// hold the same rows but no two of their batches are equal, the rows are not samples, and
// overlapping-data does not count them either. So the check misses equal data beside a tensor that
// each rank draws itself (noise drawn before the forward pass) if that holds on all ranks; on some
// ranks it is reported as overlap. Batches that share only some rows are `overlapping-data`.
//
// Not duplicates: rows from different indices (records that are equal in the dataset itself),
// batches in which all rows are equal, and coincidences of a sampler that draws with replacement
// (three steps in a row are not a coincidence). A sampler that repeats samples by its name
// (`RepeatSampler`, `RASampler`), or repeats all samples equally often within a step and within a
// rank, does so on purpose, as do neighbors that share a sampler position.
//
// The cosine similarities within a group that reads the same data are high, and those of the other
// ranks look low beside them: a direction outlier outside the group is an effect of the group.
// Equal gradients count where samples are unknown. If the forward pass is known to draw no random
// numbers, equal data gives equal losses and gradients. If these differ in more than one of four
// steps with equal rows, the hashed rows are not all of the data (a graph or contexts that all
// ranks share, with targets or actions of their own), and the check does not report these ranks. If
// the forward pass may draw, but the generators in use had equal states, they are information.
//
// Input that no loader dealt (episodes, noise) is judged after 6 steps, and the check cannot pass
// earlier. If it is equal in nine of ten steps, it is the same data: critical. Below that it is a
// warning that gives the number of steps, for example for the noise of a GAN whose real batches
// differ. If all ranks share such input in neighboring groups of k, it is information: sequence
// parallelism inside the group.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "checks/data/non_loader_input.h"
#include "checks/data/sampler_mismatch.h"
#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kToSee = NonLoaderInput::kToSee;
constexpr double kRounding = 0.01;   // relative; device differences are far smaller
constexpr double kAlike = 0.9;       // cosine similarity; device differences stay far above it
constexpr std::uint64_t kOneIn = 4;  // steps with different gradients; more contradict equal data
constexpr std::size_t kGroupsMax = 64;
constexpr const char* kNoise =
    "If the program draws this input itself (noise for a generator, timesteps, masks), seed that "
    "generator by rank after the model is built. If not, split its source with a sampler.";
constexpr std::uint64_t kInARow = 3;  // steps before possible coincidence becomes a finding
constexpr const char* kMayBeNoise =
    "Input that no loader deals may be noise that is equal on several ranks now and then.";
constexpr const char* kMayBeChance =
    "Batches of one row, or batches drawn with replacement, may be equal by chance.";

struct SameData {
  std::string groups_of_ranks;
  std::uint64_t groups = 0;
  std::uint64_t distinct_gradients = 0;    // on all ranks
  std::optional<double> rows_equal_share;  // none if samples are unknown

  std::string how() const { return rows_equal_share ? "samples" : "gradients"; }
  static constexpr std::tuple kFields{
      field("groups_of_ranks", &SameData::groups_of_ranks), field("groups", &SameData::groups),
      field("distinct_gradients", &SameData::distinct_gradients), field("how", &SameData::how),
      field("rows_equal_share", &SameData::rows_equal_share)};
};

std::string sentence(const SameData& seen, const Who& who) {
  const char* within = seen.groups == 1 ? "" : " within groups";
  if (seen.rows_equal_share) return fmt::format("{} read the same data{}", who.words(), within);
  return fmt::format("{} had the same gradients{} bit for bit, so they read the same data",
                     who.words(), within);
}

struct SameInputAtTimes {
  std::uint64_t steps_with_the_same_input = 0;
  std::uint64_t of_steps = 0;

  static constexpr std::tuple kFields{
      field("steps_with_the_same_input", &SameInputAtTimes::steps_with_the_same_input),
      field("of_steps", &SameInputAtTimes::of_steps)};
};

std::string sentence(const SameInputAtTimes& /*seen*/, const Who& who) {
  return who.words() + " were given the same input in some steps, and different input in others";
}

struct SameRows {
  std::string rows = "equal, with different losses or gradients";

  static constexpr std::tuple kFields{field("rows", &SameRows::rows)};
};

std::string sentence(const SameRows& /*seen*/, const Who& who) {
  return who.words() + " read the same rows but got different losses or gradients from them";
}

struct SameGradient {
  std::string statistic = "gradient fingerprint";

  static constexpr std::tuple kFields{field("statistic", &SameGradient::statistic)};
};

std::string sentence(const SameGradient& /*seen*/, const Who& who) {
  return who.words() +
         " had the same gradient bit for bit, though they read different samples: the gradient "
         "does not depend on the data, or was copied";
}

// Groups of at least two places with the same value; skips places with value 0.
template <typename ValueAt>
std::vector<Members> equal_groups(std::size_t count, const ValueAt& value_at) {
  std::unordered_map<std::uint64_t, std::size_t> group;  // by value
  std::vector<Members> out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t value = value_at(i);
    if (value == 0) continue;
    const auto [at, fresh] = group.try_emplace(value, out.size());
    if (fresh) out.emplace_back();
    out[at->second].push_back(i);
  }
  std::erase_if(out, [](const Members& members) { return members.size() < 2; });
  return out;
}

// Splits by the fingerprint of the whole batch, if all members sent it: equal rows alone may come
// from a tensor that all batches share.
std::vector<Members> by_whole_batch(const StepContext& context, Members members) {
  const auto whole = [&](std::size_t i) {
    return context.record.workers[i].fingerprint_of(FingerprintKind::kBatch);
  };
  if (std::ranges::any_of(members, [&](auto i) { return whole(i) == nullptr; })) {
    return {std::move(members)};
  }
  std::map<std::uint64_t, Members> groups;
  for (const std::size_t i : members) groups[*whole(i)].push_back(i);
  std::vector<Members> out;
  out.reserve(groups.size());
  for (auto& [batch, group] : groups) out.push_back(std::move(group));
  return out;
}

// Equal rows at different dataset positions are records that are equal there, not repeated reads.
void drop_equal_records(const StepContext& context, Members& members) {
  const WorkerRecord& first = context.record.workers[members.front()];
  std::erase_if(members,
                [&](std::size_t i) { return disjoint_indices(first, context.record.workers[i]); });
}

double share_of_rows(const StepContext& context, const std::vector<Members>& groups) {
  double all = 0;
  double equal = 0;
  for (const Batch& b : context.batches) all += static_cast<double>(b.rows);
  for (const Members& members : groups) {
    for (const std::size_t i : members) equal += static_cast<double>(context.batches[i].rows);
  }
  return all > 0 ? equal / all : 0;
}

double cosine_of(const StepRecord& record, std::size_t i, std::size_t j) {
  if (i > j) std::swap(i, j);
  const std::size_t place = i * record.workers.size() - i * (i + 1) / 2 + j - i - 1;
  return place < record.cosines.size() ? record.cosines[place] : kNaN;
}

bool apart(double a, double b) {  // false for NaN
  return std::abs(a - b) > kRounding * std::max(std::abs(a), std::abs(b));
}

// If the forward pass draws no random numbers, equal data gives equal losses and gradients. If
// these differ, the hashed rows are not all of the data (a grid, a graph that every sample shares,
// contexts for which each rank draws its own actions).
class Contradictions {
 public:
  void watch(const StepRecord& record) {
    for (const WorkerRecord& w : record.workers) {
      const std::uint64_t* draws = w.fingerprint_of(FingerprintKind::kForwardDraws);
      if (draws != nullptr) draws_[w.rank] = *draws;
      follow_generators(w);
    }
  }

  void follow_generators(const WorkerRecord& w) {
    States now{};
    for (std::size_t i = 0; i < now.size(); ++i) now[i] = value_of(w, kGenerators[i]);
    const States* before = states_.find(w.rank);
    for (std::size_t i = 0; before != nullptr && i < now.size(); ++i) {
      if (now[i] != (*before)[i]) moves_.set(i);
    }
    states_[w.rank] = now;
  }

  enum class Rows : std::uint8_t {
    kAllOfTheData,
    kNotAll,       // probably: with equal rows and draws the gradients differed
    kSurelyNotAll  // the same, and the forward passes draw nothing
  };

  // Members with equal rows. A few contradictions may be chance: the share over all steps decides.
  Rows see(const StepContext& context, const Members& members) {
    const Ranks ranks = ranks_of(context, members);
    if (groups_.size() >= kGroupsMax && !groups_.contains(ranks)) groups_.clear();
    Seen& seen = groups_[ranks];
    ++seen.equal;
    seen.contradicted += std::all_of(members.begin() + 1, members.end(), [&](std::size_t i) {
      return contradicts(context.record, members.front(), i);
    });
    if (kOneIn * seen.contradicted <= seen.equal) return Rows::kAllOfTheData;
    const bool sure = std::all_of(members.begin() + 1, members.end(), [&](std::size_t i) {
      return draws_nothing(context.record.workers[i]);
    });
    return sure ? Rows::kSurelyNotAll : Rows::kNotAll;
  }

 private:
  struct Seen {
    std::uint64_t equal = 0;
    std::uint64_t contradicted = 0;
  };

  bool contradicts(const StepRecord& record, std::size_t first, std::size_t i) const {
    const WorkerRecord& a = record.workers[first];
    const WorkerRecord& b = record.workers[i];
    if (!draws_nothing(b) && !draws_alike(a, b)) return false;
    return apart(a.loss, b.loss) || apart(a.grad_norm, b.grad_norm) ||
           cosine_of(record, first, i) < kAlike;
  }

  bool draws_nothing(const WorkerRecord& w) const {
    const std::uint64_t* draws = draws_.find(w.rank);
    return draws != nullptr && *draws == 0 &&
           real_of(w, FingerprintKind::kDropout) == 0;  // NaN: unknown
  }

  // All generators that are in use had the same state.
  bool draws_alike(const WorkerRecord& a, const WorkerRecord& b) const {
    if (a.fingerprint_of(FingerprintKind::kRngTorch) == nullptr) return false;
    for (std::size_t i = 0; i < kGenerators.size(); ++i) {
      if (moves_[i] && value_of(a, kGenerators[i]) != value_of(b, kGenerators[i])) return false;
    }
    return true;
  }

  static constexpr std::array kGenerators = {
      FingerprintKind::kRngTorch, FingerprintKind::kRngDevice, FingerprintKind::kRngNumpy,
      FingerprintKind::kRngPython};
  using States = std::array<std::uint64_t, kGenerators.size()>;

  PerWorker<States> states_;                  // of its generators, at the previous record
  std::bitset<kGenerators.size()> moves_{1};  // generators whose state moved; torch's always counts
  PerWorker<std::uint64_t> draws_;            // of its forward pass, by rank
  std::map<Ranks, Seen> groups_;
};

// Neighboring ranks that share input in groups of k: sequence or context parallelism.
bool in_blocks(const StepContext& context, const std::vector<Members>& groups) {
  if (groups.size() < 2) return false;
  const std::size_t each = context.record.workers_expected / groups.size();
  return each * groups.size() == context.record.workers_expected &&
         std::ranges::all_of(groups, [&](const Members& members) {
           const Ranks ranks = ranks_of(context, members);
           return ranks.size() == each && ranks.front() % each == 0 &&
                  ranks.back() - ranks.front() == each - 1;
         });
}

// Whether one step with equal batches on two ranks rules out chance.
bool tells_at_once(const StepContext& context) {
  return !draws_with_replacement(context.roster) &&
         std::ranges::any_of(context.batches,
                             [](const Batch& b) { return b.known && b.distinct > 1; });
}

bool samples_known(const StepContext& context) {
  return std::ranges::any_of(context.batches, &Batch::known);
}

class Duplicates final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const bool gradients = std::ranges::any_of(
        context.record.workers, [](const WorkerRecord& w) { return w.fingerprint != 0; });
    if (!gradients && !samples_known(context)) {
      return log.cannot(&kDuplicateData, "Neither samples nor gradients have fingerprints.");
    }
    log.checked(&kDuplicateData);
    samples_.next_step();
    gradients_.next_step();
    beside_.next_step();
    Found found;
    drawn_input_.watch(context);
    contradictions_.watch(context.record);
    if (!repeats_by_design(context.record, context.roster) && !shares_places(context.record)) {
      group_rows(context, found);
      await_certainty(context, found, log);
    }
    group_gradients(context, found);
    if (in_blocks(context, found.drawn)) {
      log.add(shared_in_groups(&kDuplicateData, context, found.drawn.front().size()), 1);
    } else if (found.drawn.size() < 2 || context.complete()) {
      take_drawn(context, found);
    }
    if (!found.rows.empty() || !found.gradients.empty()) report(context, found, log);
    for (const Members& members : found.at_times) report_at_times(context, members, log);
    for (const Members& members : found.unlike) report_unlike(context, members, log);
    for (const Members& members : found.same_rows) report_same_rows(context, members, log);
  }

 private:
  struct Found {
    std::vector<Members> rows;       // groups that read the same samples
    std::vector<Members> drawn;      // groups with the same non-loader input in all steps
    std::vector<Members> at_times;   // groups with the same non-loader input in some steps
    std::vector<Members> gradients;  // groups with the same gradient and unknown samples
    std::vector<Members> unlike;     // groups with the same gradient from different samples
    std::vector<Members> same_rows;  // groups with the same rows and different gradients
    bool drawn_only = true;          // rows: none of them came from a loader
    std::uint64_t undecided = 0;     // records until equal rows are no longer possible chance
    std::uint64_t first_step = ~std::uint64_t{0};  // at which drawn input was first equal
  };

  void group_rows(const StepContext& context, Found& found) {
    auto groups = equal_groups(context.workers(), [&](std::size_t i) {
      const Batch& b = context.batches[i];
      return b.known && !b.degenerate() ? b.set | 1 : 0;
    });
    for (Members& same_rows : groups) {
      for (Members& members : by_whole_batch(context, std::move(same_rows))) {
        drop_equal_records(context, members);
        if (members.size() > 1) add_rows(context, std::move(members), found);
      }
    }
  }

  void group_gradients(const StepContext& context, Found& found) {
    auto groups = equal_groups(context.workers(), [&](std::size_t i) {
      const WorkerRecord& w = context.record.workers[i];
      const bool own = has_gradient(w) && !context.late.adds_no_data(w);
      return own ? w.fingerprint : 0;
    });
    for (Members& members : groups) {
      const Batch& first = context.batches[members.front()];
      const auto known = [&](std::size_t i) { return context.batches[i].known; };
      const auto all = [&](bool same) {
        return first.known && std::all_of(members.begin() + 1, members.end(), [&](std::size_t i) {
                 return known(i) && (context.batches[i].set == first.set) == same;
               });
      };
      const bool unknown = std::ranges::none_of(members, known);
      const bool unlike = all(false);
      const std::uint64_t gradient = context.record.workers[members.front()].fingerprint;
      // If a program draws its input itself, positions of loader batches beside it prove nothing.
      const bool lasting = all(true) && found.rows.empty() && found.drawn.empty() &&
                           found.at_times.empty() &&
                           beside_.extend(ranks_of(context, members), gradient) >= kToSee;
      if (unknown || lasting) {
        found.gradients.push_back(std::move(members));
      } else if (unlike && gradients_.extend(ranks_of(context, members), gradient) >= kInARow) {
        found.unlike.push_back(std::move(members));
      }
    }
  }

  // Two or more rows do not match by chance, unless samples are drawn with replacement.
  bool certain(const StepContext& context, const Members& members, Found& found) {
    const Batch& batch = context.batches[members.front()];
    const std::uint64_t length =
        samples_.extend(ranks_of(context, members), content_of(context, members.front()));
    if (length >= kInARow || (batch.distinct > 1 && !draws_with_replacement(context.roster))) {
      return true;
    }
    found.undecided = std::max(found.undecided, kInARow - length);
    return false;
  }

  void add_rows(const StepContext& context, Members members, Found& found) {
    const NonLoaderInput::Group* drawn = drawn_input_.equal(context, members);
    const Contradictions::Rows rows = contradictions_.see(context, members);
    const bool contradicted = rows != Contradictions::Rows::kAllOfTheData;
    if (rows == Contradictions::Rows::kNotAll) found.same_rows.push_back(members);
    if (drawn == nullptr) {
      if (!contradicted && certain(context, members, found)) {
        found.rows.push_back(std::move(members));
      }
      return;
    }
    if (drawn->known < kToSee || contradicted) return;
    if (10 * drawn->equal < drawn->known) return;  // a probe batch that returns now and then
    const bool always = 10 * drawn->equal >= 9 * drawn->known;
    (always ? found.drawn : found.at_times).push_back(std::move(members));
  }

  static void report(const StepContext& context, const Found& found, SignalLog& log) {
    Blame blame;
    SameData seen{.distinct_gradients = context.record.distinct_gradients};
    for (const auto* list : {&found.rows, &found.gradients}) {
      for (const Members& members : *list) {
        const Ranks ranks = ranks_of(context, members);
        seen.groups += blame.ranks.empty() || !std::ranges::includes(blame.ranks, ranks) ? 1 : 0;
        std::string& text = seen.groups_of_ranks;
        if (text.size() < 200) text += (text.empty() ? "" : "; ") + rank_ranges(ranks);
        blame.ranks = unite(blame.ranks, ranks);
      }
    }
    blame.everyone = blame.ranks.size() == context.workers();
    const bool by_rows = !found.rows.empty();
    if (by_rows) seen.rows_equal_share = share_of_rows(context, found.rows);
    Signal signal = sighting(&kDuplicateData, context, std::move(blame), by_rows ? 0.99 : 0.95,
                             std::move(seen));
    signal.first_step = std::min(signal.first_step, found.first_step);
    const bool dealt = split(context.record, FingerprintKind::kDataClass).known > 0;
    if (by_rows ? found.drawn_only : dealt) signal.remedy = kNoise;
    log.add(std::move(signal), 1);
  }

  // Input that may be equal by chance, or only now and then, needs this many records.
  void await_certainty(const StepContext& context, const Found& found, SignalLog& log) const {
    std::size_t undealt = 0;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      undealt += context.batches[i].known && !is_dealt(context.record.workers[i]);
    }
    if (undealt > 1) {
      log.needs_records(&kDuplicateData, kToSee, kMayBeNoise);
      log.needs(&kDuplicateData, drawn_input_.undecided(), kMayBeNoise);
    } else if (samples_known(context)) {
      if (!tells_at_once(context)) log.needs_records(&kDuplicateData, kInARow, kMayBeChance);
      log.needs(&kDuplicateData, found.undecided, kMayBeChance);
    }
  }

  void take_drawn(const StepContext& context, Found& found) {
    found.drawn_only = found.rows.empty();
    for (Members& members : found.drawn) {
      const NonLoaderInput::Group* group = drawn_input_.find(ranks_of(context, members));
      if (group != nullptr) found.first_step = std::min(found.first_step, group->first_step);
      found.rows.push_back(std::move(members));
    }
  }

  void report_at_times(const StepContext& context, const Members& members, SignalLog& log) const {
    Blame blame{ranks_of(context, members), members.size() == context.workers()};
    const NonLoaderInput::Group& input = *drawn_input_.find(blame.ranks);
    Signal signal = sighting(
        &kDuplicateData, context, std::move(blame), 0.9,
        SameInputAtTimes{.steps_with_the_same_input = input.equal, .of_steps = input.known});
    signal.first_step = input.first_step;
    signal.severity = Severity::kWarning;
    signal.remedy = kNoise;
    log.add(std::move(signal), 1);
  }

  static void report_same_rows(const StepContext& context, const Members& members, SignalLog& log) {
    Blame blame{ranks_of(context, members), members.size() == context.workers()};
    Signal signal = sighting(&kDuplicateData, context, std::move(blame), 0.5, SameRows{});
    signal.severity = Severity::kInfo;
    signal.remedy =
        "Nothing, if these rows are only a part of what a rank trains on (a graph, contexts). If "
        "they are everything, split the data with a sampler.";
    log.add(std::move(signal), kAllSteps);
  }

  static void report_unlike(const StepContext& context, const Members& members, SignalLog& log) {
    Blame blame{ranks_of(context, members), members.size() == context.workers()};
    log.add(sighting(&kPairTooSimilar, context, std::move(blame), 0.9, SameGradient{}), 1);
  }

  StreaksBy<Ranks> samples_;
  StreaksBy<Ranks> gradients_;
  StreaksBy<Ranks> beside_;  // equal gradients and rows, dealt from different positions
  NonLoaderInput drawn_input_;
  Contradictions contradictions_;
};

}  // namespace

constexpr FingerprintKind kDuplicateDataKinds[] = {FingerprintKind::kBatch};
constexpr Check kDuplicateDataExplains[] = {&kRankOutlier,     &kPairTooSimilar, &kTooConsistent,
                                            &kLossEvent,       &kEpochNotSet,    &kSamplerMismatch,
                                            &kOverlappingData, &kDataCoverage,   &kSharedRng};
constinit const CheckInfo kDuplicateData{
    .id = "duplicate-data",
    .severity = Severity::kCritical,
    .compares = "whether ranks read the same samples at a step",
    .fires = "immediately; batches of one row after 3 steps; without a loader after 6",
    .consequence =
        "Ranks that read the same data do the work of one: the effective batch is smaller than you "
        "think.",
    .cannot_see = "Equal samples in batches that differ in other rows: that is overlapping-data.",
    .mistake =
        "loader = DataLoader(data, batch_size=8, shuffle=True)  # and the same seed on every "
        "rank\nsampler = DistributedSampler(data, rank=0)              # the same rank everywhere",
    .fix =
        "Shard the data by rank: use a DistributedSampler (or split_dataset_by_node) with this "
        "job's rank and world size.",
    .resembles = "huggingface/datasets#7868",
    .precedence = 100,
    .explains = kDuplicateDataExplains,
    .fingerprints = kDuplicateDataKinds,
    .compares_ranks = true,
    .outvotes = true,
    .make = make<Duplicates>,
};

}  // namespace presum::checks
