// SPDX-License-Identifier: Apache-2.0
#include "checks/reduction/layers_reduced.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using Layers = std::vector<const LayerReduction*>;

constexpr double kOff = 0.03;      // of the size of the mean: 16-bit sums round by less
constexpr double kOthers = 8;      // times the median layer
constexpr double kEqual = 0.02;    // difference between the factors of two layers
constexpr double kExact = 1e-4;    // of the size of the mean: rounding of 32-bit sums
constexpr std::size_t kNames = 8;  // of layers, and of sets
constexpr double kNothing = 0.05;  // relative to the others' weight
constexpr const char* kLookIntoHook =
    "Compare the process groups that these parameters are reduced over, and check what a "
    "communication hook does to its bucket before the reduction.";

template <class Chosen>
Layers chosen(const StepContext& context, Chosen&& is) {
  Layers out;
  for (const LayerReduction& layer : context.record.layers) {
    if (is(layer)) out.push_back(&layer);
  }
  return out;
}

// Layers that equal the mean up to 32-bit rounding.
std::size_t exact(const StepContext& context) {
  return chosen(context, [](const LayerReduction& l) { return l.alike && l.off < kExact; }).size();
}

// The deviation of healthy layers: rounding, or a compression of all layers.
double tolerance_of(const std::vector<LayerReduction>& layers) {
  std::vector<double> off;
  off.reserve(layers.size());
  for (const LayerReduction& layer : layers) off.push_back(layer.off);
  const auto middle = off.begin() + static_cast<std::ptrdiff_t>((off.size() - 1) / 2);
  std::ranges::nth_element(off, middle);
  return std::max(kOff, kOthers * *middle);
}

std::string names(const Layers& layers, const StepContext& context) {
  return first_names(layers, kNames,
                     [&](const auto* layer) { return context.roster.layer_name(layer->id); });
}

std::string sets_text(const std::vector<Ranks>& sets) {
  return joined(sets, kNames, "; ", [](const Ranks& ranks) { return rank_ranges(ranks); });
}

struct SomeLayers {
  std::string layers;  // the first names
  std::uint64_t layers_affected = 0;
  std::uint64_t layers_of = 0;

  // " in some layers", or nothing if it is all of them.
  const char* where() const {
    if (layers_affected == layers_of) return "";
    return layers_affected == 1 ? " in one layer" : " in some layers";
  }
  static constexpr std::tuple kFields{field("layers", &SomeLayers::layers),
                                      field("layers_affected", &SomeLayers::layers_affected),
                                      field("layers_of", &SomeLayers::layers_of)};
};

struct KeptOwn : SomeLayers {};

struct OtherWeight : SomeLayers {
  double weight = 0;  // 0: the rank's part is missing
  static constexpr auto kFields =
      std::tuple_cat(SomeLayers::kFields, std::tuple{field("weight", &OtherWeight::weight)});
};

struct MeansOfSome : SomeLayers {
  std::string means_of;
  static constexpr auto kFields =
      std::tuple_cat(SomeLayers::kFields, std::tuple{field("means_of", &MeansOfSome::means_of)});
};

struct LayersScaled : SomeLayers {
  double factor = 0;
  std::string factor_is;
  static constexpr auto kFields =
      std::tuple_cat(SomeLayers::kFields, std::tuple{field("factor", &LayersScaled::factor),
                                                     field("factor_is", &LayersScaled::factor_is)});
};

struct NotTheMean : SomeLayers {
  double distance_from_mean = 0;  // relative to its norm
  static constexpr auto kFields =
      std::tuple_cat(SomeLayers::kFields,
                     std::tuple{field("distance_from_mean", &NotTheMean::distance_from_mean)});
};

struct ReducedInGroups {
  std::string layers;
  std::uint64_t layers_affected = 0;
  std::string groups;
  std::uint64_t ranks_of_largest = 0;
  static constexpr std::tuple kFields{
      field("layers", &ReducedInGroups::layers),
      field("layers_affected", &ReducedInGroups::layers_affected),
      field("groups", &ReducedInGroups::groups),
      field("ranks_of_largest", &ReducedInGroups::ranks_of_largest)};
};

std::string sentence(const ReducedInGroups& seen, const Who& who) {
  const bool one = seen.layers_affected == 1;
  const char* layers = one ? "one layer" : "some layers";
  const char* them = one ? "it" : "them";
  if (seen.ranks_of_largest == 1) {
    return fmt::format("{} held {} of their own from the start, and did not reduce {}", who.words(),
                       layers, them);
  }
  return fmt::format("{} held {} in groups from the start, and reduced {} within these: {}",
                     who.words(), layers, them, seen.groups);
}

