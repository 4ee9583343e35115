// SPDX-License-Identifier: Apache-2.0
// **no-progress.** Followed on one rank, from the hashes of parameters (a part of 25 at a step),
// over the steps in which an optimizer stepped, its first group's learning rate is above zero and
// the gradient is not zero: 25 of them since something changed, and all parts hashed after some of
// them. So a warm-up from zero is quiet, as is a step that a loss scaler leaves out. Where presum
// was given no optimizer, or one that holds none of the parameters, it looks at the steps of all
// optimizers of the process. Those of one that holds parameters of the model count; those of one
// that holds nothing that is watched count where no optimizer of the process holds any of the
// model's (a GAN's discriminator is another model's, and the generator's own optimizer holds it).
// If such an optimizer has no gradient either, before and after its step, and a sample of the
// parameters (4, 64 elements of each) stands still until the next forward pass, it was built before
// the model was copied, sharded or replaced: that is told at once. Master weights have gradients,
// and parameters that are changed by hand move. `passed` needs a parameter that was seen to change;
// where no optimizer of torch's steps and nothing changes, nothing is known (`not-possible`). Where
// other parts change, a layer is named that stood still for two rounds and had a gradient in each
// of their steps: without an optimizer that holds it that is said, and where its learning rate is 0
// it is information; of so many such layers that their names do not fit into 1,024 bytes, nothing
// is said of the rest. A layer of one element is left alone: programs hold scalars at a bound
// (CLIP's `logit_scale`). Hashes cannot tell that most elements stand still: for that a sample (8
// parameters of 16 bits in the optimizer, 512 elements of each with a gradient) is held against
// what the optimizer's step has left, in one step of 10; more than half unchanged in 3 samples in a
// row is a finding. Not where the optimizer keeps more than torch's own moments: a copy in fp32, or
// what rounding lost (Kahan); nor where a setting or the class is called stochastic, since what
// stands still in one step moves in another. Hashes of sharded parameters (FSDP2) are those of this
// rank's shard.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kRound = 25;  // records in which all of a model is hashed once
constexpr std::uint64_t kKept = 2 * kRound;
constexpr std::uint64_t kParts = kRound + 1;  // looks until all parts were seen: the first is whole
constexpr std::size_t kGroups = 65536;
constexpr std::size_t kNamesShown = 4;
constexpr double kMost = 0.5;
constexpr const char* kAtRest = "layers_at_rest";
constexpr std::uint64_t kSureSamples = 3;  // samples

double learning_rate(const WorkerRecord& worker) {
  return real_of(worker, FingerprintKind::kLearningRate);
}

struct NothingChanged {
  std::uint64_t steps_without_change = 0;
  double learning_rate = kNaN;
  bool held_by_no_optimizer = false;  // as far as known
  static constexpr std::tuple kFields{
      field("steps_without_change", &NothingChanged::steps_without_change),
      field("learning_rate", &NothingChanged::learning_rate),
      field("held_by_no_optimizer", &NothingChanged::held_by_no_optimizer)};
};

std::string sentence(const NothingChanged& seen, const Who& who) {
  if (!seen.held_by_no_optimizer) {
    return who.words() + " took optimizer steps that changed no parameter";
  }
  return who.words() +
         " took steps of an optimizer that holds none of this model's parameters, and no other "
         "optimizer holds any";
}

struct LayersUnchanged {
  enum class Why : std::uint8_t { kUnknown, kHeldByNone, kRateIsZero };

  std::string layers_standing;  // the first names
  std::uint64_t groups_unchanged = 0;
  Why why = Why::kUnknown;

  std::string cause() const {
    constexpr const char* kNames[] = {"unknown", "no optimizer holds them", "learning rate 0"};
    return kNames[static_cast<std::size_t>(why)];
  }
  std::uint64_t key() const { return why == Why::kRateIsZero ? 1 : 0; }
  static constexpr std::tuple kFields{field("layers_standing", &LayersUnchanged::layers_standing),
                                      field("groups_unchanged", &LayersUnchanged::groups_unchanged),
                                      field("cause", &LayersUnchanged::cause)};
};

std::string sentence(const LayersUnchanged& seen, const Who& who) {
  constexpr const char* kWhy[] = {", though gradients came there",
                                  ": no optimizer holds their parameters",
                                  ": the learning rate of their parameter group is 0"};
  return fmt::format("{} took optimizer steps that left {} as before{}", who.words(),
                     seen.layers_standing, kWhy[static_cast<std::size_t>(seen.why)]);
}

