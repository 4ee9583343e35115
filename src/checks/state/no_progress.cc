// SPDX-License-Identifier: Apache-2.0
// **no-progress.** Followed on up to 64 ranks separately, from the hashes of parameters (1/25 of
// them per step). Counts steps in which an optimizer stepped with a learning rate above zero in its
// first group and a nonzero gradient. A finding needs 25 such steps since the last change, with all
// parts hashed after some of them. So a warm-up from zero and a step that a loss scaler skips are
// not reported.
//
// If presum received no optimizer, or one that holds none of the parameters, it looks at the steps
// of all optimizers of the process. Steps of an optimizer that holds parameters of the model count.
// Steps of one that holds nothing watched count only if no optimizer of the process holds any of
// the model's parameters (a GAN's discriminator is another model, and the generator's own optimizer
// holds the generator). If such an optimizer also has no gradient before and after its step, and a
// sample of the parameters (4, 64 elements of each) does not change until the next forward pass, it
// was built before the model was copied, sharded or replaced. This is reported immediately. Master
// weights have gradients, and parameters that are changed by hand move. `passed` needs a parameter
// that changed; if no torch optimizer steps and nothing changes, the check is `not-possible`.
//
// If other parts change, a layer is named that did not change for two rounds and had a gradient in
// each of their steps, also where learning rates are unknown because no torch optimizer steps. The
// finding says so if no optimizer holds the layer. It is information if the layer's learning rate
// is 0, or if the program removed its gradient before the optimizer step. If the names of such
// layers exceed 1,024 bytes, the rest are not reported. A layer with one element is skipped:
// programs hold scalars at a bound (CLIP's `logit_scale`).
//
// Hashes cannot show that most elements do not change. For that, a sample (8 of the optimizer's
// 16-bit parameters, 512 elements of each with a gradient) is compared before and after the
// optimizer step, in one step of 10; more than half unchanged in 3 samples in a row is a finding.
// Not if the optimizer keeps more than torch's own moments, such as an fp32 copy or the rounding
// error (Kahan), nor if a setting or the class is called stochastic, since an element that does not
// change in one step may in another. Hashes of sharded parameters (FSDP2) cover this rank's shard,
// which may have no gradient even if the layer has one: if only some ranks show a layer, it is
// reported only if their optimizers do not hold it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"
#include "checks/state/still.h"

namespace presum::checks {
namespace {

constexpr std::size_t kFollowed = 64;  // ranks; each costs the hashes of 50 records
constexpr std::size_t kNamesShown = 4;
constexpr double kMost = 0.5;
constexpr std::uint64_t kSureSamples = 3;  // samples

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
  enum class Why : std::uint8_t { kUnknown, kHeldByNone, kRateIsZero, kGradientTaken, kEither };

  std::string layers_standing;  // the first names
  std::uint64_t groups_unchanged = 0;
  Why why = Why::kUnknown;

  std::string cause() const {
    constexpr const char* kNames[] = {"unknown", "no optimizer holds them", "learning rate 0",
                                      "no gradient at the optimizer's step",
                                      "learning rate 0, or no gradient at the optimizer's step"};
    return kNames[static_cast<std::size_t>(why)];
  }
  bool was_meant() const { return why != Why::kUnknown && why != Why::kHeldByNone; }
  std::uint64_t key() const { return was_meant() ? 1 : 0; }
  static constexpr std::tuple kFields{field("layers_standing", &LayersUnchanged::layers_standing),
                                      field("groups_unchanged", &LayersUnchanged::groups_unchanged),
                                      field("cause", &LayersUnchanged::cause)};
};

std::string sentence(const LayersUnchanged& seen, const Who& who) {
  constexpr const char* kWhy[] = {", though gradients came there",
                                  ": no optimizer holds their parameters",
                                  ": the learning rate of their parameter group is 0",
                                  ": the program took their gradients away before the step",
                                  ": their learning rate is 0, or their gradients were taken away"};
  return fmt::format("{} took optimizer steps that left layer{} {} as before{}", who.words(),
                     seen.groups_unchanged == 1 ? "" : "s", seen.layers_standing,
                     kWhy[static_cast<std::size_t>(seen.why)]);
}

struct RoundedAway {
  double unchanged_share = 0;
  double learning_rate = 0;
  std::uint32_t of_rank = 0;  // the rank that share and rate belong to
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

// Some layers, by name, and the first step.
struct Layers {
  std::vector<std::string> names;
  std::uint64_t first_step = std::numeric_limits<std::uint64_t>::max();