std::string sentence(const KeptOwn& seen, const Who& who) {
  return fmt::format("{} kept their own gradients{}: these were not reduced", who.words(),
                     seen.where());
}

std::string sentence(const OtherWeight& seen, const Who& who) {
  const std::string held =
      seen.weight == 0 ? "nothing" : fmt::format("{} times the part", number(seen.weight));
  return fmt::format("The reduced gradient held {} of {}{}", held, who.within(), seen.where());
}

std::string sentence(const MeansOfSome& seen, const Who& who) {
  return fmt::format("{} were not reduced with all the others{}", who.words(), seen.where());
}

std::string sentence(const LayersScaled& seen, const Who& who) {
  return fmt::format(
      "The reduced gradient of {} was {} times the mean of the ranks' gradients{}{}{}",
      who.within(), number(seen.factor), seen.where(), seen.factor_is.empty() ? "" : ": ",
      seen.factor_is);
}

std::string sentence(const NotTheMean& seen, const Who& who) {
  return fmt::format("The reduced gradient of {} was not the mean of the ranks' gradients{}",
                     who.within(), seen.where());
}

SomeLayers some(const Layers& layers, const StepContext& context) {
  return {names(layers, context), layers.size(), context.record.layers.size()};
}

Signal signal_of(Check check, Blame blame, const StepContext& context, Evidence seen) {
  return sighting(check, context, std::move(blame), 0.95, std::move(seen));
}

Ranks ranks_of(const LayerReduction& layer) {
  Ranks ranks;
  for (const auto& weighed : layer.weighed) insert(ranks, weighed.first);
  return ranks;
}

// An audit of the same step that found wrong elements is more specific.
bool audit_found(const StepContext& context) {
  return std::ranges::any_of(context.record.workers,
                             [](const WorkerRecord& w) { return w.audit && w.audit->wrong > 0; });
}

