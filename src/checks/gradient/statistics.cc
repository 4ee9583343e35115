// SPDX-License-Identifier: Apache-2.0
// **rank-outlier, pair-too-similar, too-consistent, loss-event.** See [detectors.md](detectors.md)
// for rates and delays. `first_step` is where the evidence began to grow, `certain_step` where it
// was first sufficient. For a statistic of one rank, `last_step` is the last step at which the rank
// still deviated; for all others it is the step of the last alarm.
//
// If every rank reads its own samples again and again (one overfitted batch, shards that are never
// reshuffled), lasting differences are not a fault: they are one finding, as information. The same
// holds if batches are used several times in a row, until alarms were raised twice as often as each
// batch is used, and for a largest gradient element that is the only deviation and less than 1.5
// standard deviations above the others'. It does not hold for an outlier of 6 deviations or more,
// for single events, and for different token counts. Samples are recognized by their rows, up to
// 65,536 of them; beyond that the rule is off.
//
// If a rank has at least 1.2 times the others' targets (or samples), or at most 1/1.2, and losses
// are weighted by them, the noise of fewer targets explains a norm up to the square root of that
// ratio times as large, and a cosine similarity as much smaller: these are not reported.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/hash.h"
#include "checks/data/token_shares.h"
#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"
#include "checks/gradient/deviation.h"
#include "checks/gradient/other_sizes.h"
#include "detect/statistics.h"

namespace presum::checks {
namespace {

using detect::Alarm;
using detect::Statistic;

constexpr double kAtAlarm = 0.5;  // confidence; merge.cc adds later evidence
constexpr double kFar = 6;        // standard deviations
constexpr const char* kStatic =
    "Nothing, if this is intended (one batch is overfitted, every rank has its own shard). If not, "
    "reshuffle the samples in every pass: a DistributedSampler with `set_epoch`.";
constexpr double kFromTokens = 0.7;  // confidence
constexpr const char* kOtherTokens =
    "Compare the labels of one batch on these ranks with those of the others: are prompts and "
    "padding masked in the same way, and do the batches have the same lengths?";
constexpr std::size_t kRowsKnown = 65536;
constexpr double kPeakOfData = 1.5;  // standard deviations: sparse samples differ as much
constexpr const char* kOtherPeaks =
    "Nothing, if ranks explore or read data of different kinds: their losses, norms and directions "
    "do not differ.";
constexpr double kReplays = 0.25;     // of recent records; above, batches are replayed
constexpr double kMostReplays = 0.9;  // cap on that share
constexpr double kRecent = 16;
constexpr double kBesideUse = 2;  // alarms per use of a batch that are expected
constexpr std::size_t kAlarms = 4096;
constexpr std::uint64_t kOwnAgain = 5;  // records of nothing but repeated own samples

Check check_of(const Alarm& alarm) {
  if (alarm.kind == Alarm::Kind::kPairSimilar) return &kPairTooSimilar;
  if (alarm.kind == Alarm::Kind::kTooConsistent) return &kTooConsistent;
  if (alarm.kind == Alarm::Kind::kEvent) return &kLossEvent;
  return alarm.statistic == Statistic::kTokens ? &kTokenImbalance : &kRankOutlier;
}

Blame blame_of(const StepContext& context, const Alarm& alarm) {
  if (alarm.replicas.empty()) return of_all(context.record);
  Blame blame;
  for (const std::uint32_t replica : alarm.replicas) {
    insert(blame.ranks, context.roster.rank_of(replica));
  }
  return blame;
}

Deviation deviation(const StepContext& context, const Alarm& alarm) {
  const bool event = alarm.kind == Alarm::Kind::kEvent;
  Deviation out;
  out.kind = alarm.kind;
  out.of = alarm.statistic;
  out.high = alarm.high;
  out.of_all = alarm.replicas.empty();
  out.log10_evidence = event ? kNaN : alarm.evidence;
  out.effect_sd = alarm.effect;
  out.ratio = alarm.ratio;
  if (alarm.group != 0) out.layer = context.roster.layer_name(alarm.group);
  if (alarm.kind == Alarm::Kind::kOutlier && alarm.replicas.size() == 2) {
    out.of_rank = context.roster.rank_of(alarm.replicas[0]);
    out.beside_rank = context.roster.rank_of(alarm.replicas[1]);
  }
  return out;
}

std::string alike_suspects(std::span<const Signal* const> /*signals*/) {
  return "the same samples, or one seed for noise and augmentation";
}

bool some_cosine(const StepRecord& record) {
  return record.workers.size() > 2 &&
         std::ranges::any_of(record.cosines, [](float cosine) { return std::isfinite(cosine); });
}

constexpr const char* kUnlikeData =
    "They read different samples. Look for what these ranks share and the others do not: labels, "
    "preprocessing, a prompt or domain, a seed for what they draw. Two such pairs are two camps, "
    "and one of them may be wrong.";
constexpr const char* kAlikeByNature =
    "Nothing, if samples are similar by nature: the ranks read different ones.";
constexpr std::uint64_t kNoEvents = 100;  // steps, as docs/detectors.md says for events
constexpr const char* kTooEarly =
    "Single steps are judged from the 101st on; before that, the normal range is unknown.";

const char* no_event_reason(const StepRecord& record) {
  const auto known = std::ranges::count_if(
      record.workers, [](const WorkerRecord& w) { return std::isfinite(w.loss); });
  if (known > 1) return "All ranks had equal losses so far.";
  return known == 1 ? "Only one rank reported a loss so far." : "No losses were reported so far.";
}

bool all_distinct(std::span<const Batch> batches) {
  std::set<std::uint64_t> seen;
  return std::ranges::all_of(batches, [&](const Batch& b) { return seen.insert(b.set).second; });
}

// Whether every rank reads the same samples again and again, and only its own: one overfitted
// batch, or shards that are never reshuffled. Then ranks differ permanently without a fault. Knows
// up to 65,536 rows; with more it says no.
class StaticData {
 public:
  void see(const StepContext& context) {
    follow_replays(context);
    if (lost_) return;
    bool own_again = true;
    for (const WorkerRecord& w : context.record.workers) {
      own_again = own_again && !w.samples.hashes.empty();
      for (const std::uint64_t row : w.samples.hashes) {
        const auto [at, fresh] = reader_.try_emplace(row, w.replica);
        own_again = own_again && !fresh && at->second == w.replica;
      }
    }
    own_again_.see(own_again, context.record.step);
    lost_ = reader_.size() > kRowsKnown;
    if (lost_) reader_.clear();
  }

