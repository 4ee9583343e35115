// SPDX-License-Identifier: Apache-2.0
// **token-imbalance.** For a worker that stands out in anything: where its target tokens are 1.2
// times the others' or more (or as much fewer) and on that side in four of five steps, the tokens
// are named as the cause. For all workers: the mean coefficient of variation of token counts is
// above 0.2 while weights do not follow the counts. `loss_gap` is the mean distance between the
// mean of means and the mean over tokens. Exchangeable workers cannot show it otherwise. Numbers of
// micro-batches, or else of samples, that differ between ranks in the same way in 5 records in a
// row are told as they are; samples are information where the program's weights follow them.
//
// **rank-outlier, pair-too-similar, too-consistent, loss-event.** See
// [detectors.md](detectors.md) for rates and delays. `first_step` is where evidence began to grow,
// `alarm_step` where it was enough for the first time. `last_step` of a worker's own statistic is
// the last step at which it still deviated, of all others that of the last alarm. Where every
// worker reads again and again samples of its own that it has read before (one batch that is
// overfitted, shards that are never dealt anew), lasting differences are no fault: they are one
// finding, information. Not so an outlier of 6 deviations or more, single events, and other token
// counts. Samples are known by their rows, up to 65,536 of them; beyond that the rule is off.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>

#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

using detect::Alarm;
using detect::Statistic;

constexpr double kAtAlarm = 0.5;  // confidence; merge.cc adds what came after
constexpr double kFar = 6;        // standard deviations
constexpr std::uint64_t kOfStaticData = 1;
constexpr std::uint64_t kOfOutlier = 2;
constexpr double kFromTokens = 0.7;  // confidence
constexpr const char* kOtherTokens =
    "Compare the labels of one batch on these ranks with those of the others: are prompts and "
    "padding masked alike, and are batches of the same lengths?";
constexpr const char* kStatic =
    "Nothing, where that is meant (one batch is overfitted, every rank has a shard of its own). "
    "Else deal the samples anew in every pass: a DistributedSampler with `set_epoch`.";
constexpr std::size_t kRowsKnown = 65536;
constexpr std::uint64_t kShareSteps = 10;
constexpr double kApart = 0.1823;  // log 1.2
constexpr double kOfSteps = 0.8;
constexpr std::uint64_t kTokenSteps = 20;
constexpr double kTokenVariation = 0.2;

struct Words {
  Statistic statistic;
  const char* name;  // in evidence
  const char* of;    // in a title
};

constexpr Words kStatisticWords[] = {
    {Statistic::kLoss, "loss", "loss"},
    {Statistic::kNorm, "norm", "gradient norm"},
    {Statistic::kDirection, "direction", "cosine with the other workers' gradients"},
    {Statistic::kPeak, "peak", "largest gradient element relative to the norm"},
    {Statistic::kResidual, "residual", "gradient norm for its loss"},
    {Statistic::kTokens, "tokens", "token count"},
    {Statistic::kGroupNorm, "group_norm", "gradient norm in one layer"},
    {Statistic::kPair, "direction", "gradient direction"},
    {Statistic::kMicroBatch, "micro_batch_loss", "spread of micro-batch losses"},
    {Statistic::kOwnTime, "time", "own time"},
    {Statistic::kQueuedTime, "time", "own time"},
};

static_assert(std::size(kStatisticWords) == static_cast<std::size_t>(Statistic::kQueuedTime) + 1);

const Words& words_of(Statistic statistic) {
  return *std::ranges::find(kStatisticWords, statistic, &Words::statistic);
}

Check check_of(const Alarm& alarm) {
  if (alarm.kind == Alarm::Kind::kPairSimilar) return &kPairTooSimilar;
  if (alarm.kind == Alarm::Kind::kTooConsistent) return &kTooConsistent;
  if (alarm.kind == Alarm::Kind::kEvent) return &kLossEvent;
  return alarm.statistic == Statistic::kTokens ? &kTokenImbalance : &kRankOutlier;
}

