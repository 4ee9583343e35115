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
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using detect::Alarm;
using detect::Statistic;

constexpr double kAtAlarm = 0.5;     // confidence; merge.cc adds what came after
constexpr double kFar = 6;           // standard deviations
constexpr double kFromTokens = 0.7;  // confidence
constexpr const char* kOtherTokens =
    "Compare the labels of one batch on these ranks with those of the others: are prompts and "
    "padding masked alike, and are batches of the same lengths?";
constexpr const char* kStatic =
    "Nothing, where that is meant (one batch is overfitted, every rank has a shard of its own). "
    "Else deal the samples anew in every pass: a DistributedSampler with `set_epoch`.";
constexpr std::size_t kRowsKnown = 65536;
constexpr std::uint64_t kOwnAgain = 5;  // records of nothing but a rank's own samples of before
constexpr std::uint64_t kShareSteps = 10;
constexpr double kApart = 0.1823;  // log 1.2
constexpr double kOfSteps = 0.8;
constexpr std::uint64_t kTokenSteps = 20;
constexpr double kTokenVariation = 0.2;
constexpr double kSmallest = 0.05;    // an effect that is worth a word, in standard deviations
constexpr double kLargest = 100;      // above, the number says nothing more
constexpr double kNearInteger = 0.3;  // over the integer: 0.15 for 2, 0.03 for 10

struct Words {
  Statistic statistic;
  const char* name;  // in evidence
  const char* of;    // in a sentence
};