  bool is_static() const { return !lost_ && own_again_.length >= kOwnAgain; }
  // How often a batch is used, on average; 1 if hardly any is reused.
  double times_used() const {
    return replays_ < kReplays ? 1 : 1 / (1 - std::fmin(replays_, kMostReplays));
  }

 private:
  // The position that the loader dealt, or the content: a program may perturb a reused batch.
  static std::uint64_t place_of_batch(const WorkerRecord& w, const Batch& batch) {
    const std::uint64_t* place = w.fingerprint_of(FingerprintKind::kDataBatch);
    if (place != nullptr) {
      return mix64(*place + mix64(value_of(w, FingerprintKind::kDataPass)) + data_of(w));
    }
    return batch.known && !batch.degenerate() ? batch.set : 0;
  }

  // All ranks compute on their previous step's batches again.
  void follow_replays(const StepContext& context) {
    bool replays = !context.batches.empty();
    for (std::size_t i = 0; i < context.batches.size(); ++i) {
      const std::uint64_t now = place_of_batch(context.record.workers[i], context.batches[i]);
      std::uint64_t& last = last_[context.record.workers[i].replica];
      const bool told = context.record.workers[i].fingerprint_of(FingerprintKind::kBatchAgain);
      replays = replays && (told || (now != 0 && now == last));
      if (!told) last = now;
    }
    replays_ += ((replays ? 1 : 0) - replays_) / kRecent;
  }

  PerWorker<std::uint64_t> last_;  // the previous batch
  double replays_ = 0;             // share of recent records that are replays
  std::unordered_map<std::uint64_t, std::uint32_t> reader_;  // replica by row
  Streak own_again_;
  bool lost_ = false;
};

class Statistics final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    cover(context, log);
    data_.see(context);
    tokens_.see(context.record, [](const WorkerRecord& w) { return w.tokens; });
    sizes_.see(context.record);
    gradients_.see(context.record);
    for (const Alarm& alarm : context.alarms.raised) report(context, alarm, log);
    for (const Alarm& alarm : context.alarms.lasting) {
      const Ranks ranks = blame_of(context, alarm).ranks;
      log.prolong(check_of(alarm), key_of(deviation(context, alarm)), ranks, context.record.step);
    }
  }