std::string title_of(const Alarm& alarm, bool two) {
  using enum Alarm::Kind;
  const std::string of = words_of(alarm.statistic).of;
  if (alarm.kind == kPairSimilar) return "{Ranks} had gradients more alike than chance allows";
  if (alarm.kind == kPairOpposed) return "{Ranks} had gradients less alike than chance allows";
  if (alarm.kind == kTooConsistent) return "{Ranks} differed less than their micro-batches allow";
  if (alarm.kind == kTooInconsistent) {
    return "{Ranks} had micro-batches more alike than chance allows";
  }
  if (alarm.kind == kEvent) return "{Ranks} had a " + of + " far outside everything seen before";
  if (two) return "{Ranks} persistently differed in their " + of;
  const std::string side = alarm.high ? "higher" : "lower";
  return "{Ranks} had a " + of + " persistently " + side + " than the other workers'";
}

Blame blame_of(const StepContext& context, const Alarm& alarm) {
  if (alarm.replicas.empty()) return of_all(context.record);
  Blame blame;
  for (const std::uint32_t replica : alarm.replicas) {
    insert(blame.ranks, context.roster.rank_of(replica));
  }
  return blame;
}

std::uint64_t key(Alarm::Kind kind, Statistic statistic, bool everyone, bool high) {
  // What everyone shows is not what the named workers show.
  return 16 + static_cast<std::uint64_t>(kind) * 64 + static_cast<std::uint64_t>(statistic) * 4 +
         (everyone ? 2 : 0) + (high ? 1 : 0);
}

std::uint64_t key_of(const Alarm& alarm) {
  return key(alarm.kind, alarm.statistic, alarm.replicas.empty(), alarm.high);
}

Values evidence_of(const StepContext& context, const Alarm& alarm) {
  Values out{{"statistic", words_of(alarm.statistic).name},
               {alarm.kind == Alarm::Kind::kEvent ? "z" : "log10_evidence", alarm.evidence},
               {"effect_sd", alarm.effect}};
  if (!std::isnan(alarm.ratio)) out.emplace_back("ratio", alarm.ratio);
  if (alarm.group != 0) out.emplace_back("group", context.roster.group_name(alarm.group));
  if (alarm.kind == Alarm::Kind::kOutlier && alarm.replicas.size() == 2) {
    const auto rank = [&](std::size_t i) {
      return static_cast<std::int64_t>(context.roster.rank_of(alarm.replicas[i]));
    };
    out.insert(out.end(), {{"of_rank", rank(0)}, {"beside_rank", rank(1)}});
  }
  return out;
}

bool some_cosine(const StepRecord& record) {
  return record.workers.size() > 2 &&
         std::ranges::any_of(record.cosines, [](float cosine) { return std::isfinite(cosine); });
}

constexpr const char* kUnlikeData =
    "They read different samples. Look for what these ranks have in common and the others do not: "
    "labels, preprocessing, a prompt or domain, a seed of what they draw; two such pairs are two "
    "camps, of which one may be wrong.";
constexpr std::uint64_t kNoEvents = 100;  // steps, as docs/detectors.md says of events
constexpr const char* kTooEarly =
    "Single steps are judged from the 101st on: until then what is usual is not known.";

const char* no_event_reason(const StepRecord& record) {
  const auto known = std::ranges::count_if(
      record.workers, [](const WorkerRecord& w) { return std::isfinite(w.loss); });
  if (known > 1) return "All workers had equal losses so far: none stands out.";
  return known == 1 ? "Only one worker reported a loss so far." : "No losses were reported so far.";
}

// The mean over all target tokens; NaN where a loss or a count is unknown.
double token_weighted_loss(const StepRecord& record) {
  double sum = 0;
  double tokens = 0;
  for (const WorkerRecord& w : record.workers) {
    if (w.tokens == 0) return kNaN;
    sum += w.loss * static_cast<double>(w.tokens);
    tokens += static_cast<double>(w.tokens);
  }
  return sum / tokens;
}

bool weights_follow_tokens(const StepRecord& record) {
  const WorkerRecord& first = record.workers.front();
  const double each = first.weight / static_cast<double>(first.tokens);
  return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
    return std::abs(w.weight / static_cast<double>(w.tokens) - each) <= 1e-3 * each;
  });
}

