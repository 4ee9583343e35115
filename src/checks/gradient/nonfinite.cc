// SPDX-License-Identifier: Apache-2.0
// **nonfinite-gradient, nonfinite-loss.** Consecutive steps are one episode. The finding names the
// ranks of its first step, because later ranks get it through the parameters. If all ranks turn
// non-finite at once, after a step in which all were finite, it came from the parameters or the
// reduction.
//
// If the optimizer took no step, all ranks skipped it together, and the finding is a warning. For a
// gradient it becomes information with the number of skipped steps once the next step is finite,
// and at once if a loss scaler is known (fact `grad_scaler`), because a scaler skips steps while it
// searches for its factor. It stays a warning if ten in eleven of such steps, and six or more,
// belong to one rank alone. For a loss it becomes information only if all ranks had it. A step
// counter that was never above 0 counts as a skipped step only in the first 16 records. If no
// optimizer is known (fact `optimizer`) and no step was ever counted, the hashes of parameters that
// moved before decide; until then a non-finite gradient is a warning, because its step may have
// been skipped. More than 16 such steps in a row are critical again. A norm that was not read does
// not count as non-finite.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/hash.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

// Records in which a loss scaler searches for its first factor.
constexpr std::uint64_t kScalerSearch = 16;
constexpr std::uint64_t kAlone = 6;      // times that one rank was the only one
constexpr std::uint64_t kOneInTen = 10;  // at most one of another rank for this many
constexpr std::uint64_t kPairs = 2;      // record pairs to compare
constexpr double kMoves = 0.9;  // share of pairs in which a layer's hash changes if steps move it
constexpr std::size_t kKeysMax = 64;
constexpr const char* kByDesign =
    "Nothing, if steps are skipped by design (a loss scaler that searches for its factor, a guard "
    "on all ranks).";

struct NotFinite {
  enum class Step : std::uint8_t { kTaken, kLeftOut, kUnknown };

  std::string what;   // "loss" or "gradient"
  Ranks first_ranks;  // at the first step of the episode
  std::size_t ranks_not_finite = 0;
  std::optional<std::uint64_t> nonfinite_elements;
  bool all_at_once = false;  // and all were finite one record before
  std::optional<std::uint64_t> steps_left_out;
  Step step = Step::kTaken;

  std::string optimizer_step() const {
    constexpr const char* kNames[] = {"taken", "left out", "unknown"};
    return kNames[static_cast<std::size_t>(step)];
  }
  std::uint64_t key() const {
    std::uint64_t key = 0;
    for (const std::uint32_t rank : first_ranks) key = mix64(key + rank + 1);
    return key;
  }
  static constexpr std::tuple kFields{field("what", &NotFinite::what),
                                      field("ranks_not_finite", &NotFinite::ranks_not_finite),
                                      field("nonfinite_elements", &NotFinite::nonfinite_elements),
                                      field("all_at_once", &NotFinite::all_at_once),
                                      field("steps_left_out", &NotFinite::steps_left_out),
                                      field("optimizer_step", &NotFinite::optimizer_step)};
};

std::string sentence(const NotFinite& seen, const Who& who) {
  if (seen.step == NotFinite::Step::kLeftOut) {
    return fmt::format("{} had a {} that was not finite, and the optimizer left the step out",
                       who.words(), seen.what);
  }
  if (seen.step == NotFinite::Step::kUnknown) {
    return fmt::format(
        "{} had a {} that was not finite; whether the optimizer left the step out is not known",
        who.words(), seen.what);
  }
  if (seen.all_at_once) {
    return fmt::format(
        "{} turned to a {} that is not finite at the same step: it came with the parameters or the "
        "reduction of the step before",
        who.words(), seen.what);
  }
  return fmt::format("{} had a {} that was not finite", who.words(), seen.what);
}