 private:
  void cover(const StepContext& context, SignalLog& log) {
    const auto watched = [&](Statistic s) {
      return context.alarms.watched[static_cast<std::size_t>(s)] > 0;
    };
    const auto note = [&](Check check, bool seen, const char* why) {
      seen ? log.checked(check) : log.cannot(check, why);
    };
    note(&kRankOutlier,
         watched(Statistic::kLoss) || watched(Statistic::kNorm) || watched(Statistic::kDirection),
         "No losses, norms or directions were comparable so far.");
    note(&kPairTooSimilar, watched(Statistic::kPair),
         some_cosine(context.record)
             ? "All pairs had equal cosine similarities so far."
             : "No pairwise cosine similarities: they need three ranks and sketches.");
    compared_ += watched(Statistic::kMicroBatch) && detect::weigh_alike(context.record) ? 1 : 0;
    note(&kTooConsistent, compared_ > 0,
         watched(Statistic::kMicroBatch)
             ? "The micro-batches of a step differ in size, and the weights of their losses are "
               "unknown."
             : "No losses of micro-batches, with two or more per rank, were comparable so far.");
    losses_ += watched(Statistic::kLoss) ? 1 : 0;
    if (losses_ > 0 && losses_ <= kNoEvents) return log.cannot(&kLossEvent, kTooEarly);
    note(&kLossEvent, watched(Statistic::kLoss), no_event_reason(context.record));
  }

  void report(const StepContext& context, const Alarm& alarm, SignalLog& log) {
    const bool of_ranks = alarm.kind == Alarm::Kind::kOutlier && !alarm.replicas.empty();
    if (of_ranks && sizes_.explain(alarm)) return;
    Deviation seen = deviation(context, alarm);
    if (of_ranks) {
      static_cast<Compared&>(seen) = gradients_.compare(alarm.replicas.front(), alarm.first_step);
      seen.layer_alone = alarm.group != 0 && seen.only_layer == alarm.group;
      if (seen.beside_rank) {
        seen.scales_beside = gradients_.compare(alarm.replicas.back(), alarm.first_step).scales;
      }
    }
    seen.of_static_data = expected(alarm, times_raised(context, alarm));
    Signal signal = sighting(check_of(alarm), alarm.step, blame_of(context, alarm), kAtAlarm, seen);
    if (signal.ranks.empty()) return;
    signal.first_step = std::min(alarm.first_step, alarm.step);
    signal.certain_step = alarm.step;
    signal.workers = context.record.workers_expected;
    signal.turned_away = alarm.kind == Alarm::Kind::kOutlier &&
                         alarm.statistic == Statistic::kDirection && !seen.of_static_data &&
                         !signal.everyone && !alarm.high;
    signal.derived = alarm.statistic == Statistic::kResidual;
    signal.effect = alarm.kind == Alarm::Kind::kEvent ? 0 : alarm.effect;
    const bool little = alarm.high && std::abs(alarm.effect) < kPeakOfData;
    if (alarm.statistic == Statistic::kPeak && little) {
      signal.severity = Severity::kInfo;
      signal.remedy = kOtherPeaks;
    }
    if (signal.check == &kTokenImbalance && signal.everyone) signal.severity = Severity::kInfo;
    const bool samples = std::ranges::all_of(context.batches, &Batch::known);
    if (signal.check == &kPairTooSimilar && samples) signal.remedy = kUnlikeData;
    if (signal.check == &kTooConsistent && samples && all_distinct(context.batches)) {
      signal.severity = Severity::kInfo;
      signal.remedy = kAlikeByNature;
    }
    if (seen.of_static_data) {
      signal.severity = Severity::kInfo;
      signal.remedy = kStatic;
      return log.add(std::move(signal), kAllSteps);
    }
    if (of_ranks) report_tokens(alarm, signal, log);
    log.add(std::move(signal));
  }

  // A rank that stands out and has different token counts: the token counts are the cause.
  void report_tokens(const Alarm& alarm, const Signal& outlier, SignalLog& log) const {
    const auto ratio = tokens_.apart(alarm.replicas.front());
    if (!ratio) return;
    OtherTokens seen{.tokens_ratio = *ratio};
    if (outlier.ranks.size() == 2) {
      seen.of_rank = outlier.ranks.front();
      seen.beside_rank = outlier.ranks.back();
    }
    Signal signal =
        sighting(&kTokenImbalance, alarm.step, {outlier.ranks, false}, kFromTokens, seen);
    signal.first_step = outlier.first_step;
    signal.certain_step = outlier.certain_step;
    signal.remedy = kOtherTokens;
    log.add(std::move(signal));
  }