// Whether every worker reads the same samples again and again, and nobody else's: one batch that is
// overfitted, or shards that are never dealt anew. Then workers differ lastingly without a fault.
// Knows up to 65,536 rows; where there are more it says no.
class StaticData {
 public:
  void see(const StepContext& context) {
    if (lost_) return;
    bool own_again = true;
    for (const WorkerRecord& w : context.record.workers) {
      own_again = own_again && !w.samples.hashes.empty();
      for (const std::uint64_t row : w.samples.hashes) {
        const auto [at, fresh] = reader_.try_emplace(row, w.replica);
        own_again = own_again && !fresh && at->second == w.replica;
      }
    }
    quiet_ = own_again ? quiet_ + 1 : 0;
    lost_ = reader_.size() > kRowsKnown;
    if (lost_) reader_.clear();
  }

  // Five records long nothing but one's own samples of before.
  bool is_static() const { return !lost_ && quiet_ >= 5; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> reader_;  // replica by row
  std::uint64_t quiet_ = 0;
  bool lost_ = false;
};

// How many target tokens each worker has beside the others, over the steps in which all counts are
// known.
class TokenShares {
 public:
  void see(const StepRecord& record) {
    const auto& workers = record.workers;
    const bool known = std::ranges::all_of(workers, [](const auto& w) { return w.tokens > 0; });
    if (!known || workers.size() < 2) return;
    double sum = 0;
    for (const WorkerRecord& w : workers) sum += std::log(static_cast<double>(w.tokens));
    for (const WorkerRecord& w : workers) {
      const double own = std::log(static_cast<double>(w.tokens));
      const double ratio = own - (sum - own) / static_cast<double>(workers.size() - 1);
      Share& share = shares_[w.replica];
      share.log_ratio += ratio;
      ++share.steps;
      share.above += ratio > 0;
    }
  }

  // The geometric mean of a worker's count over the others', where it is at least 1.2 (or at most
  // its inverse) and on the same side in four of five steps, ten or more; else none.
  std::optional<double> apart(std::uint32_t replica) const {
    const Share* share = shares_.find(replica);
    if (share == nullptr || share->steps < kShareSteps) return {};
    const auto steps = static_cast<double>(share->steps);
    const double mean = share->log_ratio / steps;
    const auto above = static_cast<double>(share->above);
    const double same_side = mean > 0 ? above : steps - above;
    if (std::abs(mean) < kApart || same_side < kOfSteps * steps) return {};
    return std::exp(mean);
  }