struct RoundedAway {
  double unchanged_share = 0;
  double learning_rate = 0;
  std::uint32_t of_rank = 0;  // whose share and rate these are
  static constexpr std::tuple kFields{field("of_rank", &RoundedAway::of_rank),
                                      field("unchanged_share", &RoundedAway::unchanged_share),
                                      field("learning_rate", &RoundedAway::learning_rate)};
};

std::string sentence(const RoundedAway& seen, const Who& who) {
  return fmt::format(
      "{} took optimizer steps that left most of the sampled parameters as before (rank {}: {:.0f} "
      "%): in fp16 or bf16 updates so small round to nothing",
      who.words(), seen.of_rank, 100 * seen.unchanged_share);
}

// Some layers, by name, and since when.
struct Layers {
  std::vector<std::string> names;
  std::uint64_t first_step = std::numeric_limits<std::uint64_t>::max();
};

Signal signal_of(const Layers& layers, LayersUnchanged::Why why, const StepContext& context) {
  Signal signal = sighting(&kNoProgress, context, of_all(context.record), 0.9,
                           LayersUnchanged{first_names(layers.names, kNamesShown, std::identity{}),
                                           layers.names.size(), why});
  signal.first_step = std::min(layers.first_step, context.record.step);
  signal.severity = Severity::kWarning;
  return signal;
}

// "a, b" is a and b. A fact that was too long ends in "...".
struct Listed {
  explicit Listed(std::string_view text) : cut(text.find("...") != std::string_view::npos) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(", "), text.size());
      names.emplace(text.substr(0, end));
      text.remove_prefix(std::min(end + 2, text.size()));
    }
  }
  bool contains(const std::string& name) const { return names.contains(name); }

  std::set<std::string> names;
  bool cut = false;
};