  // Static data makes differences permanent. A batch that is used m times counts m times but is one
  // sample, so an alarm from it is worth 1/m. Far outliers and single events are never expected.
  bool expected(const Alarm& alarm, double raised) const {
    const bool near = alarm.kind != Alarm::Kind::kOutlier || std::abs(alarm.effect) < kFar;
    const double used = data_.times_used();
    return (data_.is_static() || (used > 1 && raised <= kBesideUse * used)) && near &&
           alarm.kind != Alarm::Kind::kEvent && alarm.statistic != Statistic::kTokens;
  }

  double times_raised(const StepContext& context, const Alarm& alarm) {
    if (raised_.size() >= kAlarms) raised_.clear();
    return ++raised_[{check_of(alarm), blame_of(context, alarm).ranks, alarm.statistic,
                      alarm.high}];
  }

  StaticData data_;
  std::map<std::tuple<Check, Ranks, Statistic, bool>, double> raised_;
  TokenShares tokens_;
  OtherSizes sizes_;
  RecentGradients gradients_;
  std::uint64_t losses_ = 0;    // steps in which losses were watched
  std::uint64_t compared_ = 0;  // steps in which micro-batches were compared
};

}  // namespace

constexpr Check kRankOutlierExplains[] = {&kPairTooSimilar, &kTooConsistent, &kLossEvent};
constinit const CheckInfo kRankOutlier{
    .id = "rank-outlier",
    .severity = Severity::kWarning,
    .compares = "each rank's loss, norm and direction, against the others'",
    .fires = "with the alarm",
    .consequence = "Something differs on this rank, and it enters every sum.",
    .cannot_see =
        "Differences that come and go within the others' scatter. Small differences take longer to "
        "show.",
    .mistake =
        "x = (x - mean) / std            # missing on this rank\nloss.backward()                 # "
        "not divided by the accumulation steps on this rank",
    .fix =
        "Compare the data, code path and hardware of the named ranks with the others'. No more "
        "specific check explains the difference.",
    .precedence = 320,
    .explains = kRankOutlierExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .of_a_step = true,
    .sets_apart = true,
    .suspects = outlier_suspects,
    .make = make<Statistics>,
};

constexpr Check kPairTooSimilarExplains[] = {&kTooConsistent, &kRankOutlier};
constinit const CheckInfo kPairTooSimilar{
    .id = "pair-too-similar",
    .severity = Severity::kWarning,
    .compares = "the cosine similarities of all pairs of ranks",
    .fires = "with the alarm; after 3 records",
    .consequence = "Two ranks that compute nearly the same gradient do the work of one.",
    .cannot_see = "A job of two ranks: a pair is compared with other pairs.",
    .mistake = "torch.manual_seed(0)  # on two ranks, and data drawn from that generator",
    .fix =
        "Check whether these ranks read the same data; turn on the data fingerprints to see it "
        "directly.",
    .precedence = 330,
    .explains = kPairTooSimilarExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .left_alike = true,
    .may_be_design = true,
    .suspects = alike_suspects,
    .make = make<Statistics>,
};

constexpr Check kTooConsistentExplains[] = {&kPairTooSimilar};
constinit const CheckInfo kTooConsistent{
    .id = "too-consistent",
    .severity = Severity::kWarning,
    .compares = "whether ranks differ as much as their micro-batches do",
    .fires = "with the alarm",
    .consequence = "The mean over ranks is no better than the gradient of one of them.",
    .cannot_see =
        "Runs with one micro-batch per step, or with micro-batches of different sizes whose "
        "weights are unknown.",
    .mistake = "for batch in load_dataset(path, streaming=True):  # no split_dataset_by_node",
    .fix =
        "Check whether all ranks read the same data: their average is then no better than one of "
        "them.",
    .resembles = "huggingface/datasets#5360",
    .precedence = 340,
    .explains = kTooConsistentExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .may_be_design = true,
    .suspects = alike_suspects,
    .make = make<Statistics>,
};

constinit const CheckInfo kLossEvent{
    .id = "loss-event",
    .severity = Severity::kInfo,
    .compares = "single steps far outside everything seen before",
    .fires = "with the alarm",
    .consequence = "One batch moved the sum of this step far off.",
    .cannot_see = "Events of all ranks at once: the ranks do not differ then.",
    .mistake = "text = record[\"text\"]  # one record of unusual length, language or encoding",
    .fix = "Check the named rank's batch of that step.",
    .resembles = "WeatherGenerator#2724",
    .precedence = 350,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .of_a_step = true,
    .make = make<Statistics>,
};

}  // namespace presum::checks
