// SPDX-License-Identifier: Apache-2.0
// **resume-mismatch.** Where a training stands is kept when its program takes the optimizer's state
// (`optimizer.state_dict()` between two steps on the thread that trains, as every checkpoint does;
// at most once in 10 steps, or four times in fewer), before the first forward pass of a recording
// and at its end, if nobody has changed the parameters since the last optimizer step (what is saved
// after `monitor.close()` is not seen): hashes of parameters and of the optimizer's tensors by
// layer, a sketch of the parameters, the random generators of each rank. A run in the same folder
// is held against what was kept at the optimizer step at which it goes on, as the optimizer itself
// counts (torch's Adam and its kin do; where it does not, by weights that are equal to some that
// were kept). Of several snapshots at one step (raw and averaged weights) any may fit. *Weights*
// that differ are named by layer, of shards with the ranks whose own they are, with their distance
// over their norm and, where they are others that were kept, with these; *optimizer state*
// likewise; both are critical, or a warning against what was left and not saved. Weights that were
// saved, with an optimizer that has no state or counts otherwise, are information: a warm start, or
// an optimizer that was not loaded. *Generators* only where some ranks go on with their own and
// others do not, a warning: as they were before the first forward pass, or where the first loader
// began, which draws from them. *Samples* of the pass that was interrupted, by index, once every
// loader has come to its end: those drawn again and, of samplers that deal all, those never, a
// warning; not where a pass was interrupted twice, and not for samplers that repeat or draw with
// replacement. Where some ranks go on in it and others begin it anew, that is told once 12
// draws of each would have come again by chance. A pass that begins anew is information, as is
// another number of ranks, another learning rate or dtype (then parameters are compared as far as
// the coarser one tells), or a data set of the same length whose contents differ, or a learning
// rate that jumps within three steps of the restart as it did not before: a schedule that was not
// restored. One that goes on from the rate that it finds (`CosineAnnealingLR`) is not seen. Not
// judged is a step at which nothing was kept, nor another model, nor what not all ranks told, nor a
// step that a later segment has passed again. The last eight checkpoints of a segment are kept, at
// 1,072 bytes a layer (FSDP2: and rank); of more than 64 MiB the last ones that are whole count.
// Under FSDP2 shards add up, so another number of ranks is no difference (sums of floats in another
// order: 1e-6 of the norm, and 2e-9 by the root of the number of elements); a rank that alone takes
// its optimizer's state (to log its rate) may leave a later checkpoint untold; where they have no
// sketch (a device, another dimension than the first) that is not known. Buffers are not compared.
// Gradients on a device: hashes, without distances.

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
constexpr std::size_t kRates = 3;  // steps after which a schedule has had its say
constexpr double kJump = 4;        // times the largest change before, and
constexpr double kJumpOfRate = 0.1;
constexpr const char* kNothing = "The run does not continue an earlier recording.";
constexpr const char* kAnew =
    "The optimizer begins without a state: the run starts anew, from weights that were not saved.";
constexpr const char* kNotAll = "Not all ranks have told where they began.";
constexpr const char* kLarge =
    "Nothing is known of this number of optimizer steps: nothing was saved while presum watched, "
    "or more than is read (64 MiB).";
constexpr const char* kUncounted =
    "The optimizer does not count its steps, and the weights are none that were saved.";
constexpr const char* kNotSaved =
    "Nothing is known of this number of optimizer steps: nothing was saved or left while presum "
    "watched, or something saved at every few steps.";
constexpr const char* kNotTold =
    "What was saved at this number of optimizer steps is of another model, or was not told by all "
    "ranks.";
constexpr const char* kReplayed =
    "It goes on from a checkpoint after which these steps were recorded again.";
constexpr const char* kOwnGenerators =
    "Save the states of the random generators of every rank, and load each rank's own.";

std::string names(const std::vector<std::uint64_t>& groups, const Roster& roster) {
  return first_names(groups, kNames, [&](auto group) { return roster.layer_name(group); });
}

// None where an optimizer does not count its steps.
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
  bool left = false;  // at the end of the recording, not saved
  Steps saved_optimizer_steps;
  std::string layers;
  std::uint64_t layers_of = 0;  // that could be compared
  double apart_percent = kNaN;  // of the norm of those that differ
  std::string as_saved_after;   // the weights, where they are others that were saved

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

// The weights are some that were saved, the optimizer is not.
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
  return fmt::format("{} went on with other weights than were {} after {}", who.words(),
                     kept(seen.left), steps_text(seen.saved_optimizer_steps));
}