// Optimizer steps with a learning rate above zero, on gradients that are not zero, after which
// every part of the model, or of a layer, that is hashed again is what it was; or after which most
// elements of 16 bits are; or of optimizers that hold none of the model's parameters where none
// does. What workers hold differently is parameter-desync's: one worker's hashes are followed.
class NoProgress final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    const WorkerRecord& worker = context.record.workers.front();
    follow(worker, context.record.step);
    const bool trained = trains(worker);
    if (!trained || std::isnan(learning_rate(worker))) stands_.clear();  // rates of layers, too
    follow_shares(context, log);
    follow_vain(context, log);
    tell_what_was_seen(log);
    if (stands_still()) return report(context, log);
    for (const GroupRecord& g : context.record.groups) {
      if (g.norms.empty() || !(g.norms.front() > 0)) stands_.erase(g.id);
    }
    look_at_resting(context);
    report_layers(context, log);
  }

 private:
  struct Held {
    std::uint64_t step = 0;     // at which it was first seen
    std::uint64_t look = 0;     // at which it was last seen
    std::uint64_t trained = 0;  // records with a step before that
  };
  // A layer whose parts were what they were whenever they were hashed.
  struct Stand {
    std::uint64_t since = 0;    // the look at which that began
    std::uint64_t repeats = 0;  // values seen again since
    std::uint64_t first_step = 0;
    std::uint64_t rested = 0;  // the last look at which nothing was to move it
  };

  // Whether what the worker did since the record before should have changed its parameters.
  bool trains(const WorkerRecord& worker) {
    const std::uint64_t before = std::exchange(steps_, worker.optimizer_step);
    std::uint64_t steps = value_of(worker, FingerprintKind::kStepsOfOthers);
    if (worker.optimizer_step > before && learning_rate(worker) > 0) {
      steps = std::max(steps, worker.optimizer_step - before);
    }
    if (steps == 0 || !has_gradient(worker)) return false;
    ++trained_;
    taken_ += steps;
    return true;
  }

  void follow(const WorkerRecord& worker, std::uint64_t step) {
    ++looks_;
    ++unchanged_;
    for (const StateHash& state : worker.states) {
      if (state.kind != StateHash::Kind::kParameters) continue;
      hashed_ = true;
      const auto [at, fresh] =
          held_.try_emplace(mix64(state.value ^ mix64(state.group)), Held{.step = step});
      Held& held = at->second;
      const bool ought_to_differ = trained_ > held.trained;
      held.look = looks_;
      held.trained = trained_;
      stand(state, held, fresh);
      if (fresh) {
        moved_ = moved_ || looks_ > kParts;
        unchanged_ = repeats_ = taken_ = 0;
        trained_before_ = trained_;
      } else if (ought_to_differ) {
        first_step_ = repeats_++ == 0 ? held.step : std::min(first_step_, held.step);
      }
    }
    if (looks_ % kKept == 0) {
      std::erase_if(held_, [&](const auto& held) { return held.second.look + kKept < looks_; });
    }
  }

  // Steps that come now and then are counted until all parts were hashed after some of them.
  bool stands_still() const {
    return unchanged_ >= kRound && repeats_ > 0 && trained_ - trained_before_ >= kRound;
  }

  // "Passed" needs parameters that were seen to change: who steps them may not be known.
  void tell_what_was_seen(SignalLog& log) const {
    if (!hashed_) return log.cannot(&kNoProgress, "No parameters were hashed.");
    if (moved_) return log.checked(&kNoProgress);
    if (trained_ == 0) {
      return log.cannot(&kNoProgress,
                        "No step of an optimizer with a learning rate above 0 was seen, and no "
                        "parameter that changed.");
    }
    log.waits(&kNoProgress, looks_ <= kParts ? "No part of the model was hashed twice yet."
                                             : "No parameter was seen to change yet.");
  }

  void stand(const StateHash& state, const Held& held, bool fresh) {
    if (stands_.size() >= kGroups && !stands_.contains(state.group)) return;
    Stand& layer = stands_[state.group];
    if (fresh || layer.since == 0) layer = {.since = looks_, .rested = layer.rested};
    if (!fresh && layer.repeats++ == 0) layer.first_step = held.step;
  }

  void report(const StepContext& context, SignalLog& log) const {
    const NothingChanged seen{.steps_without_change = taken_,
                              .learning_rate = learning_rate(context.record.workers.front()),
                              .held_by_no_optimizer = in_vain_};
    Signal signal = sighting(&kNoProgress, context, of_all(context.record), 0.95, seen);
    signal.first_step = std::min(first_step_, context.record.step);
    log.add(std::move(signal));
  }

  // Layers whose learning rate is 0, and scalars, which may lie at a bound of the program's.
  void look_at_resting(const StepContext& context) {
    const Listed rest(context.roster.fact(kAtRest));
    const Listed scalars(context.roster.fact("layers_of_one_element"));
    if (rest.names.empty() && scalars.names.empty()) return;
    for (auto& [group, layer] : stands_) {
      const std::string name = context.roster.group_name(group);
      const bool may = rest.cut || scalars.cut;
      if (may || rest.contains(name) || scalars.contains(name)) layer.rested = looks_;
    }
  }

  void report_layers(const StepContext& context, SignalLog& log) const {
    const Listed rest(context.roster.fact(kAtRest));
    const Listed unheld(context.roster.fact("layers_of_no_optimizer"));
    Layers standing;
    Layers resting;
    for (const GroupRecord& g : context.record.groups) {
      const auto found = stands_.find(g.id);
      if (found == stands_.end() || found->second.repeats == 0) continue;
      if (looks_ - found->second.since < kKept) continue;
      const std::string name = context.roster.group_name(g.id);
      const bool rests = rest.contains(name);
      const std::uint64_t rested = found->second.rested;
      if (!rests && rested > 0 && looks_ - rested < kKept) continue;
      Layers& layers = rests ? resting : standing;
      layers.names.push_back(name);
      layers.first_step = std::min(layers.first_step, found->second.first_step);
    }
    if (!resting.names.empty()) {
      Signal signal = signal_of(resting, LayersUnchanged::Why::kRateIsZero, context);
      signal.severity = Severity::kInfo;
      signal.remedy = "Nothing, where that was meant.";
      log.add(std::move(signal), kAllSteps);
    }
    if (standing.names.empty()) return;
    const bool held_by_none = std::ranges::all_of(
        standing.names, [&](const std::string& name) { return unheld.contains(name); });
    using enum LayersUnchanged::Why;
    Signal signal = signal_of(standing, held_by_none ? kHeldByNone : kUnknown, context);
    if (held_by_none) signal.remedy = "Give the optimizer all parameters that are to be trained.";
    log.add(std::move(signal), kAllSteps);
  }

  // Of elements in 16 bits whose gradient is not zero, as samples of some steps tell.
  void follow_shares(const StepContext& context, SignalLog& log) {
    const WorkerRecord& worker = context.record.workers.front();
    if (worker.fingerprint_of(FingerprintKind::kUnchangedShare) == nullptr) return;
    const double share = real_of(worker, FingerprintKind::kUnchangedShare);
    log.checked(&kNoProgress);
    log.needs_records(&kNoProgress, kSureSamples,
                      "Updates in 16 bits may round to nothing in some steps.");
    const double rate = learning_rate(worker);
    const bool rises = rate > std::exchange(sampled_rate_, rate);
    if (rises) return;  // a warm-up: updates grow yet
    if (rounded_.see(share > kMost && rate > 0, context.record.step) < kSureSamples) return;
    Signal signal = sighting(&kNoProgress, context, of_all(context.record), 0.9,
                             RoundedAway{share, rate, worker.rank});
    signal.first_step = rounded_.first_step;
    signal.severity = Severity::kWarning;
    log.add(std::move(signal), kAllSteps);
  }

  // Steps of optimizers that hold nothing of the model and have no gradient, as the workers saw
  // them.
  void follow_vain(const StepContext& context, SignalLog& log) {
    std::uint64_t most = 0;
    Blame blame = blame_where(context, [&](const WorkerRecord& w) {
      if (w.grad_norm == 0) return false;  // one that is not known has come as well
      const std::uint64_t steps = value_of(w, FingerprintKind::kStepsInVain);
      most = std::max(most, steps);
      return steps > 0;
    });
    if (blame.ranks.empty()) return;
    in_vain_ = true;
    vain_steps_ += most;
    log.add(sighting(
        &kNoProgress, context, std::move(blame), 0.95,
        NothingChanged{.steps_without_change = vain_steps_, .held_by_no_optimizer = true}));
  }

  std::unordered_map<std::uint64_t, Held> held_;     // by group and value
  std::unordered_map<std::uint64_t, Stand> stands_;  // by group; at most 65,536
  Streak rounded_;                                   // samples of which most stood still
  double sampled_rate_ =
      std::numeric_limits<double>::infinity();  // the learning rate at the last of them
  std::uint64_t looks_ = 0;
  std::uint64_t unchanged_ = 0;  // records in a row
  std::uint64_t repeats_ = 0;    // values seen again in them
  std::uint64_t first_step_ = 0;
  std::uint64_t trained_ = 0;         // records with a step that ought to change parameters
  std::uint64_t trained_before_ = 0;  // likewise, when something changed last
  std::uint64_t taken_ = 0;           // steps since
  std::uint64_t steps_ = 0;           // of the optimizer, at the last record
  std::uint64_t vain_steps_ = 0;
  bool in_vain_ = false;  // some were
  bool hashed_ = false;   // some parameter
  bool moved_ = false;    // some parameter, as far as hashes tell
};

}  // namespace