constexpr Words kStatisticWords[] = {
    {Statistic::kLoss, "loss", "loss"},
    {Statistic::kNorm, "norm", "gradient norm"},
    {Statistic::kDirection, "direction", "cosine with the other ranks' gradients"},
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

// An alarm as people read it.
struct Deviation {
  Alarm::Kind kind = Alarm::Kind::kOutlier;
  Statistic of = Statistic::kLoss;
  bool high = false;
  bool of_all = false;          // no minority was named
  bool of_static_data = false;  // every rank reads its own samples again and again
  std::string layer;            // in which the gradient differs most
  double log10_evidence = kNaN;
  double effect_sd = kNaN;
  double ratio = kNaN;  // to the others' mean, or of two ranks the first's to the second's
  std::optional<std::uint32_t> of_rank;
  std::optional<std::uint32_t> beside_rank;

  std::string statistic() const { return words_of(of).name; }
  // What everyone shows is not what the named ranks show.
  std::uint64_t key() const {
    if (of_static_data) return 0;
    return 16 + static_cast<std::uint64_t>(kind) * 64 + static_cast<std::uint64_t>(of) * 4 +
           (of_all ? 2 : 0) + (high ? 1 : 0);
  }
  static constexpr std::tuple kFields{field("statistic", &Deviation::statistic),
                                      field("effect_sd", &Deviation::effect_sd),
                                      field("ratio", &Deviation::ratio),
                                      field("of_rank", &Deviation::of_rank),
                                      field("beside_rank", &Deviation::beside_rank),
                                      field("layer", &Deviation::layer),
                                      field("log10_evidence", &Deviation::log10_evidence)};
};

std::string deviations(double effect) {
  const double size = std::abs(effect);
  return size > kLargest ? fmt::format("over {} standard deviations", kLargest)
                         : fmt::format("{} standard deviations", number(size));
}

// How far, from ": " on; empty where it is not known or too small for a word.
std::string how_far(const Deviation& seen) {
  const bool far = std::abs(seen.effect_sd) >= kSmallest;
  if (std::isnan(seen.ratio)) return far ? ": " + deviations(seen.effect_sd) : "";
  const std::string brackets = far ? fmt::format(" ({})", deviations(seen.effect_sd)) : "";
  if (!seen.of_rank) return fmt::format(": {} times theirs{}", number(seen.ratio), brackets);
  return fmt::format(": rank {}'s is {} times rank {}'s{}", *seen.of_rank, number(seen.ratio),
                     *seen.beside_rank, brackets);
}

std::string outlier_sentence(const Deviation& seen, const Who& who) {
  const bool in_layer = seen.of == Statistic::kGroupNorm && !seen.layer.empty();
  const std::string of = in_layer ? "gradient norm in " + seen.layer : words_of(seen.of).of;
  const std::string most =
      in_layer || seen.layer.empty() ? "" : "; the gradient differs most in " + seen.layer;
  if (seen.of_rank) {
    return fmt::format("{} persistently differed in their {}{}{}", who.words(), of, how_far(seen),
                       most);
  }
  return fmt::format("{} had a {} persistently {} than the other ranks'{}{}", who.words(), of,
                     seen.high ? "higher" : "lower", how_far(seen), most);
}

std::string sentence(const Deviation& seen, const Who& who) {
  using enum Alarm::Kind;
  if (seen.of_static_data) {
    const bool alike = seen.kind == kPairSimilar || seen.kind == kTooConsistent;
    return fmt::format("{} {}, as may be where each rank reads the same samples again and again",
                       who.words(), alike ? "were lastingly alike" : "differed lastingly");
  }
  switch (seen.kind) {
    case kPairSimilar:
      return who.words() + " had gradients more alike than chance allows" + how_far(seen);
    case kPairOpposed:
      return who.words() + " had gradients less alike than chance allows" + how_far(seen);
    case kTooConsistent:
      return who.words() + " differed less than their micro-batches allow";
    case kTooInconsistent:
      return who.words() + " had micro-batches more alike than chance allows";
    case kEvent:
      return fmt::format("{} had a {} far outside everything seen before{}", who.words(),
                         words_of(seen.of).of, how_far(seen));
    case kOutlier:
      break;
  }
  return outlier_sentence(seen, who);
}

Blame blame_of(const StepContext& context, const Alarm& alarm) {
  if (alarm.replicas.empty()) return of_all(context.record);
  Blame blame;
  for (const std::uint32_t replica : alarm.replicas) {
    insert(blame.ranks, context.roster.rank_of(replica));
  }
  return blame;
}

// Of an event the evidence is its distance.
Deviation deviation(const StepContext& context, const Alarm& alarm) {
  const bool event = alarm.kind == Alarm::Kind::kEvent;
  Deviation out{.kind = alarm.kind,
                .of = alarm.statistic,
                .high = alarm.high,
                .of_all = alarm.replicas.empty(),
                .log10_evidence = event ? kNaN : alarm.evidence,
                .effect_sd = event ? alarm.evidence : alarm.effect,
                .ratio = alarm.ratio};
  if (alarm.group != 0) out.layer = context.roster.group_name(alarm.group);
  if (alarm.kind == Alarm::Kind::kOutlier && alarm.replicas.size() == 2) {
    out.of_rank = context.roster.rank_of(alarm.replicas[0]);
    out.beside_rank = context.roster.rank_of(alarm.replicas[1]);
  }
  return out;
}

// A rank that stands out and has other token counts than the others.
struct OtherTokens {
  double tokens_ratio = 1;
  std::optional<std::uint32_t> of_rank;  // of two ranks
  std::optional<std::uint32_t> beside_rank;

  static constexpr std::tuple kFields{field("tokens_ratio", &OtherTokens::tokens_ratio),
                                      field("of_rank", &OtherTokens::of_rank),
                                      field("beside_rank", &OtherTokens::beside_rank)};
};

std::string sentence(const OtherTokens& seen, const Who& who) {
  const auto of = seen.of_rank ? fmt::format("Rank {}", *seen.of_rank) : who.words();
  const auto beside = seen.of_rank ? fmt::format("rank {}", *seen.beside_rank) : "the others";
  return fmt::format("{} had {:.2f} times as many target tokens as {}", of, seen.tokens_ratio,
                     beside);
}

struct UnweightedTokens {
  double tokens_cv = kNaN;  // mean over steps of the counts' coefficient of variation
  double loss_gap = kNaN;   // mean distance between the mean of means and the mean over tokens

  static constexpr std::tuple kFields{field("tokens_cv", &UnweightedTokens::tokens_cv),
                                      field("loss_gap", &UnweightedTokens::loss_gap)};
};

std::string sentence(const UnweightedTokens& /*seen*/, const Who& who) {
  return who.words() +
         " had token counts that differ while every rank's mean counts alike: the mean of means is "
         "not the mean over tokens";
}

// ---- what it may come from

using Texts = std::vector<std::string>;
using Signals = std::span<const Signal* const>;

// k >= 2 where the ratio is that whole number, or its inverse; else 0.
int whole_factor(double ratio) {
  if (!(ratio > 0) || !std::isfinite(ratio)) return 0;
  const double factor = std::max(ratio, 1 / ratio);
  const double nearest = std::round(factor);
  return nearest >= 2 && nearest <= 64 && std::abs(factor / nearest - 1) <= kNearInteger / nearest
             ? static_cast<int>(nearest)
             : 0;
}

// Of two ranks nobody knows which is at fault.
void suspect_either(const Deviation* loss, const Deviation* norm, Texts& out) {
  const int factor = norm == nullptr ? 0 : whole_factor(norm->ratio);
  if (factor > 0) {
    out.push_back(fmt::format(
        "on one of them, a loss that is divided by {} once more or not divided", factor));
  }
  if (norm != nullptr && (norm->ratio < 0.5 || norm->ratio > 2)) {
    out.emplace_back("on one of them, a gradient that is clipped before the reduction");
  }
  if (loss != nullptr) {
    out.emplace_back(
        "other labels or inputs on one of them (mixed up, another normalisation, tokeniser or "
        "mask), or a loss that is reduced otherwise");
  }
}

void suspect_norm(const Deviation& norm, Texts& out) {
  const int factor = whole_factor(norm.ratio);
  if (factor > 0 && norm.ratio > 1) {
    out.push_back(fmt::format("a loss that is not divided by {}, as it is on the others", factor));
  } else if (factor > 0) {
    out.push_back(fmt::format("a loss that is divided by {} once more", factor));
  }
  if (norm.ratio < 0.5) out.emplace_back("a gradient that is clipped before the reduction");
}

void suspect_loss(const Deviation* loss, bool turned, Texts& out) {
  const bool loses = loss != nullptr && loss->effect_sd > 0;
  if (turned && !loses) {
    out.emplace_back("a gradient whose sign is turned, or that is of another step or other data");
  }
  if (loses) {
    out.emplace_back(
        "other labels or inputs (mixed up, another normalisation, tokeniser or mask), or a loss "
        "that is reduced otherwise");
  } else if (loss != nullptr) {
    out.emplace_back("easier or repeated data, or a regularisation that is switched off");
  }
  if (turned && loses) out.emplace_back("labels that do not belong to their inputs");
}

// What the finding's own ranks show.
const Deviation* of(Signals signals, Statistic statistic) {
  for (const Signal* signal : signals) {
    const auto* seen = signal->seen.as<Deviation>();
    if (seen == nullptr || signal->ranks != signals.front()->ranks) continue;
    if (seen->of == statistic && !seen->of_static_data) return seen;
  }
  return nullptr;
}

std::string outlier_suspects(Signals signals) {
  Texts out;
  const Deviation* loss = of(signals, Statistic::kLoss);
  const Deviation* norm = of(signals, Statistic::kNorm);
  const auto* head = signals.front()->seen.as<Deviation>();
  if (head != nullptr && head->of_rank) {
    suspect_either(loss, norm, out);
    return fmt::format("{}", fmt::join(out, "; "));
  }
  const Deviation* direction = of(signals, Statistic::kDirection);
  const Deviation* peak = of(signals, Statistic::kPeak);
  const bool turned = direction != nullptr && direction->effect_sd < 0;
  // A scale does not turn it.
  if (norm != nullptr && std::isfinite(norm->ratio) && !turned) suspect_norm(*norm, out);
  suspect_loss(loss, turned, out);
  if (direction != nullptr && !turned) {
    out.emplace_back("a larger batch, or samples that others read too");
  }
  if (peak != nullptr && peak->effect_sd > 0) out.emplace_back("single elements that were damaged");
  if (peak != nullptr && peak->effect_sd < 0)
    out.emplace_back("noise that is added to the gradient");
  if (of(signals, Statistic::kGroupNorm) != nullptr) {
    out.emplace_back("a layer that is frozen, scaled or dropped on these ranks alone");
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string token_suspects(Signals signals) {
  const bool known = std::ranges::any_of(
      signals, [](const Signal* s) { return s->seen.as<OtherTokens>() != nullptr; });
  return known ? "prompts or padding that are not masked as on the others, or other lengths" : "";
}

std::string alike_suspects(Signals /*signals*/) {
  return "the same samples, or one seed for noise and augmentation";
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
    own_again_.see(own_again, context.record.step);
    lost_ = reader_.size() > kRowsKnown;
    if (lost_) reader_.clear();
  }

  bool is_static() const { return !lost_ && own_again_.length >= kOwnAgain; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> reader_;  // replica by row
  Streak own_again_;
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
      log.prolong(check_of(alarm), key_of(deviation(context, alarm)), ranks, context.record.step);
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
    Deviation seen = deviation(context, alarm);
    seen.of_static_data = expected(alarm);
    Signal signal = sighting(check_of(alarm), alarm.step, blame_of(context, alarm), kAtAlarm, seen);
    if (signal.ranks.empty()) return;
    signal.first_step = std::min(alarm.first_step, alarm.step);
    signal.certain_step = alarm.step;
    signal.workers = context.record.workers_expected;
    signal.turned_away = alarm.kind == Alarm::Kind::kOutlier &&
                         alarm.statistic == Statistic::kDirection && !seen.of_static_data &&
                         !signal.everyone && !alarm.high;
    signal.effect = alarm.kind == Alarm::Kind::kEvent ? 0 : alarm.effect;
    if (signal.check == &kTokenImbalance && signal.everyone) signal.severity = Severity::kInfo;
    const bool samples = std::ranges::all_of(context.batches, &Batch::known);
    if (signal.check == &kPairTooSimilar && samples) signal.remedy = kUnlikeData;
    if (seen.of_static_data) {
      signal.severity = Severity::kInfo;
      signal.remedy = kStatic;
      return log.add(std::move(signal), kAllSteps);
    }
    if (alarm.kind == Alarm::Kind::kOutlier && !alarm.replicas.empty()) {
      report_tokens(alarm, signal, log);
    }
    log.add(std::move(signal));
  }

  // A rank that stands out and has other token counts than the others: these are the cause.
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
    signal.remedy = kOtherTokens;
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
    UnweightedTokens seen{.tokens_cv = cv};
    if (gap_steps_ > 0) seen.loss_gap = gap_sum_ / static_cast<double>(gap_steps_);
    Signal signal = sighting(&kTokenImbalance, context, of_all(r), 0.8, seen);
    signal.first_step = r.step - std::min(r.step, kTokenSteps - 1);
    signal.severity = Severity::kInfo;
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
    .info_explains = false,
    .suspects = token_suspects,
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
    .suspects = outlier_suspects,
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
    .may_be_design = true,
    .suspects = alike_suspects,
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
    .may_be_design = true,
    .suspects = alike_suspects,
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
