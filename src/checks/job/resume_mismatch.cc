// SPDX-License-Identifier: Apache-2.0
// **resume-mismatch.** Compares a run in the same folder with a snapshot from the optimizer step at
// which it continues, as the optimizer counts (torch's Adam family does; for others, by equal
// weights). A snapshot holds hashes of parameters and of the optimizer's tensors by layer, a sketch
// of the parameters, and the random generators of each rank. presum takes one when the program
// takes the optimizer's state (`optimizer.state_dict()` between two steps on the training thread,
// as every checkpoint does; at most once in 10 steps, or four times in fewer), before the first
// forward pass of a recording, and at its end unless the parameters changed after the last
// optimizer step (saves after `monitor.close()` are not visible). Of several snapshots at one step
// (raw and averaged weights) any may match.
//
// - *Weights* that differ are listed by layer, for shards with the ranks that own them, with their
//   distance relative to their norm and, if they equal another snapshot, with that snapshot.
//   *Optimizer state* is listed in the same way. Both are critical, or a warning if compared with
//   an unsaved end state. Saved weights with an optimizer that has no state or a different count
//   are information: a warm start, or an optimizer that was not loaded.
// - *Generators* are a warning if only some ranks continue with their own. They are compared as
//   they were before the first forward pass, or at the start of the first loader, which draws from
//   them.
// - *Samples* of the interrupted pass, by index, once every loader is exhausted: a warning for
//   those drawn again and, with samplers that deal every sample, those never drawn. Not after a
//   second interruption of the pass, and not for samplers that repeat or draw with replacement. If
//   some ranks continue the pass and others restart it, this is reported once chance would have
//   repeated 12 draws of each.
// - Information: a restarted pass, a different number of ranks, a different learning rate or dtype
//   (parameters are then compared as precisely as the coarser dtype allows), a dataset of the same
//   length with different contents, and a learning rate that jumps within three steps of the
//   restart and did not before (a schedule that was not restored). A schedule that continues from
//   the rate that it finds (`CosineAnnealingLR`) is not visible.
//
// Not judged: a step without a snapshot, another model, values that some ranks did not send, and a
// step that a later segment passed again. Buffers are not compared. The last eight checkpoints of a
// segment are kept, at 1,072 bytes per layer (FSDP2: and rank); if they exceed 64 MiB, only the
// latest complete ones count. Under FSDP2 shards add up, so a different number of ranks makes no
// difference (sums of floats in a different order: 1e-6 of the norm, plus 2e-9 times the root of
// the number of elements). Where shards have no sketch (on a device, or sharded by another
// dimension than the first), such a comparison is not possible. A rank that alone takes its
// optimizer's state (to log its rate) may hide a later checkpoint. With gradients on a device there
// are hashes but no distances.

#include "checks/job/resume_mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::size_t kNames = 4;
constexpr std::size_t kRates = 3;  // steps that a schedule needs to set its rate
constexpr double kJump = 4;        // times the largest earlier change, plus
constexpr double kJumpOfRate = 0.1;
constexpr const char* kNothing = "The run does not continue an earlier recording.";
constexpr const char* kAnew =
    "The optimizer begins without a state: the run starts over, from weights that were not saved.";
constexpr const char* kNotAll = "Not all ranks have reported their initial state.";
constexpr const char* kLarge =
    "No snapshot is known for this number of optimizer steps: nothing was saved while presum was "
    "watching, or the snapshots exceed the 64 MiB that presum reads.";
constexpr const char* kUncounted =
    "The optimizer does not count its steps, and the weights match no snapshot.";
constexpr const char* kNotSaved =
    "No snapshot is known for this number of optimizer steps: nothing was saved or left while "
    "presum was watching, or the program saved every few steps.";
constexpr const char* kNotTold =
    "The snapshot of this number of optimizer steps is of another model, or some ranks did not "
    "send it.";