  void add(std::string name, std::uint64_t since) {
    names.push_back(std::move(name));
    first_step = std::min(first_step, since);
  }
};

// Parses "a, b" into a and b. A fact that was too long ends in "...".
struct Listed {
  Listed() = default;
  explicit Listed(std::string_view text) : cut(text.find("...") != std::string_view::npos) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(", "), text.size());
      names.emplace(text.substr(0, end));
      text.remove_prefix(std::min(end + 2, text.size()));
    }
  }
  bool contains(const std::string& name) const { return names.contains(name); }

  std::set<std::string> names{};
  bool cut = false;
};

// What a rank reports about its layers.
struct Told {
  Told() = default;
  Told(const Roster& roster, std::uint32_t rank)
      : asked(roster.revision()),
        resting(roster.fact_of(rank, "layers_at_rest")),
        unheld(roster.fact_of(rank, "layers_of_no_optimizer")),
        scalars(roster.fact_of(rank, "layers_of_one_element")),
        taken(roster.fact_of(rank, "layers_without_gradient")) {}
  // Whether its learning rate is 0, or it is a scalar that the program may hold at a bound.
  bool may_rest(const std::string& name) const {
    return resting.cut || scalars.cut || taken.cut || resting.contains(name) ||
           scalars.contains(name) || taken.contains(name);
  }
  // Whether the layer is reported to be at rest.
  bool rests(const std::string& name) const {
    return resting.contains(name) || taken.contains(name);
  }

  std::uint64_t asked = ~std::uint64_t{0};  // the roster's revision
  Listed resting;
  Listed unheld;
  Listed scalars;
  Listed taken;  // layers whose gradients are gone when the optimizer steps
};