 private:
  struct Share {
    double log_ratio = 0;
    std::uint64_t steps = 0;
    std::uint64_t above = 0;
  };
  PerWorker<Share> shares_;
};

class Statistics final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    cover(context, log);
    data_.see(context);
    tokens_.see(context.record);
    for (const Alarm& alarm : context.alarms.raised) report(context, alarm, log);
    for (const Alarm& alarm : context.alarms.lasting) {
      const Ranks ranks = blame_of(context, alarm).ranks;
      log.prolong(check_of(alarm), key_of(alarm), ranks, context.record.step);
    }
    watch_tokens(context, log);
    sizes_->update(context, log);
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
         "Neither losses, norms nor directions were comparable so far.");
    note(&kPairTooSimilar, watched(Statistic::kPair),
         some_cosine(context.record)
             ? "All pairs had equal cosines so far: none stands out."
             : "No cosines of pairs: that takes three workers and sketches.");
    note(
        &kTooConsistent, watched(Statistic::kMicroBatch) || watched(Statistic::kDirection),
        "Neither micro-batch losses (two or more a worker) nor directions were comparable so far.");
    losses_ += watched(Statistic::kLoss) ? 1 : 0;
    if (losses_ > 0 && losses_ <= kNoEvents) return log.cannot(&kLossEvent, kTooEarly);
    note(&kLossEvent, watched(Statistic::kLoss), no_event_reason(context.record));
  }

  void report(const StepContext& context, const Alarm& alarm, SignalLog& log) const {
    Signal signal =
        sighting({check_of(alarm), key_of(alarm)}, alarm.step, blame_of(context, alarm), kAtAlarm);
    if (signal.ranks.empty()) return;
    signal.first_step = std::min(alarm.first_step, alarm.step);
    signal.certain_step = alarm.step;
    signal.workers = context.record.workers_expected;
    signal.turned_away = alarm.kind == Alarm::Kind::kOutlier &&
                         alarm.statistic == Statistic::kDirection && !signal.everyone &&
                         !alarm.high;
    signal.effect = alarm.kind == Alarm::Kind::kEvent ? 0 : alarm.effect;
    if (signal.check == &kTokenImbalance && signal.everyone) signal.severity = Severity::kInfo;
    signal.title = title_of(alarm, context.record.workers_expected == 2);
    const bool samples = std::ranges::all_of(context.batches, &Batch::known);
    if (signal.check == &kPairTooSimilar && samples) signal.remedy = kUnlikeData;
    signal.evidence = evidence_of(context, alarm);
    if (!expected(alarm)) {
      if (alarm.kind == Alarm::Kind::kOutlier && !alarm.replicas.empty()) {
        report_tokens(alarm, signal, log);
      }
      return log.add(std::move(signal));
    }
    const bool alike = signal.check == &kPairTooSimilar || signal.check == &kTooConsistent;
    signal.key = kOfStaticData;
    signal.severity = Severity::kInfo;
    signal.title = alike ? "{Ranks} were lastingly alike" : "{Ranks} differed lastingly";
    signal.title += ", as may be where each rank reads the same samples again and again";
    signal.remedy = kStatic;
    log.add(std::move(signal), kAllSteps);
  }

  // A worker that stands out and has other token counts than the others: these are the cause.
  void report_tokens(const Alarm& alarm, const Signal& outlier, SignalLog& log) const {
    const auto ratio = tokens_.apart(alarm.replicas.front());
    if (!ratio) return;
    Signal signal =
        sighting({&kTokenImbalance, kOfOutlier}, alarm.step, {outlier.ranks, false}, kFromTokens);
    signal.first_step = outlier.first_step;
    signal.title =
        fmt::format("{{Ranks}} had {:.2f} times as many target tokens as the others", *ratio);
    if (outlier.ranks.size() == 2) {
      signal.title = fmt::format("Rank {} had {:.2f} times as many target tokens as rank {}",
                                 outlier.ranks.front(), *ratio, outlier.ranks.back());
    }
    signal.remedy = kOtherTokens;
    signal.evidence = {{"tokens_ratio", *ratio}};
    log.add(std::move(signal));
  }

  // Of data that never change differences are lasting. Not far ones, nor single events.
  bool expected(const Alarm& alarm) const {
    const bool near = alarm.kind != Alarm::Kind::kOutlier || std::abs(alarm.effect) < kFar;
    return data_.is_static() && near && alarm.kind != Alarm::Kind::kEvent &&
           alarm.statistic != Statistic::kTokens;
  }

  void watch_tokens(const StepContext& context, SignalLog& log) {
    const StepRecord& r = context.record;
    if (std::isnan(r.tokens_cv)) {
      return log.cannot(&kTokenImbalance, "Token counts are not known.");
    }
    if (std::ranges::any_of(r.workers, [](const auto& w) { return w.tokens == 0; })) return;
    log.waits(&kTokenImbalance, "Fewer than 20 steps with token counts so far.");
    const bool weighted = weights_follow_tokens(r);
    cv_sum_ += weighted ? 0 : r.tokens_cv;
    const double gap = std::abs(r.loss_mean - token_weighted_loss(r));
    if (std::isfinite(gap)) {
      gap_sum_ += gap;
      ++gap_steps_;
    }
    if (++token_steps_ < kTokenSteps) return;
    log.checked(&kTokenImbalance);
    const double cv = cv_sum_ / static_cast<double>(token_steps_);
    if (!(cv > kTokenVariation) || weighted) return;
    Signal signal = sighting(&kTokenImbalance, context, of_all(r), 0.8);
    signal.first_step = r.step - std::min(r.step, kTokenSteps - 1);
    signal.severity = Severity::kInfo;
    signal.title =
        "{Ranks} had token counts that differ while every worker's mean counts alike: the mean of "
        "means is not the mean over tokens";
    signal.evidence = {{"tokens_cv", cv}};
    if (gap_steps_ > 0) {
      signal.evidence.emplace_back("loss_gap", gap_sum_ / static_cast<double>(gap_steps_));
    }
    log.add(std::move(signal));
  }

  StaticData data_;
  std::unique_ptr<Rule> sizes_ = make_batch_sizes();
  TokenShares tokens_;
  std::uint64_t token_steps_ = 0;
  double cv_sum_ = 0;
  double gap_sum_ = 0;  // |mean of the workers' losses - mean over tokens|
  std::uint64_t gap_steps_ = 0;
  std::uint64_t losses_ = 0;  // steps in which losses were watched
};

}  // namespace