constexpr const char* kReplayed =
    "The run continues from a checkpoint after which the same steps were recorded again.";
constexpr const char* kOwnGenerators =
    "Save the random generator states of every rank, and load each rank's own.";

std::string names(const std::vector<std::uint64_t>& groups, const Roster& roster) {
  return first_names(groups, kNames, [&](auto group) { return roster.layer_name(group); });
}

// None if an optimizer does not count its steps.
using Steps = std::optional<std::uint64_t>;

Steps counted(double steps) {
  constexpr double kCountsBelow = 0x1p63;
  if (!(steps >= 0 && steps < kCountsBelow)) return std::nullopt;
  return static_cast<std::uint64_t>(std::round(steps));
}

std::string steps_text(Steps steps) {
  if (!steps) return "some optimizer steps";
  return fmt::format("{} optimizer step{}", *steps, *steps == 1 ? "" : "s");
}

const char* kept(bool left) { return left ? "left" : "saved"; }

bool was_left(const TrainingSnapshot& snapshot) {
  return snapshot.kind == TrainingSnapshot::Kind::kLeft;
}

struct OtherWeights {
  bool left = false;  // the state at the end of the recording, which was not saved
  Steps saved_optimizer_steps;
  std::string layers;
  std::uint64_t layers_of = 0;  // that could be compared
  double apart_percent = kNaN;  // of the norm of the layers that differ
  std::string as_saved_after;   // set if the weights equal another snapshot

  static constexpr std::tuple kFields{
      field("left", &OtherWeights::left),
      field("saved_optimizer_steps", &OtherWeights::saved_optimizer_steps),
      field("layers", &OtherWeights::layers),
      field("layers_of", &OtherWeights::layers_of),
      field("apart_percent", &OtherWeights::apart_percent),
      field("as_saved_after", &OtherWeights::as_saved_after)};
};

struct OtherState {
  bool left = false;
  Steps saved_optimizer_steps;
  std::string layers;
  std::uint64_t layers_of = 0;

  static constexpr std::tuple kFields{
      field("left", &OtherState::left),
      field("saved_optimizer_steps", &OtherState::saved_optimizer_steps),
      field("layers", &OtherState::layers), field("layers_of", &OtherState::layers_of)};
};

struct OtherGenerators {
  std::uint64_t ranks_as_saved = 0;
  static constexpr std::tuple kFields{field("ranks_as_saved", &OtherGenerators::ranks_as_saved)};
};

struct OtherSettings {
  std::string settings_changed;
  static constexpr std::tuple kFields{field("settings_changed", &OtherSettings::settings_changed)};
};

// The weights equal a snapshot, the optimizer does not.
struct OtherOptimizer {
  bool left = false;
  Steps saved_optimizer_steps;
  Steps optimizer_steps;

  static constexpr std::tuple kFields{
      field("left", &OtherOptimizer::left),
      field("saved_optimizer_steps", &OtherOptimizer::saved_optimizer_steps),
      field("optimizer_steps", &OtherOptimizer::optimizer_steps)};
};

struct OtherRate {
  double saved_learning_rate = 0;
  double learning_rate = 0;
  std::uint64_t within_steps = 0;

  static constexpr std::tuple kFields{field("saved_learning_rate", &OtherRate::saved_learning_rate),
                                      field("learning_rate", &OtherRate::learning_rate),
                                      field("within_steps", &OtherRate::within_steps)};
};

std::string sentence(const OtherWeights& seen, const Who& who) {
  return fmt::format("{} continued with different weights than were {} after {}", who.words(),
                     kept(seen.left), steps_text(seen.saved_optimizer_steps));
}

std::string sentence(const OtherState& seen, const Who& who) {
  const std::string saved = seen.saved_optimizer_steps
                                ? "after " + steps_text(seen.saved_optimizer_steps)
                                : "with these weights";
  return fmt::format("{} continued with a different optimizer state than was {} {}", who.words(),
                     kept(seen.left), saved);
}