std::uint64_t nonfinite_elements(const StepRecord& record) {
  std::uint64_t sum = 0;
  for (const WorkerRecord& w : record.workers) sum += w.nonfinite;
  return sum;
}

bool optimizer_known(const StepContext& context) {
  if (!context.roster.fact("grad_scaler").empty()) return true;
  const std::string name = context.roster.fact("optimizer");
  return !name.empty() && name != "unknown";
}

// Consecutive non-finite steps are one episode. Its ranks are those of its first step, since later
// ranks may get it through the parameters.
class Nonfinite : public Rule {
 public:
  explicit Nonfinite(Check check) : check_(check) {}

  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    log.checked(check_);
    ++records_;
    counted_ = counted_ || std::ranges::any_of(context.record.workers, [](const WorkerRecord& w) {
                 return w.optimizer_step > 0;
               });
    const Ranks now = blame_where(context, [&](const WorkerRecord& w) { return broken(w); }).ranks;
    if (now.empty()) {
      if (std::exchange(running_, false)) ends(context, log);
    } else {
      if (!running_) begin(context, now);
      skipped_ = skipped_ && ++length_ <= kScalerSearch && maybe_skipped(context);
      report(context, now, log);
    }
    if (now.empty()) follow_parameters(context);
    healthy_before_ = now.empty();
    for (const WorkerRecord& w : context.record.workers)
      optimizer_steps_[w.replica] = w.optimizer_step;
  }

 private:
  bool broken(const WorkerRecord& worker) const {
    if (check_ == &kNonfiniteLoss) return worker.loss_nonfinite;
    return worker.nonfinite > 0 || std::isinf(worker.grad_norm);
  }

  void begin(const StepContext& context, Ranks ranks) {
    running_ = true;
    began_with_ = parameters_of(context.record);
    skipped_ = true;
    length_ = 0;
    blame_.everyone = ranks.size() == context.workers();
    blame_.ranks = std::move(ranks);
    sudden_ = blame_.everyone && healthy_before_ && context.workers() > 1;
  }

  // Episodes that began on the same ranks.
  struct Episodes {
    std::uint64_t first_step = 0;
    std::uint64_t left_out = 0;  // episodes in which the optimizer took no step
    std::uint64_t steps = 0;     // the number of steps in those
    bool taken = false;          // the optimizer took a step in another episode
  };
  using Of = std::pair<std::uint32_t, std::uint64_t>;  // a rank, and a key for layer and shard
  using Parameters = std::map<Of, std::uint64_t>;      // hashes
  struct Moves {
    std::uint64_t records = 0;
    std::uint64_t changed = 0;  // includes the first record
    std::uint64_t last = 0;

    bool known() const {
      return records > kPairs &&
             static_cast<double>(changed) >= kMoves * static_cast<double>(records);
    }
  };

  // Parameter hashes by rank, layer and shard.
  static Parameters parameters_of(const StepRecord& record) {
    Parameters out;
    for (const WorkerRecord& w : record.workers) {
      for (const StateHash& s : w.states) {
        if (s.kind == StateHash::Kind::kParameters)
          out[{w.rank, mix64(s.group + s.shard)}] = s.value;
      }
    }
    return out;
  }

  // Whether each rank has some parameters that still equal their state at the beginning of the
  // episode and that steps moved before. If a layer's hash changed, a different part of the layer
  // may have been hashed.
  bool stood_still(const StepRecord& record) const {
    Ranks still;
    for (const auto& [of, value] : parameters_of(record)) {
      const auto before = began_with_.find(of);
      const bool same = before != began_with_.end() && before->second == value;
      const auto moves = moves_.find(of);
      if (same && moves != moves_.end() && moves->second.known()) insert(still, of.first);
    }
    return still.size() == record.workers.size();
  }

  // Some of a layer's parameters are hashed in every record, others now and then.
  void follow_parameters(const StepContext& context) {
    if (counted_ || optimizer_known(context) || context.record.step == 0) return;
    for (const auto& [of, value] : parameters_of(context.record)) {
      Moves& moves = moves_[of];
      ++moves.records;
      moves.changed += std::exchange(moves.last, value) != value ? 1 : 0;
    }
  }

  // Whether nearly all non-finite steps belong to one rank.
  bool is_one_rank(const StepContext& context, const Ranks& ranks, const Episodes& of) const {
    std::uint64_t all = 0;
    for (const auto& [key, each] : episodes_) all += each.left_out;
    return ranks.size() == 1 && context.workers() > 1 && of.left_out >= kAlone &&
           kOneInTen * (all - of.left_out) <= of.left_out;
  }

  void ends(const StepContext& context, SignalLog& log) {
    Episodes& all = episodes_[last_.key()];
    all.taken = all.taken || !skipped_;
    const bool known = last_.step == NotFinite::Step::kLeftOut || stood_still(context.record);
    // A loss of some ranks may come from their batches; a scale that is too high affects all ranks.
    const bool may_be_data = check_ == &kNonfiniteLoss && !blame_.everyone;
    if (may_be_data || all.taken || (!known && all.left_out == 0)) return;
    all.left_out += known ? 1 : 0;
    all.steps += known ? length_ : 0;
    const bool alone = is_one_rank(context, last_.first_ranks, all);
    NotFinite seen = last_;
    seen.step = NotFinite::Step::kLeftOut;
    seen.steps_left_out = all.steps;
    Signal signal = sighting(check_, last_step_, blame_, 1, std::move(seen));
    signal.first_step = all.first_step;
    signal.severity = alone ? Severity::kWarning : Severity::kInfo;
    if (!alone) signal.remedy = kByDesign;
    log.settle(std::move(signal));
  }

  void report(const StepContext& context, const Ranks& now, SignalLog& log) {
    NotFinite seen{.what = check_ == &kNonfiniteLoss ? "loss" : "gradient",
                   .first_ranks = blame_.ranks,
                   .ranks_not_finite = now.size(),
                   .all_at_once = sudden_,
                   .step = step_of(context)};
    if (check_ == &kNonfiniteGradient) seen.nonfinite_elements = nonfinite_elements(context.record);
    if (episodes_.size() >= kKeysMax && !episodes_.contains(seen.key())) {
      episodes_.erase(std::ranges::min_element(
          episodes_, {}, [](const auto& entry) { return entry.second.left_out; }));
    }
    const Episodes& before =
        episodes_.try_emplace(seen.key(), Episodes{.first_step = context.record.step})
            .first->second;
    last_ = seen;
    last_step_ = context.record.step;
    Signal signal = sighting(check_, context, blame_, sudden_ ? 0.8 : 1, std::move(seen));
    const bool scaler = !context.roster.fact("grad_scaler").empty();
    const bool alone = is_one_rank(context, blame_.ranks, before);
    const bool overflow =
        check_ == &kNonfiniteGradient && !alone && (scaler || before.left_out > 0);
    if (skipped_) signal.severity = overflow ? Severity::kInfo : Severity::kWarning;
    log.add(std::move(signal));
  }

  // Without an optimizer that counts, it is unknown whether a loss scaler skipped the step.
  bool maybe_skipped(const StepContext& context) const {
    if (check_ == &kNonfiniteGradient && !counted_ && !optimizer_known(context)) return true;
    return optimizer_stood_still(context.record);
  }

  // After an overflow a loss scaler skips the step on all ranks and lowers its factor, mostly in
  // its first steps. A counter that never moved says nothing later on.
  bool optimizer_stood_still(const StepRecord& record) const {
    return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
      const std::uint64_t* found = optimizer_steps_.find(w.replica);
      const std::uint64_t before = found == nullptr ? 0 : *found;
      return w.optimizer_step == before && (before > 0 || records_ <= kScalerSearch);
    });
  }

  NotFinite::Step step_of(const StepContext& context) const {
    if (!skipped_) return NotFinite::Step::kTaken;
    return counted_ || optimizer_known(context) ? NotFinite::Step::kLeftOut
                                                : NotFinite::Step::kUnknown;
  }

  Check check_;
  std::uint64_t records_ = 0;
  std::uint64_t length_ = 0;  // records of this episode in which the optimizer took no step
  bool running_ = false;
  bool healthy_before_ = false;  // the previous record was finite on all ranks
  bool sudden_ = false;          // all ranks at once, after a finite record
  bool skipped_ = false;  // as far as known, the optimizer took no step in this episode so far
  bool counted_ = false;  // some rank's optimizer took a step
  Blame blame_;
  NotFinite last_;                              // of this episode
  std::uint64_t last_step_ = 0;                 // of this episode
  Parameters began_with_;                       // at the beginning of this episode
  std::map<Of, Moves> moves_;                   // from one finite step to the next
  std::map<std::uint64_t, Episodes> episodes_;  // by the key of the evidence
  PerWorker<std::uint64_t> optimizer_steps_;
};

