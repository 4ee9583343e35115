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

constexpr double kScaleTolerance = 0.1;
constexpr double kOff = 0.03;      // of the mean's size: 16-bit sums round by less
constexpr double kOthers = 8;      // times the layer in the middle
constexpr double kEqual = 0.02;    // two layers' factors
constexpr double kExact = 1e-4;    // of the mean's size: rounding of sums in 32 bits
constexpr std::size_t kNames = 8;  // of layers, and of sets
constexpr double kNothing = 0.05;  // of the others' weight
constexpr std::uint64_t kBase = 16;
constexpr const char* kLookIntoHook =
    "Compare the process groups that these parameters are reduced over, and what a communication "
    "hook does to its bucket before it is reduced.";

template <class Chosen>
Layers chosen(const StepContext& context, Chosen&& is) {
  Layers out;
  for (const LayerReduction& layer : context.record.layers) {
    if (is(layer)) out.push_back(&layer);
  }
  return out;
}

// Layers that came out as the mean but for the rounding of 32 bits.
std::size_t exact(const StepContext& context) {
  return chosen(context, [](const LayerReduction& l) { return l.alike && l.off < kExact; }).size();
}

// How far layers are off that are well: rounding, or a compression of them all.
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
                     [&](const auto* layer) { return context.roster.group_name(layer->id); });
}

// "in some layers", or nothing where it is all of them.
const char* where(const Layers& layers, const StepContext& context) {
  if (layers.size() == context.record.layers.size()) return "";
  return layers.size() == 1 ? " in one layer" : " in some layers";
}

Signal signal_of(Check check, std::uint64_t key, const Layers& layers, Blame blame,
                 const StepContext& context) {
  Signal signal = sighting({check, kBase + key}, context, std::move(blame), 0.95);
  signal.evidence = {{"layers", names(layers, context)},
                     {"layers_of", static_cast<std::int64_t>(context.record.layers.size())}};
  return signal;
}

Ranks ranks_of(const LayerReduction& layer) {
  Ranks ranks;
  for (const auto& weighed : layer.weighed) insert(ranks, weighed.first);
  return ranks;
}

// An audit of the same step that found wrong elements tells more.
bool audit_found(const StepContext& context) {
  return std::ranges::any_of(context.record.workers,
                             [](const WorkerRecord& w) { return w.audit && w.audit->wrong > 0; });
}