std::string sentence(const OtherGenerators& /*seen*/, const Who& who) {
  return who.words() +
         " continued with different random generators than were saved, unlike the others";
}

std::string sentence(const OtherSettings& /*seen*/, const Who& who) {
  return who.words() + " continued with different settings than before the restart";
}

std::string sentence(const OtherOptimizer& seen, const Who& who) {
  return fmt::format("{} continued with the weights that were {} after {}, and {}", who.words(),
                     kept(seen.left), steps_text(seen.saved_optimizer_steps),
                     seen.optimizer_steps.value_or(0) > 0
                         ? "an optimizer that counts " + steps_text(seen.optimizer_steps)
                         : "a new optimizer");
}

std::string sentence(const OtherRate& seen, const Who& who) {
  return fmt::format(
      "{} continued with the learning rate that was saved, {}, and had {} within {} recorded steps",
      who.words(), number(seen.saved_learning_rate), number(seen.learning_rate), seen.within_steps);
}

}  // namespace

// An empty set means everyone.
Blame Resume::blame_of(const std::set<std::uint32_t>& replicas) const {
  Blame out{{}, replicas.empty() || replicas.size() == ranks_.size()};
  for (const auto& [replica, rank] : ranks_) {
    if (out.everyone || replicas.contains(replica)) insert(out.ranks, rank);
  }
  return out;
}

Signal Resume::signal_of(Blame blame, Evidence seen) const {
  Signal signal = sighting(&kResumeMismatch, 0, std::move(blame), 0.95, std::move(seen));
  signal.workers = static_cast<std::uint32_t>(ranks_.size());
  return signal;
}

void Resume::begins(const Identity& who, const TrainingSnapshot& snapshot, const Roster& roster,
                    SignalLog& log) {
  if (snapshot.kind != TrainingSnapshot::Kind::kBegun || judged_) return;
  if (!prior_) return log.cannot(&kResumeMismatch, kNothing);
  if (!begun_.try_emplace(who.replica, snapshot).second) return;
  ranks_[who.replica] = who.rank;
  if (begun_.size() < who.replicas) return;
  judged_ = true;
  began_with_ = began_with_which(*prior_, model_of(now()));
  judge(roster, log);
  prior_->saved.clear();
  if (!step_) return pass_.forget();
  pass_.goes_on_from(std::exchange(prior_->draws, {}), *step_, blame_of({}).ranks, roster, log);
}

Snapshots Resume::now() const {
  Snapshots out;
  for (const auto& [replica, snapshot] : begun_) out[replica] = &snapshot;
  return out;
}

// The snapshot with equal optimizer steps that matches; if none does, the last one that contains
// layers. If steps are not counted, the last one with these weights.
const SnapshotRecord* Resume::matching(SignalLog& log) const {
  const double steps = begun_.begin()->second.optimizer_steps;
  const Model is = model_of(now());
  if (std::isnan(steps)) {
    const SnapshotRecord* one = with_weights(*prior_, is);
    if (one == nullptr || replayed_since(*prior_, *one)) {
      log.cannot(&kResumeMismatch, kUncounted);
      return nullptr;
    }
    return one;
  }
  const SnapshotRecord* last = nullptr;
  const char* why = prior_->left_out ? kLarge : kNotSaved;
  for (const SnapshotRecord* one : snapshots_of(*prior_)) {
    if (one->optimizer_steps != steps || replayed_since(*prior_, *one)) continue;
    if (has_weights(*prior_, *one, is)) return one;
    why = kNotTold;
    const bool told = parameters_apart(model_of(saved_with(*prior_, *one)), is).of > 0;
    if (told && last == nullptr) last = one;
  }
  if (last == nullptr) with_another_optimizer(why, log);
  return last;
}