// Optimizer steps with a learning rate above zero and nonzero gradients, after which every rehashed
// part of the model, or of a layer, is unchanged; or after which most 16-bit elements are; or steps
// of optimizers that hold none of the model's parameters, if no other does.
class NoProgress final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    for (std::size_t i = 0; i < followed(context); ++i) {
      still_[context.record.workers[i].replica].see(context.record.workers[i], context.record.step);
    }
    follow_shares(context, log);
    follow_vain(context, log);
    tell_what_was_seen(context, log);
    report_models(context, log);
    report_layers(context, log);
  }

 private:
  static std::size_t followed(const StepContext& context) {
    return std::min(context.workers(), kFollowed);
  }

  Blame blame_of(const StepContext& context, Ranks ranks) const {
    const bool everyone = ranks.size() == context.workers();
    return {std::move(ranks), everyone};
  }

  // "Passed" needs parameters that changed: the optimizer may be unknown.
  void tell_what_was_seen(const StepContext& context, SignalLog& log) {
    std::vector<const StillParameters*> hashed;
    for (std::size_t i = 0; i < followed(context); ++i) {
      const StillParameters& one = still_[context.record.workers[i].replica];
      if (one.hashed()) hashed.push_back(&one);
    }
    if (hashed.empty()) return log.cannot(&kNoProgress, "No parameters were hashed.");
    const auto all = [&](auto of) {
      return std::ranges::all_of(
          hashed, of, [](auto* p) -> auto& { return *p; });
    };
    if (all(&StillParameters::moved)) return log.checked(&kNoProgress);
    if (std::ranges::none_of(hashed, [](const auto* one) { return one->trained(); })) {
      return log.cannot(
          &kNoProgress,
          "No optimizer step with a learning rate above 0 was seen, and no parameter changed.");
    }
    log.waits(&kNoProgress, all(&StillParameters::hashed_twice)
                                ? "No parameter has changed yet."
                                : "No part of the model was hashed twice yet.");
  }

  void report_models(const StepContext& context, SignalLog& log) {
    Ranks ranks;
    for (std::size_t i = 0; i < followed(context); ++i) {
      const WorkerRecord& worker = context.record.workers[i];
      if (still_[worker.replica].all_still()) insert(ranks, worker.rank);
    }
    if (ranks.empty()) return;
    const WorkerRecord& one = worker_of(context.record, ranks.front());
    const StillParameters& still = still_[one.replica];
    Signal signal = sighting(&kNoProgress, context, blame_of(context, std::move(ranks)), 0.95,
                             NothingChanged{.steps_without_change = still.steps(),
                                            .learning_rate = learning_rate(one),
                                            .held_by_no_optimizer = in_vain_});
    signal.first_step = std::min(still.first_step(), context.record.step);
    log.add(std::move(signal));
  }

  // For every set of ranks, the layers that did not change on exactly these ranks, and whether they
  // are at rest.
  void report_layers(const StepContext& context, SignalLog& log) {
    std::map<std::pair<Ranks, bool>, Layers> standing;
    for (const GroupRecord& g : context.record.groups) {
      const std::string name = context.roster.group_name(g.id);
      std::array<Ranks, 2> still;  // ranks where it should move, ranks where it is at rest
      std::uint64_t since = std::numeric_limits<std::uint64_t>::max();
      bool explained = true;
      for (std::size_t i = 0; i < followed(context); ++i) {
        const WorkerRecord& worker = context.record.workers[i];
        StillParameters& own = still_[worker.replica];
        if (own.all_still()) continue;
        if (i >= g.norms.size() || !(g.norms[i] > 0)) own.forget_layer(g.id);
        const Told& told = told_of(context, worker);
        if (told.may_rest(name)) own.rests(g.id);
        const StillParameters::Layer* layer = own.still_layer(g.id);
        const bool rests = told.rests(name);
        if (layer == nullptr || (own.rested(*layer) && !rests)) continue;
        since = std::min(since, layer->first_step);
        explained = explained && (!layer->sharded || told.unheld.contains(name));
        insert(still[rests ? 1 : 0], worker.rank);
      }
      // A shard may have no gradient even if the whole layer has one.
      if (!explained && still[0].size() < followed(context)) still[0].clear();
      for (const bool rests : {false, true}) {
        const Ranks& ranks = still[rests ? 1 : 0];
        if (!ranks.empty()) standing[{ranks, rests}].add(name, since);
      }
    }
    for (const auto& [of, layers] : standing) report(context, of.first, of.second, layers, log);
  }

  const Told& told_of(const StepContext& context, const WorkerRecord& worker) {
    Told& told = told_[worker.replica];
    if (told.asked != context.roster.revision()) told = Told(context.roster, worker.rank);
    return told;
  }

  void report(const StepContext& context, const Ranks& ranks, bool rests, const Layers& layers,
              SignalLog& log) const {
    using enum LayersUnchanged::Why;
    const auto all_in = [&](const char* fact) {
      const Listed listed(context.roster.fact_of(ranks.front(), fact));
      return std::ranges::all_of(layers.names,
                                 [&](const std::string& name) { return listed.contains(name); });
    };
    const auto rest = all_in("layers_at_rest")            ? kRateIsZero
                      : all_in("layers_without_gradient") ? kGradientTaken
                                                          : kEither;
    const auto why = rests ? rest : all_in("layers_of_no_optimizer") ? kHeldByNone : kUnknown;
    Signal signal =
        sighting(&kNoProgress, context, blame_of(context, ranks), 0.9,
                 LayersUnchanged{first_names(layers.names, kNamesShown, std::identity{}),
                                 layers.names.size(), why});
    signal.first_step = std::min(layers.first_step, context.record.step);
    signal.severity = rests ? Severity::kInfo : Severity::kWarning;
    if (rests) signal.remedy = "Nothing, if this is intended.";
    if (why == kHeldByNone) {
      signal.remedy = "Pass all parameters that should be trained to the optimizer.";
    }
    log.add(std::move(signal), kAllSteps);
  }

  // For 16-bit elements with a nonzero gradient, from samples of some steps.
  void follow_shares(const StepContext& context, SignalLog& log) {
    const WorkerRecord& worker = context.record.workers.front();
    if (worker.fingerprint_of(FingerprintKind::kUnchangedShare) == nullptr) return;
    const double share = real_of(worker, FingerprintKind::kUnchangedShare);
    log.checked(&kNoProgress);
    log.needs_records(&kNoProgress, kSureSamples,
                      "Updates in 16 bits may round to nothing in some steps.");
    const double rate = learning_rate(worker);
    const bool rises = rate > std::exchange(sampled_rate_, rate);
    if (rises) return;  // a warm-up: updates still grow
    if (rounded_.see(share > kMost && rate > 0, context.record.step) < kSureSamples) return;
    Signal signal = sighting(&kNoProgress, context, of_all(context.record), 0.9,
                             RoundedAway{share, rate, worker.rank});
    signal.first_step = rounded_.first_step;
    signal.severity = Severity::kWarning;
    log.add(std::move(signal), kAllSteps);
  }

  // Steps of optimizers that hold none of the model's parameters and have no gradient, as ranks
  // report them.
  void follow_vain(const StepContext& context, SignalLog& log) {
    std::uint64_t most = 0;
    Blame blame = blame_where(context, [&](const WorkerRecord& w) {
      if (w.grad_norm == 0) return false;  // NaN counts as a gradient
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

  PerWorker<StillParameters> still_;
  PerWorker<Told> told_;
  Streak rounded_;  // samples in which most elements did not change
  double sampled_rate_ =
      std::numeric_limits<double>::infinity();  // the learning rate at the last sample
  std::uint64_t vain_steps_ = 0;
  bool in_vain_ = false;  // some steps were in vain
};

}  // namespace

constexpr FingerprintKind kNoProgressKinds[] = {FingerprintKind::kUnchangedShare,
                                                FingerprintKind::kStepsOfOthers,
                                                FingerprintKind::kStepsInVain};
constexpr Check kNoProgressExplains[] = {&kFrozenGradient, &kParameterDesync};
constinit const CheckInfo kNoProgress{
    .id = "no-progress",
    .severity = Severity::kCritical,
    .compares = "parameters before and after the optimizer's steps",
    .fires =
        "after the first step of an optimizer that holds none of the model's parameters, if no "
        "other does; in all other cases when the whole model was hashed twice: 50 steps, a single "
        "layer 75 (a warning); 16-bit elements after 3 samples, 21 steps (a warning)",
    .consequence = "The training costs its full price, and the model learns nothing.",
    .cannot_see =
        "Steps with a zero gradient or learning rate; optimizers other than torch's, if nothing "
        "moves.",
    .mistake =
        "optimizer = AdamW(model.parameters())\nfully_shard(model)            # new parameters: "
        "the optimizer holds the old ones\nmodel = copy.deepcopy(model)  # the same",
    .fix =
        "Check that the optimizer holds the parameters of this model (build it after copying, "
        "moving or sharding the model with `fully_shard`) in a group with a learning rate above 0, "
        "that gradients still exist at its step, and that updates are not too small for their "
        "format: bf16 needs fp32 master weights.",
    .precedence = 255,
    .explains = kNoProgressExplains,
    .fingerprints = kNoProgressKinds,
    .explains_single_ranks = false,
    .make = make<NoProgress>,
};

}  // namespace presum::checks