std::string sentence(const OtherState& seen, const Who& who) {
  const std::string saved = seen.saved_optimizer_steps
                                ? "after " + steps_text(seen.saved_optimizer_steps)
                                : "with these weights";
  return fmt::format("{} went on with another optimizer state than was {} {}", who.words(),
                     kept(seen.left), saved);
}

std::string sentence(const OtherGenerators& /*seen*/, const Who& who) {
  return who.words() + " went on with other random generators than were saved, unlike the others";
}

std::string sentence(const OtherSettings& /*seen*/, const Who& who) {
  return who.words() + " went on with other settings than before the restart";
}

std::string sentence(const OtherOptimizer& seen, const Who& who) {
  return fmt::format("{} went on with the weights that were {} after {}, and {}", who.words(),
                     kept(seen.left), steps_text(seen.saved_optimizer_steps),
                     seen.optimizer_steps.value_or(0) > 0
                         ? "an optimizer that counts " + steps_text(seen.optimizer_steps)
                         : "a new optimizer");
}

std::string sentence(const OtherRate& seen, const Who& who) {
  return fmt::format(
      "{} went on with the learning rate that was saved, {}, and had {} within {} recorded steps",
      who.words(), number(seen.saved_learning_rate), number(seen.learning_rate), seen.within_steps);
}

}  // namespace

// None are everyone.
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

// Of the snapshots with as many optimizer steps that which fits, else the last that tells of
// layers; where steps are not counted, the last with these weights.
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

// With the weights of a checkpoint, and not its optimizer: a warm start, or a mistake.
void Resume::with_another_optimizer(const char* why, SignalLog& log) const {
  const SnapshotRecord* one = with_weights(*prior_, model_of(now()));
  const double steps = begun_.begin()->second.optimizer_steps;
  // Of as many steps it is that of the checkpoint, after which another training has been recorded.
  if (one == nullptr || one->optimizer_steps == steps) {
    return log.cannot(&kResumeMismatch, one == nullptr ? why : kReplayed);
  }
  Signal signal = signal_of(
      blame_of({}), OtherOptimizer{was_left(*one), counted(one->optimizer_steps), counted(steps)});
  signal.severity = Severity::kInfo;
  signal.remedy =
      "Nothing for a warm start. To go on, load the optimizer's and the schedule's state as well.";
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

// False where it goes on from something else.
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
    if (left) signal.severity = Severity::kWarning;  // it may have changed them before it saved
    signal.remedy =
        "Load model and optimizer from one checkpoint, after the model is built and before it is "
        "wrapped, and look for keys that `strict=False` left out.";
    log.add(std::move(signal));
    return false;
  }
  const std::vector<std::uint64_t> states = states_apart(was, is);
  if (states.empty()) return true;
  Signal signal =
      signal_of(blame_of({}), OtherState{left, steps, names(states, roster), was.size()});
  if (left) signal.severity = Severity::kWarning;
  signal.remedy =
      "Load the optimizer's state from the checkpoint of the weights, after it holds the model's "
      "parameters, in the order in which it was saved.";
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
  signal.remedy = "Nothing, where that was meant.";
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

// A schedule that was not restored sets its own rate after the first step, at which the optimizer
// still has the one that was saved.
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
      "Nothing, where that was meant; else load the state of the learning-rate schedule.";
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
        "weights, optimizer state, generators and data of a run that continues with what it left",
    .fires = "at the first step; samples at the end of the pass",
    .consequence =
        "What is trained on is another model, or on other samples, than the record of before says.",
    .cannot_see =
        "Runs whose optimizer begins at 0 steps (a warm start); optimizers without a count of "
        "steps, where the weights are none that were saved; checkpoints that were not made through "
        "`optimizer.state_dict()`, or not by this run; what loaders draw before the first step.",
    .mistake =
        "model.load_state_dict(torch.load(\"last.pt\"), strict=False)   # names that do not match\n"
        "optimizer.load_state_dict(torch.load(\"best.pt\")[\"optimizer\"])  # of another step\n"
        "for batch in loader:                                       # from the pass's beginning",
    .fix = "Load model, optimizer, generators and the place in the data from one checkpoint.",
    .resembles = "NVIDIA/Megatron-LM#6858",
    .precedence = 230,
    .explains = kResumeMismatchExplains,
    .joins_itself = false,
    .make = make<Resume>,
};

}  // namespace presum::checks