struct NonfiniteGradient final : Nonfinite {
  NonfiniteGradient() : Nonfinite(&kNonfiniteGradient) {}
};

struct NonfiniteLoss final : Nonfinite {
  NonfiniteLoss() : Nonfinite(&kNonfiniteLoss) {}
};

}  // namespace

constexpr Check kNonfiniteGradientExplains[] = {
    &kNonfiniteLoss,  &kParameterDesync, &kBufferDesync,
    &kStateDesync,    &kRankOutlier,     &kPairTooSimilar,
    &kTooConsistent,  &kLossEvent,       &kReducedGradientMismatch,
    &kReductionScale, &kZeroGradient,    &kFrozenGradient};
constinit const CheckInfo kNonfiniteGradient{
    .id = "nonfinite-gradient",
    .severity = Severity::kCritical,
    .compares = "NaN and Inf in every rank's own gradient",
    .fires = "immediately",
    .consequence =
        "One NaN in one rank's gradient becomes a NaN in the sum, and in every parameter after the "
        "step.",
    .cannot_see = "A gradient that was never read; the run says which gradients it could not read.",
    .mistake = "loss = (target * torch.log(p)).mean()  # p is 0 on one rank: -inf, then NaN",
    .fix =
        "Check the batch, the loss and the first layer with NaN on the named ranks at the first "
        "step, and skip or clip on all ranks together. If all ranks turned non-finite at once, "
        "check the reduction and the optimizer of the previous step.",
    .resembles = "deepspeedai/DeepSpeed#8061",
    .precedence = 20,
    .explains = kNonfiniteGradientExplains,
    .of_a_step = true,
    .make = make<NonfiniteGradient>,
};

constexpr Check kNonfiniteLossExplains[] = {
    &kNonfiniteGradient, &kParameterDesync, &kBufferDesync, &kStateDesync, &kRankOutlier,
    &kPairTooSimilar,    &kTooConsistent,   &kLossEvent,    &kZeroGradient};
constinit const CheckInfo kNonfiniteLoss{
    .id = "nonfinite-loss",
    .severity = Severity::kCritical,
    .compares = "NaN and Inf in every rank's loss",
    .fires = "immediately",
    .consequence = "A non-finite loss makes a non-finite gradient, and a non-finite sum.",
    .cannot_see = "Losses that presum did not receive and could not see.",
    .mistake = "loss = total / targets.ne(-100).sum()  # a batch without targets: 0 / 0",
    .fix =
        "Check the batch of the named ranks at the first step: a log or a division of zero, or a "
        "batch without any target token.",
    .resembles = "WeatherGenerator#2724",
    .precedence = 30,
    .explains = kNonfiniteLossExplains,
    .of_a_step = true,
    .make = make<NonfiniteLoss>,
};

}  // namespace presum::checks