// The weights of a checkpoint without its optimizer: a warm start, or a mistake.
void Resume::with_another_optimizer(const char* why, SignalLog& log) const {
  const SnapshotRecord* one = with_weights(*prior_, model_of(now()));
  const double steps = begun_.begin()->second.optimizer_steps;
  // With equal steps it is the checkpoint itself, and another training was recorded after it.
  if (one == nullptr || one->optimizer_steps == steps) {
    return log.cannot(&kResumeMismatch, one == nullptr ? why : kReplayed);
  }
  Signal signal = signal_of(
      blame_of({}), OtherOptimizer{was_left(*one), counted(one->optimizer_steps), counted(steps)});
  signal.severity = Severity::kInfo;
  signal.remedy =
      "Nothing for a warm start. To continue the run, load the state of the optimizer and of the "
      "schedule too.";
  log.add(std::move(signal));
}

void Resume::judge(const Roster& roster, SignalLog& log) {
  const Model is = model_of(now());
  const bool had_state = std::ranges::any_of(snapshots_of(*prior_), [&](const SnapshotRecord* one) {
    const bool of_last = one->model.segment == prior_->saved.back().model.segment;
    return of_last && has_state(model_of(saved_with(*prior_, *one)));
  });
  if (begun_.begin()->second.optimizer_steps == 0 || (had_state && !has_state(is))) {
    return with_another_optimizer(kAnew, log);
  }
  const SnapshotRecord* one = matching(log);
  if (one == nullptr) return;
  const Snapshots then = saved_with(*prior_, *one);
  log.checked(&kResumeMismatch);
  if (!judge_weights(then, now(), roster, log)) return;
  if (one->model.segment == prior_->saved.back().model.segment) step_ = one->step;
  if (!was_left(*one)) judge_generators(then, now(), log);  // a program may draw before it saves
  judge_settings(*one, then, log);
}

// False if the run continues from something else.
bool Resume::judge_weights(const Snapshots& then, const Snapshots& now, const Roster& roster,
                           SignalLog& log) {
  const Model was = model_of(then);
  const Model is = model_of(now);
  const Steps steps = counted(then.begin()->second->optimizer_steps);
  const bool left = was_left(*then.begin()->second);
  const Apart apart = parameters_apart(was, is);
  if (!apart.groups.empty()) {
    OtherWeights seen{.left = left,
                      .saved_optimizer_steps = steps,
                      .layers = names(apart.groups, roster),
                      .layers_of = apart.of};
    if (apart.known && apart.all > 0) {
      seen.apart_percent = 100 * std::sqrt(apart.squares / apart.all);
    }
    const SnapshotRecord* other = with_weights(*prior_, is);
    if (other != nullptr) seen.as_saved_after = steps_text(counted(other->optimizer_steps));
    Signal signal = signal_of(blame_of(replicas_apart(then, now)), std::move(seen));
    if (left) signal.severity = Severity::kWarning;  // perhaps it changed them, then saved
    signal.remedy =
        "Load model and optimizer from the same checkpoint, after the model is built and before it "
        "is wrapped, and look for keys that `strict=False` skipped.";
    log.add(std::move(signal));
    return false;
  }
  const std::vector<std::uint64_t> states = states_apart(was, is);
  if (states.empty()) return true;
  Signal signal =
      signal_of(blame_of({}), OtherState{left, steps, names(states, roster), was.size()});
  if (left) signal.severity = Severity::kWarning;
  signal.remedy =
      "Load the optimizer state from the checkpoint of the weights, after the optimizer holds the "
      "model's parameters, in the order in which they were saved.";
  log.add(std::move(signal));
  return true;
}

void Resume::judge_generators(const Snapshots& then, const Snapshots& now, SignalLog& log) const {
  Blame others;
  for (const std::uint32_t replica : other_generators(then, now)) {
    insert(others.ranks, ranks_.at(replica));
  }
  if (others.ranks.empty()) return;
  const std::uint64_t as_saved = now.size() - others.ranks.size();
  Signal signal = signal_of(std::move(others), OtherGenerators{as_saved});
  signal.severity = Severity::kWarning;
  signal.remedy = kOwnGenerators;
  log.add(std::move(signal));
}