class LayersReduced final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.alone() || context.record.layers.empty()) return;
    const double tolerance = tolerance_of(context.record.layers);
    kept_own(context, log);
    weighed(context, log);
    means_of_some(context, log);
    if (audit_found(context)) return;
    scaled(context, tolerance, log);
    unexplained(context, tolerance, log);
  }

 private:
  // All of all layers is what rules of the whole gradient say.
  void kept_own(const StepContext& context, SignalLog& log) const {
    const Layers layers = chosen(context, [](const auto& l) { return !l.kept_own.empty(); });
    if (layers.empty() || layers.size() == context.record.layers.size()) return;
    Ranks ranks;
    for (const LayerReduction* layer : layers) ranks = unite(ranks, layer->kept_own);
    const bool everyone = ranks.size() == context.workers();
    const Check check = everyone ? &kNoReduction : &kReducedGradientMismatch;
    Signal signal = signal_of(check, 1, layers, {ranks, everyone}, context);
    signal.title = fmt::format("{{Ranks}} kept their own gradients{}: these were not reduced",
                               where(layers, context));
    signal.remedy =
        "Look for parameters that came after the model was wrapped, that are left out of the "
        "reduction (ignored, `set_requires_all_reduce`), or whose gradient is written after it.";
    log.add(std::move(signal), 1);
  }

  // Of layers with the same ranks.
  void weighed(const StepContext& context, SignalLog& log) const {
    const Layers all = chosen(context, [](const auto& l) { return !l.weighed.empty(); });
    if (all.empty()) return;
    const Ranks ranks = ranks_of(*all.front());
    Layers layers;
    std::ranges::copy_if(all, std::back_inserter(layers),
                         [&](const LayerReduction* layer) { return ranks_of(*layer) == ranks; });
    double weight = all.front()->weighed.front().second;
    if (std::abs(weight) < kNothing) weight = 0;
    // Of all layers it is perhaps meant: weights by tokens, in a communication hook.
    if (weight > 0 && layers.size() == context.record.layers.size()) return;
    Signal signal = signal_of(&kReducedGradientMismatch, 4, layers, {ranks, false}, context);
    signal.title =
        fmt::format("The reduced gradient held {} of {{ranks}}{}",
                    weight == 0 ? "nothing" : fmt::format("{} times the part", number(weight)),
                    where(layers, context));
    signal.evidence.emplace_back("weight", weight);
    signal.remedy = kLookIntoHook;
    log.add(std::move(signal), 1);
  }

  // Of layers with the same sets.
  void means_of_some(const StepContext& context, SignalLog& log) const {
    const Layers all =
        chosen(context, [](const auto& l) { return !l.means_of.empty() && l.kept_own.empty(); });
    if (all.empty()) return;
    Layers layers;
    std::ranges::copy_if(all, std::back_inserter(layers), [&](const LayerReduction* layer) {
      return layer->means_of == all.front()->means_of;
    });
    const auto& sets = layers.front()->means_of;
    Signal signal =
        signal_of(&kReducedGradientMismatch, 2, layers, of_all(context.record), context);
    signal.title =
        std::string("{Ranks} were not reduced with all the others") + where(layers, context);
    std::string among;
    for (std::size_t i = 0; i < sets.size() && i < kNames; ++i) {
      among += fmt::format("{}{}", i == 0 ? "" : "; ", rank_ranges(sets[i]));
    }
    signal.evidence.emplace_back("means_of", among);
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
    if (layers.size() == context.record.layers.size()) return;
    const double factor = layers.front()->factor;
    const std::string name = factor_name(factor, static_cast<double>(context.workers()));
    Signal signal = signal_of(&kReductionScale, 1, layers, of_all(context.record), context);
    signal.title = fmt::format(
        "The reduced gradient of {{ranks}} was {} times the mean of the workers' gradients{}{}{}",
        number(factor), where(layers, context), name.empty() ? "" : ": ", name);
    signal.evidence.emplace_back("factor", factor);
    log.add(std::move(signal), 1);
  }

  // A compression of gradients is such a thing too, but of most layers.
  void unexplained(const StepContext& context, double tolerance, SignalLog& log) {
    const Layers layers = chosen(context, [&](const LayerReduction& l) {
      return l.alike && l.off > tolerance && l.factor_off > tolerance && l.weighed.empty();
    });
    const std::size_t all = context.record.layers.size();
    const bool few = 4 * layers.size() <= all;
    // Compression leaves none of several as they are.
    const bool others_exact = 2 * layers.size() <= all && exact(context) + layers.size() == all;
    strange_ = !layers.empty() && (few || others_exact) ? strange_ + 1 : 0;
    if (strange_ < (others_exact ? 1U : 2U)) return;
    Signal signal =
        signal_of(&kReducedGradientMismatch, 3, layers, of_all(context.record), context);
    signal.severity = others_exact ? Severity::kWarning : Severity::kInfo;
    signal.confidence = 0.8;
    signal.remedy =
        "Look for what changes some parameters of these layers: a bucket that a communication hook "
        "scales or overwrites in part, a parameter that is left out. A communication hook that "
        "compresses some layers does that. Without one, audit the "
        "reduction: `attach(audit=25)`.";
    signal.title = fmt::format(
        "The reduced gradient of {{ranks}} was not the mean of the workers' gradients{}",
        where(layers, context));
    signal.evidence.emplace_back(
        "distance_from_mean", (*std::ranges::max_element(layers, {}, [](const LayerReduction* l) {
                                return l->off;
                              }))->off);
    log.add(std::move(signal), 1);
  }

  std::uint64_t strange_ = 0;  // records in a row with layers that nothing explains
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

bool is_multiple(double ratio, double factor) {
  return std::abs(ratio / factor - 1) < kScaleTolerance;
}

std::string factor_name(double factor, double workers) {
  if (factor < 1e-6) return "nothing came out";
  if (is_multiple(factor, workers)) return "the sum instead of the mean";
  if (is_multiple(factor, 1 / workers)) return "the mean divided by the world size once more";
  if (is_multiple(factor, workers * workers)) return "the sum times the world size";
  return {};
}

std::string layers_apart(const StepContext& context) {
  return names(chosen(context, [](const LayerReduction& l) { return !l.alike; }), context);
}

std::unique_ptr<Rule> make_layers_reduced() { return std::make_unique<LayersReduced>(); }

}  // namespace presum::checks