class LayersReduced final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.alone() || context.record.layers.empty()) return;
    if (!context.layer_groups.empty()) in_groups(context, log);
    const double tolerance =
        context.layer_groups.empty() ? tolerance_of(context.record.layers) : kOff;
    kept_own(context, log);
    weighed(context, log);
    means_of_some(context, log);
    if (audit_found(context)) return;
    scaled(context, tolerance, log);
    unexplained(context, tolerance, log);
  }

 private:
  // Whether it holds for the whole gradient, which separate rules judge.
  static bool is_whole(const Layers& layers, const StepContext& context) {
    return layers.size() == context.record.layers.size() && context.layer_groups.empty();
  }

  static void in_groups(const StepContext& context, SignalLog& log) {
    const LayerGroups& groups = context.layer_groups;
    log.checked(&kReducedGradientMismatch);
    log.checked(&kReductionScale);
    const auto ranks = groups.groups();
    const auto largest = std::ranges::max(ranks, {}, &Ranks::size);
    Signal signal = signal_of(&kReducedGradientMismatch, of_all(context.record), context,
                              ReducedInGroups{groups.names(context.roster, kNames), groups.layers(),
                                              sets_text(ranks), largest.size()});
    signal.severity = Severity::kInfo;
    signal.remedy =
        "Nothing, if each group has its own experts, or its own copy of another part of the model. "
        "presum does not judge the divisor of their gradients.";
    log.add(std::move(signal), kAllSteps);
  }

  void kept_own(const StepContext& context, SignalLog& log) const {
    const Layers layers = chosen(context, [](const auto& l) { return !l.kept_own.empty(); });
    if (layers.empty() || is_whole(layers, context)) return;
    Ranks ranks;
    for (const LayerReduction* layer : layers) ranks = unite(ranks, layer->kept_own);
    const bool everyone = ranks.size() == context.workers();
    const Check check = everyone ? &kNoReduction : &kReducedGradientMismatch;
    Signal signal = signal_of(check, {ranks, everyone}, context, KeptOwn{some(layers, context)});
    signal.remedy =
        "Look for parameters that were added after the model was wrapped, that the reduction skips "
        "(ignored, `set_requires_all_reduce`), or whose gradient is written after it.";
    log.add(std::move(signal), 1);
  }

  // Reports layers with the same ranks together.
  void weighed(const StepContext& context, SignalLog& log) const {
    const Layers all = chosen(context, [](const auto& l) { return !l.weighed.empty(); });
    if (all.empty()) return;
    const Ranks ranks = ranks_of(*all.front());
    Layers layers;
    std::ranges::copy_if(all, std::back_inserter(layers),
                         [&](const LayerReduction* layer) { return ranks_of(*layer) == ranks; });
    double weight = all.front()->weighed.front().second;
    if (std::abs(weight) < kNothing) weight = 0;
    // In all layers it may be intended: weights by tokens, in a communication hook.
    if (weight > 0 && is_whole(layers, context)) return;
    Signal signal = signal_of(&kReducedGradientMismatch, {ranks, false}, context,
                              OtherWeight{some(layers, context), weight});
    signal.remedy = kLookIntoHook;
    log.add(std::move(signal), 1);
  }

  // Reports layers with the same sets together.
  void means_of_some(const StepContext& context, SignalLog& log) const {
    const Layers all =
        chosen(context, [](const auto& l) { return !l.means_of.empty() && l.kept_own.empty(); });
    if (all.empty()) return;
    Layers layers;
    std::ranges::copy_if(all, std::back_inserter(layers), [&](const LayerReduction* layer) {
      return layer->means_of == all.front()->means_of;
    });
    Signal signal =
        signal_of(&kReducedGradientMismatch, of_all(context.record), context,
                  MeansOfSome{some(layers, context), sets_text(layers.front()->means_of)});
    signal.remedy = kLookIntoHook;
    log.add(std::move(signal), 1);
  }

  void scaled(const StepContext& context, double tolerance, SignalLog& log) const {
    const Layers off = chosen(context, [&](const LayerReduction& l) {
      return l.alike && l.off > tolerance && l.factor_off <= tolerance && l.weighed.empty();
    });
    if (off.empty()) return;
    Layers layers;
    std::ranges::copy_if(off, std::back_inserter(layers), [&](const LayerReduction* layer) {
      return std::abs(layer->factor - off.front()->factor) <=
             kEqual * std::max(1.0, std::abs(off.front()->factor));
    });
    if (is_whole(layers, context)) return;
    const double factor = layers.front()->factor;
    log.add(signal_of(&kReductionScale, of_all(context.record), context,
                      LayersScaled{some(layers, context), factor,
                                   factor_name(factor, static_cast<double>(context.workers()))}),
            1);
  }

  // Gradient compression does this too, but to most layers.
  void unexplained(const StepContext& context, double tolerance, SignalLog& log) {
    const Layers layers = chosen(context, [&](const LayerReduction& l) {
      return l.alike && l.off > tolerance && l.factor_off > tolerance && l.weighed.empty();
    });
    const std::size_t all = context.record.layers.size();
    const bool few = 4 * layers.size() <= all;
    // Compression leaves no layer exact when there are several.
    const bool others_exact = 2 * layers.size() <= all && exact(context) + layers.size() == all;
    strange_ = !layers.empty() && (few || others_exact) ? strange_ + 1 : 0;
    if (strange_ < (others_exact ? 1U : 2U)) return;
    const double off = (*std::ranges::max_element(layers, {}, &LayerReduction::off))->off;
    Signal signal = signal_of(&kReducedGradientMismatch, of_all(context.record), context,
                              NotTheMean{some(layers, context), off});
    signal.severity = others_exact ? Severity::kWarning : Severity::kInfo;
    signal.confidence = 0.8;
    signal.remedy =
        "Look for what changes some parameters of these layers: a bucket that a communication hook "
        "scales or overwrites in part, a parameter that is left out, or a communication hook that "
        "compresses some layers. Without a hook, audit the reduction: `attach(audit=25)`.";
    log.add(std::move(signal), 1);
  }

  std::uint64_t strange_ = 0;  // records in a row with unexplained layers
};

}  // namespace

bool layers_differ(const StepContext& context) {
  const auto& layers = context.record.layers;
  if (layers.empty()) return false;
  const double tolerance = tolerance_of(layers);
  const auto off =
      std::ranges::count_if(layers, [&](const LayerReduction& l) { return l.off > tolerance; });
  return off > 0 && exact(context) > 0;
}

bool is_multiple(double ratio, double factor, double within) {
  return std::abs(ratio / factor - 1) < within;
}

std::string factor_name(double factor, double workers, double within) {
  if (factor < 1e-6) return "nothing came out";
  if (is_multiple(factor, workers, within)) return "the sum instead of the mean";
  if (is_multiple(factor, 1 / workers, within))
    return "the mean divided by the world size once more";
  if (is_multiple(factor, workers * workers, within)) return "the sum times the world size";
  return {};
}

std::string layers_apart(const StepContext& context) {
  return names(chosen(context, [](const LayerReduction& l) { return !l.alike; }), context);
}

std::unique_ptr<Rule> make_layers_reduced() { return std::make_unique<LayersReduced>(); }

}  // namespace presum::checks