constexpr FingerprintKind kNoProgressKinds[] = {FingerprintKind::kUnchangedShare,
                                                FingerprintKind::kStepsOfOthers,
                                                FingerprintKind::kStepsInVain};
constexpr Check kNoProgressExplains[] = {&kFrozenGradient};
constinit const CheckInfo kNoProgress{
    .id = "no-progress",
    .severity = Severity::kCritical,
    .compares = "parameters with what they were before the optimizer's steps",
    .fires =
        "after the first step of an optimizer that holds nothing of the model, where none does; "
        "else when all of the model was hashed twice: 50 steps, a layer 75 (a warning); elements "
        "of 16 bits after 3 samples, 21 steps (a warning)",
    .consequence = "The training costs what it costs, and nothing is learned.",
    .cannot_see =
        "Steps whose gradient or learning rate is zero; optimizers that are none of torch's, where "
        "nothing moves.",
    .mistake =
        "optimizer = AdamW(model.parameters())\n"
        "fully_shard(model)            # new parameters: the optimizer holds the old ones\n"
        "model = copy.deepcopy(model)  # likewise",
    .fix =
        "Look whether the optimizer holds the parameters of this model (build it after the model "
        "is copied, moved or sharded by `fully_shard`), in a group whose learning rate is above 0, "
        "whether gradients are still there at its step, and whether its updates are too small for "
        "their format: bf16 needs fp32 master weights.",
    .precedence = 290,
    .explains = kNoProgressExplains,
    .fingerprints = kNoProgressKinds,
    .make = make<NoProgress>,
};

}  // namespace presum::checks