constexpr Check kTokenImbalanceExplains[] = {&kRankOutlier, &kLossEvent};
constinit const CheckInfo kTokenImbalance{
    .id = "token-imbalance",
    .severity = Severity::kWarning,
    .compares = "target tokens of every worker's batch",
    .fires =
        "after 20 steps; numbers of micro-batches or samples after 5; counts of all ranks that do "
        "not fit their weights are information",
    .consequence = "A token in a short batch counts more than one in a long batch.",
    .cannot_see = "Batches whose target tokens are not known.",
    .mistake =
        "loss = F.cross_entropy(logits, labels, ignore_index=-100)  # a mean over other counts\n"
        "labels = input_ids.clone()  # the prompt is not masked on this rank",
    .fix =
        "Weight each worker's loss by its target tokens: divide the summed loss by the global "
        "token count, or batch by length on all ranks alike.",
    .resembles = "huggingface/transformers#34242",
    .precedence = 300,
    .explains = kTokenImbalanceExplains,
    .compares_ranks = true,
    .make = make<Statistics>,
};

constexpr Check kRankOutlierExplains[] = {&kPairTooSimilar, &kTooConsistent, &kLossEvent};
constinit const CheckInfo kRankOutlier{
    .id = "rank-outlier",
    .severity = Severity::kWarning,
    .compares = "each worker's loss, norm and direction against the others'",
    .fires = "with the alarm",
    .consequence = "Something on this worker is not like on the others, and goes into every sum.",
    .cannot_see =
        "Differences that come and go within the others' scatter; the smaller, the longer it "
        "takes.",
    .mistake =
        "x = (x - mean) / std            # missing on this rank\n"
        "loss.backward()                 # not divided by the accumulation on this rank",
    .fix =
        "Compare data, code path and hardware of the named ranks with the others'. No harder check "
        "explains the difference.",
    .precedence = 320,
    .explains = kRankOutlierExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .of_a_step = true,
    .make = make<Statistics>,
};

constexpr Check kPairTooSimilarExplains[] = {&kTooConsistent, &kRankOutlier};
constinit const CheckInfo kPairTooSimilar{
    .id = "pair-too-similar",
    .severity = Severity::kWarning,
    .compares = "cosines of all pairs of workers",
    .fires = "with the alarm; after 3 records",
    .consequence = "Two workers that compute nearly the same gradient do the work of one.",
    .cannot_see = "Two workers alone: a pair is compared with other pairs.",
    .mistake = "torch.manual_seed(0)  # and data drawn from that generator, alike on two ranks",
    .fix =
        "Look whether these workers read the same data; switch the data fingerprints on to see it "
        "directly.",
    .precedence = 330,
    .explains = kPairTooSimilarExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .make = make<Statistics>,
};

constexpr Check kTooConsistentExplains[] = {&kPairTooSimilar};
constinit const CheckInfo kTooConsistent{
    .id = "too-consistent",
    .severity = Severity::kWarning,
    .compares = "whether workers differ as much as their micro-batches do",
    .fires = "with the alarm",
    .consequence = "The mean over workers is no better than one of them.",
    .cannot_see = "Runs with one micro-batch a step and without sketches.",
    .mistake = "for batch in load_dataset(path, streaming=True):  # no split_dataset_by_node",
    .fix =
        "Look whether all workers read the same data: their average is no better than one of them.",
    .resembles = "huggingface/datasets#5360",
    .precedence = 340,
    .explains = kTooConsistentExplains,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .make = make<Statistics>,
};

constinit const CheckInfo kLossEvent{
    .id = "loss-event",
    .severity = Severity::kInfo,
    .compares = "single steps far outside everything seen",
    .fires = "with the alarm",
    .consequence = "One batch moved the sum of this step far out of its way.",
    .cannot_see = "Events of all workers at once: they are no difference.",
    .mistake = "text = record[\"text\"]  # one record of another length, language or encoding",
    .fix = "Look at the named rank's batch of that step.",
    .resembles = "WeatherGenerator#2724",
    .precedence = 350,
    .rests_on = CheckInfo::RestsOn::kStatistics,
    .compares_ranks = true,
    .of_a_step = true,
    .make = make<Statistics>,
};

}  // namespace presum::checks