void Resume::judge_settings(const SnapshotRecord& one, const Snapshots& then,
                            SignalLog& log) const {
  const std::uint32_t workers = step_ ? prior_->workers : 0;
  std::string changed = settings_changed(one, begun_.begin()->second, workers, begun_.size());
  if (!same_format(model_of(then), model_of(now()))) {
    changed += fmt::format("{}the parameters' dtype", changed.empty() ? "" : "; ");
  }
  if (changed.empty()) return;
  Signal signal = signal_of(blame_of({}), OtherSettings{std::move(changed)});
  signal.severity = Severity::kInfo;
  signal.remedy = "Nothing, if this is intended.";
  log.add(std::move(signal));
}

void Resume::update(const StepContext& context, SignalLog& log) {
  if (!prior_) return log.cannot(&kResumeMismatch, kNothing);
  if (!judged_) log.cannot(&kResumeMismatch, kNotAll);
  if (step_) judge_rates(context, log);
  if (draws_with_replacement(context.roster) || repeats_by_design(context.record, context.roster)) {
    return pass_.forget();
  }
  pass_.see(context.record, log);
}

// A schedule that was not restored sets its own rate after the first step; at that step the
// optimizer still has the saved rate.
void Resume::judge_rates(const StepContext& context, SignalLog& log) {
  if (rates_.size() >= kRates || prior_->rates.empty() || context.record.workers.empty()) return;
  const WorkerRecord& first = context.record.workers.front();
  if (first.fingerprint_of(FingerprintKind::kLearningRate) == nullptr) return;
  rates_.push_back(real_of(first, FingerprintKind::kLearningRate));
  if (rates_.size() < kRates) return;
  const double before = largest_change(prior_->rates);
  const double now = largest_change(rates_);
  if (!(now > kJump * before + kJumpOfRate * std::abs(rates_.front()))) return;
  Signal signal = signal_of(blame_of({}), OtherRate{rates_.front(), rates_.back(), kRates});
  signal.severity = Severity::kInfo;
  signal.last_step = context.record.step;
  signal.remedy =
      "Nothing, if this is intended. If not, load the state of the learning-rate schedule.";
  log.add(std::move(signal));
}

void Resume::pass_over(const Pass& pass, const Roster& roster, SignalLog& log) {
  if (prior_) pass_.over(pass, roster, log);
}

constexpr Check kResumeMismatchExplains[] = {&kOverlappingData, &kDataCoverage};
constinit const CheckInfo kResumeMismatch{
    .id = "resume-mismatch",
    .severity = Severity::kCritical,
    .compares =
        "the weights, optimizer state, generators and data of a continued run, against the "
        "snapshot that it continues",
    .fires = "at the first step; samples at the end of the pass",
    .consequence =
        "The run trains a different model, or on different samples, than the earlier record says.",
    .cannot_see =
        "Runs whose optimizer begins at 0 steps (a warm start); optimizers that do not count "
        "steps, if the weights match no snapshot; checkpoints that were made without "
        "`optimizer.state_dict()`, or by another run; what loaders draw before the first step.",
    .mistake =
        "model.load_state_dict(torch.load(\"last.pt\"), strict=False)   # names that do not "
        "match\noptimizer.load_state_dict(torch.load(\"best.pt\")[\"optimizer\"])  # from another "
        "step\nfor batch in loader:                                       # from the start of the "
        "pass",
    .fix =
        "Load model, optimizer, generators and the position in the data from the same checkpoint.",
    .resembles = "NVIDIA/Megatron-LM#6858",
    .precedence = 230,
    .explains = kResumeMismatchExplains,
    .joins_itself = false,
    .make = make<Resume>,
};

}  // namespace presum::checks
