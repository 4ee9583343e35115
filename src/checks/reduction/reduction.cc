// SPDX-License-Identifier: Apache-2.0
// **no-reduction, reduced-gradient-mismatch, reduction-scale.** presum reads the reduced gradient
// at the first step and every 25th. In between, it sees steps without a reduction
// ([step.md](step.md)) immediately. These are information in two cases. In the first, parameters
// that differed were equal again at three equal distances (local SGD), for as long as that
// continues. In the second, gradients differ, but the hashed parts of the parameters moved and were
// equal after three such steps in a row that could show a difference (26 steps later, when a part
// is hashed again): the program reduces by other means. A forward pass around the wrapper raises no
// finding by itself, but explains one. So does an order of passes with which
// DistributedDataParallel does not reduce: `backward()` inside the forward, a second one after the
// same forward or after several forwards, and `torch.autograd.grad` before it with
// `static_graph=True`. A framework may reduce the first pass inside a static graph's forward after
// it (Lightning), so the next reduced gradient is read instead.
//
// The scale needs sketches, all ranks, and finite gradients. The factor must be outside 1 ± 0.1 and
// outside 1 ± 6 relative standard errors. A factor that is not the world size, its square or its
// inverse must appear at two readings in a row, so a clipped or compressed gradient with a steady
// loss of norm is reported with low confidence.
//
// Layer by layer ([metrics.md](metrics.md#layer-by-layer)) the mean itself is known. A layer that
// is a multiple of the mean, is the mean of some ranks, contains a rank's part with a different
// weight, or kept each rank's own gradient is reported immediately, unless all layers show it. A
// rank's weight above 0 in all layers may be intended. Layers that fit none of these are
// information if they are at most a quarter of all layers, two readings in a row, because
// compression looks the same. They are a warning immediately if all other layers, at least half,
// equal the mean exactly.
//
// FSDP2 and HSDP are judged by the sum of their shards: norm and scale of the whole, every layer as
// above, and the replicas of a shard against each other. With them, groups that were reduced
// separately match no pattern, since no rank holds a whole mean of some ranks. HSDP that loses
// shards but sums replicas shows only in its norm. Parameters that are sharded by another dimension
// than the first, under tensor parallelism, or over other ranks than the model's are skipped, and
// so are passes between `set_requires_all_reduce(False)` and the all-reduce.
// `set_gradient_divide_factor` is taken as intended if most groups have it.
//
// A layer that groups of ranks reduce among themselves is information if, at the first record, each
// group held its own parameters of it beside layers that all ranks reduce: experts, or shards of an
// embedding. Its scale and the norm of the whole gradient are then not judged, and its parameters
// are compared within a group. If such parameters were equal at the start, it is a finding. With
// `mode="manual"` reductions are unknown until `monitor.before_reduction` is called: a warning. Not
// possible on devices. The check misses what a wrong reduction and a wrong reading would both show:
// rounding, order, accumulation in 16 bits. An audit sees those.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/text.h"
#include "checks/reduction/backward_order.h"
#include "checks/reduction/layers_reduced.h"

namespace presum::checks {
namespace {

constexpr const char* kNotRead =
    "No rank read a reduced gradient (it is read at the first step and every 25th).";
constexpr double kScaleOff = 0.1;
constexpr double kNamedWithin = 0.02;  // of a factor, in addition to three errors of the ratio
constexpr double kLossy = 1.05;  // a compressing hook removes up to twice this much of a norm,
constexpr double kLost = 0.05;   // so the factor is between 1 and 1.1 times the ratio
constexpr std::uint64_t kSteady = 3;
constexpr double kSigmas = 6;
constexpr double kSameNorm = 1e-6;  // relative: for one sum, over one loss scale

constexpr const char* kByHand =
    "Nothing, if the program reduces by hand (gradients that are combined or clipped separately). "
    "Check that one rank's parameters do not overwrite the others'; to check the program's own "
    "reduction, attach with mode=\"manual\".";
constexpr const char* kHandOver =
    "With mode=\"manual\", call `monitor.before_reduction(named)` before gradients are reduced and "
    "`monitor.after_reduction(named)` afterwards.";
constexpr const char* kReducedEarly =
    "Reduce the gradient after the last micro-batch's backward pass has finished.";
constexpr const char* kLocalSgd =
    "Nothing, if local SGD is intended: parameters are averaged instead of gradients. Check that "
    "they are averaged, and that one rank's do not overwrite the others'.";

bool has_reduced(const WorkerRecord& w) { return w.reduced_fingerprint != 0; }

Split reduced_split(const StepRecord& record) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : record.workers) {
    if (has_reduced(w)) held.push_back({w.reduced_fingerprint, w.rank});
  }
  return split(std::move(held));
}

bool local_finite(const StepRecord& record) {
  return std::ranges::all_of(record.workers, [](const WorkerRecord& w) {
    return w.nonfinite == 0 && std::isfinite(w.grad_norm);
  });
}

bool contains(const Ranks& ranks, std::uint32_t rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

// Ranks that kept their own gradients in every layer with known results.
Ranks kept_everything(const StepRecord& record) {
  if (record.layers.empty()) return {};
  Ranks ranks = record.layers.front().kept_own;
  for (const LayerReduction& layer : record.layers) {
    std::erase_if(ranks, [&](std::uint32_t r) { return !contains(layer.kept_own, r); });
  }
  return ranks;
}

struct NeverDue {
  std::uint64_t unreduced_steps = 0;
  std::string order;  // of forward and backward passes, if DDP does not reduce with it
  static constexpr std::tuple kFields{field("unreduced_steps", &NeverDue::unreduced_steps),
                                      field("order", &NeverDue::order)};
};

// Backward passes that added to a gradient after its reduction and before the optimizer used it.
struct AddedAfter {
  std::uint64_t micro_batches_added = 0;
  std::uint64_t of_micro_batches = 0;
  std::string order;  // of forward and backward passes, if DDP does not reduce with it
  static constexpr std::tuple kFields{
      field("micro_batches_added", &AddedAfter::micro_batches_added),
      field("of_micro_batches", &AddedAfter::of_micro_batches), field("order", &AddedAfter::order)};
};

// Parameters stay equal all the same.
struct OtherMeans {
  std::uint64_t unreduced_steps = 0;
  static constexpr std::tuple kFields{field("unreduced_steps", &OtherMeans::unreduced_steps)};
};

std::string sentence(const OtherMeans& /*seen*/, const Who& who) {
  return who.words() +
         " took steps on gradients that the wrapper did not reduce, and held equal parameters";
}

struct NotHandedOver {
  std::uint64_t unreduced_steps = 0;
  static constexpr std::tuple kFields{field("unreduced_steps", &NotHandedOver::unreduced_steps)};
};

std::string sentence(const NotHandedOver& /*seen*/, const Who& who) {
  const std::string ranks = who.everyone ? "No rank" : who.words() + " never";
  return ranks + " called monitor.before_reduction: whether gradients are reduced is not known";
}

struct Averaged {
  std::uint64_t steps_apart = 0;  // from one average to the next
  std::uint64_t unreduced_steps = 0;
  static constexpr std::tuple kFields{field("steps_apart", &Averaged::steps_apart),
                                      field("unreduced_steps", &Averaged::unreduced_steps)};
};

struct NothingReduced {
  std::uint64_t ranks_with_own_gradient = 0;
  std::uint64_t of_ranks = 0;
  std::optional<std::uint64_t> distinct_reduced_gradients;  // unknown for shards of own gradients
  Ranks ranks_around_wrapper;
  std::string order;  // of forward and backward passes, if DDP does not reduce with it

  static constexpr std::tuple kFields{
      field("ranks_with_own_gradient", &NothingReduced::ranks_with_own_gradient),
      field("of_ranks", &NothingReduced::of_ranks),
      field("distinct_reduced_gradients", &NothingReduced::distinct_reduced_gradients),
      field("ranks_around_wrapper", &NothingReduced::ranks_around_wrapper),
      field("order", &NothingReduced::order)};
};

struct OtherReduced {
  bool most_agree = true;
  std::uint64_t distinct_reduced_gradients = 0;
  std::string layers;

  static constexpr std::tuple kFields{
      field("most_agree", &OtherReduced::most_agree),
      field("distinct_reduced_gradients", &OtherReduced::distinct_reduced_gradients),
      field("layers", &OtherReduced::layers)};
};

struct MadeNonfinite {
  std::uint64_t ranks_with_nonfinite_result = 0;
  static constexpr std::tuple kFields{
      field("ranks_with_nonfinite_result", &MadeNonfinite::ranks_with_nonfinite_result)};
};

struct Scaled {
  double factor = 0;
  double factor_error = 0;
  std::string factor_is;
  double reduced_norm = 0;
  double mean_norm = 0;

  static constexpr std::tuple kFields{
      field("factor", &Scaled::factor), field("factor_error", &Scaled::factor_error),
      field("factor_is", &Scaled::factor_is), field("reduced_norm", &Scaled::reduced_norm),
      field("mean_norm", &Scaled::mean_norm)};
};

std::string sentence(const NeverDue& seen, const Who& who) {
  const BackwardOrder* order = backward_order(seen.order);
  return fmt::format("{} ran the optimizer on gradients that were {}{}{}", who.words(),
                     order ? "not reduced" : "never due to be reduced", order ? ": " : "",
                     order ? order->why : "");
}

std::string sentence(const Averaged& seen, const Who& who) {
  return fmt::format("{} took optimizer steps of their own and had equal parameters every {} steps",
                     who.words(), seen.steps_apart);
}

std::string sentence(const AddedAfter& seen, const Who& who) {
  const BackwardOrder* order = backward_order(seen.order);
  return fmt::format("{} added {} of the {} {} of a step to the gradient after it was reduced{}{}",
                     who.words(), seen.micro_batches_added, seen.of_micro_batches,
                     order ? "backward passes" : "micro-batches", order ? ": " : "",
                     order ? order->why : "");
}

// Why nothing was reduced, up to "so "; empty if unknown.
std::string why_nothing(const NothingReduced& seen) {
  const Ranks& ranks = seen.ranks_around_wrapper;
  if (const BackwardOrder* order = backward_order(seen.order)) {
    return fmt::format("{}, so ", order->why);
  }
  if (ranks.empty()) return "";
  const bool all = ranks.size() >= seen.of_ranks;
  return fmt::format("the forward pass{} went around the data-parallel wrapper, so ",
                     all ? "" : " of " + Who{ranks, false}.within());
}

std::string sentence(const NothingReduced& seen, const Who& who) {
  const bool all = seen.ranks_with_own_gradient >= seen.of_ranks;
  const auto kept =
      all ? who.words()
          : fmt::format("{} of {} ranks", seen.ranks_with_own_gradient, seen.of_ranks);
  return fmt::format("{} kept their own gradients: {}{} reduced", kept, why_nothing(seen),
                     all ? "nothing was" : "these were not");
}

std::string sentence(const OtherReduced& seen, const Who& who) {
  return who.words() + (seen.most_agree ? " held another reduced gradient than the others"
                                        : " held different reduced gradients");
}

std::string sentence(const MadeNonfinite& /*seen*/, const Who& who) {
  return who.words() +
         " put in finite gradients, and the reduced gradient was not finite: the reduction made it";
}

std::string sentence(const Scaled& seen, const Who& who) {
  return fmt::format("The reduced gradient of {} was {} times the mean of the ranks' gradients{}{}",
                     who.within(), number(seen.factor), seen.factor_is.empty() ? "" : ": ",
                     seen.factor_is);
}

class Reduction final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    // One rank alone may have taken the step while others expected it to be reduced.
    if (context.record.workers_expected > 1) {
      watch_late_passes(context, log);
      watch_unreduced_steps(context, log);
    } else {
      log.cannot(&kNoReduction, kOneWorker);
    }
    if (context.alone()) {
      log.cannot(&kReducedGradientMismatch, kOneWorker);
      return log.cannot(&kReductionScale, kOneWorker);
    }
    layers_->update(context, log);
    compare(context, log);
  }

 private:
  // The reduction was too early: the optimizer used more than was reduced.
  void watch_late_passes(const StepContext& context, SignalLog& log) {
    AddedAfter seen;
    Blame blame = blame_where(context, [&](const WorkerRecord& w) {
      const std::uint64_t before = context.late.reduced_before(w);
      if (before > 0) seen = {w.micro_batches, before + w.micro_batches};
      return before > 0;
    });
    late_ = !blame.ranks.empty();
    if (!late_ || (blame.everyone && adds_the_same(context))) return;
    const BackwardOrder* order = backward_order_of(context, blame.ranks);
    if (order && !order->reduces_first) order = nullptr;
    Signal signal = explained(context, std::move(blame), std::move(seen), order);
    if (!order) signal.remedy = kReducedEarly;
    log.add(std::move(signal), kAllSteps);
  }

  // Whether the gradient is nevertheless equal on all ranks, as after a penalty on the weights.
  static bool adds_the_same(const StepContext& context) {
    const WorkerRecord& first = context.record.workers.front();
    return context.complete() && std::ranges::all_of(context.record.workers, [&](const auto& w) {
             return context.late.adds_no_data(w) && has_gradient(w) && w.fingerprint != 0 &&
                    w.fingerprint == first.fingerprint;
           });
  }

  void watch_unreduced_steps(const StepContext& context, SignalLog& log) {
    std::uint64_t most = 0;
    const bool known = handed_over(context, log);
    const Blame blame = blame_where(context, [&](const WorkerRecord& w) {
      const std::uint64_t steps = w.number.unreduced + (w.number.is_reduced() ? 0 : 1);
      log.checked(&kNoReduction);
      most = std::max(most, steps);
      return steps > std::exchange(unreduced_[w.replica], steps);
    });
    if (blame.ranks.empty() || late_) return;
    if (!known) return not_handed_over(context, blame, most, log);
    if (unreduced_since_ > context.record.step) unreduced_since_ = context.record.step;
    if (context.averaging.by_other_means()) return by_other_means(context, blame, most, log);
    if (std::exchange(by_other_means_, false)) log.forget(&kNoReduction, key_of(OtherMeans{}));
    if (context.averaging.interval() > 0) return averaged(context, blame, most, log);
    const BackwardOrder* order = backward_order_of(context, blame.ranks);
    log.add(explained(context, blame, NeverDue{most, {}}, order), 1);
  }

  // With the order of passes that explains it, or null.
  template <class E>
  static Signal explained(const StepContext& context, Blame blame, E seen,
                          const BackwardOrder* order) {
    if (order) seen.order = order->name;
    Signal signal = sighting(&kNoReduction, context, std::move(blame), 0.99, std::move(seen));
    if (order) signal.remedy = order->remedy;
    return signal;
  }

  // Whether reductions are visible: always with a wrapper; with manual mode, once the program
  // passes in a reduction.
  bool handed_over(const StepContext& context, SignalLog& log) {
    const bool reduced = std::ranges::any_of(
        context.record.workers, [](const WorkerRecord& w) { return w.number.is_reduced(); });
    if (reduced && !std::exchange(handed_over_, true)) {
      log.forget(&kNoReduction, key_of(NotHandedOver{}));
    }
    return handed_over_ || context.roster.fact("wrapper") != "by hand";
  }

  static void not_handed_over(const StepContext& context, Blame blame, std::uint64_t unreduced,
                              SignalLog& log) {
    Signal signal =
        sighting(&kNoReduction, context, std::move(blame), 0.99, NotHandedOver{unreduced});
    signal.severity = Severity::kWarning;
    signal.remedy = kHandOver;
    log.add(std::move(signal), kAllSteps);
  }

  // Retracts the findings from before this was known.
  void by_other_means(const StepContext& context, Blame blame, std::uint64_t unreduced,
                      SignalLog& log) {
    by_other_means_ = true;
    Signal signal = sighting(&kNoReduction, context, std::move(blame), 0.9, OtherMeans{unreduced});
    signal.first_step = std::min(unreduced_since_, signal.first_step);
    signal.severity = Severity::kInfo;
    signal.remedy = kByHand;
    log.forget(&kNoReduction, key_of(NeverDue{}));
    log.add(std::move(signal), kAllSteps);
  }

  // Once it is known to be local SGD: retracts the earlier findings.
  void averaged(const StepContext& context, Blame blame, std::uint64_t unreduced,
                SignalLog& log) const {
    Signal signal = sighting(&kNoReduction, context, std::move(blame), 0.99,
                             Averaged{context.averaging.interval(), unreduced});
    signal.first_step = std::min(unreduced_since_, signal.first_step);
    signal.severity = Severity::kInfo;
    signal.remedy = kLocalSgd;
    log.forget(&kNoReduction, key_of(NeverDue{}));
    log.forget(&kNoReduction, key_of(NothingReduced{}));
    log.add(std::move(signal), kAllSteps);
  }

  // The gradient as a whole, if all ranks reduce all of it.
  void compare(const StepContext& context, SignalLog& log) {
    if (!context.layer_groups.empty()) return;
    const Split held = reduced_split(context.record);
    if (held.known < 2) {
      log.cannot(&kNoReduction, kNotRead);
      log.cannot(&kReducedGradientMismatch, kNotRead);
      return log.cannot(&kReductionScale, kNotRead);
    }
    log.checked(&kNoReduction);
    log.checked(&kReducedGradientMismatch);
    check_finite(context, log);
    const Ranks kept = kept_everything(context.record);
    const auto kept_own = [&](const WorkerRecord& w) {
      const bool same = held.differs() && w.reduced_fingerprint == w.fingerprint;
      return has_reduced(w) && (same || contains(kept, w.rank));
    };
    const auto own =
        static_cast<std::size_t>(std::ranges::count_if(context.record.workers, kept_own));
    if (2 * own > held.known) return not_reduced(context, own, held, log);
    if (held.differs()) return mismatch(context, held, log);
    if (!layers_differ(context)) return check_scale(context, log);
    log.checked(&kReductionScale);
  }

  void not_reduced(const StepContext& context, std::size_t own, const Split& held,
                   SignalLog& log) const {
    const auto bypasses = [](const WorkerRecord& w) {
      return value_of(w, FingerprintKind::kWrapperForward, 1) == 0;
    };
    NothingReduced seen{.ranks_with_own_gradient = own,
                        .of_ranks = held.known,
                        .ranks_around_wrapper = blame_where(context, bypasses).ranks};
    if (held.differs()) seen.distinct_reduced_gradients = held.groups.size();
    if (context.averaging.interval() > 0) return averaged(context, of_all(context.record), 0, log);
    const BackwardOrder* order = backward_order_of(context, all_ranks(context.record));
    if (order && (order->reduces_first || !seen.ranks_around_wrapper.empty())) order = nullptr;
    log.add(explained(context, of_all(context.record), std::move(seen), order));
  }

  void mismatch(const StepContext& context, const Split& held, SignalLog& log) const {
    const Blame blame = held.blame();
    OtherReduced seen{.most_agree = !blame.everyone,
                      .distinct_reduced_gradients = held.groups.size(),
                      .layers = layers_apart(context)};
    log.add(sighting(&kReducedGradientMismatch, context, blame, 0.99, std::move(seen)), 1);
  }

  void check_finite(const StepContext& context, SignalLog& log) const {
    if (!local_finite(context.record)) return;
    const auto made = std::count_if(
        context.record.workers.begin(), context.record.workers.end(),
        [](const WorkerRecord& w) { return has_reduced(w) && !std::isfinite(w.reduced_norm); });
    if (made == 0) return;
    log.add(sighting(&kReducedGradientMismatch, context, of_all(context.record), 0.95,
                     MadeNonfinite{static_cast<std::uint64_t>(made)}));
  }

  void check_scale(const StepContext& context, SignalLog& log) {
    const StepRecord& r = context.record;
    const double workers = static_cast<double>(context.workers());
    if (r.workers.size() != r.workers_expected || !local_finite(r)) return;
    const double reduced = r.workers.front().reduced_norm;
    const bool one_scale = std::ranges::all_of(r.workers, [&](const WorkerRecord& w) {
      return !has_reduced(w) || std::abs(w.reduced_norm - reduced) <= kSameNorm * reduced;
    });
    if (!one_scale)
      return log.cannot(&kReductionScale, "The norms of the ranks' reduced gradients differ.");
    const double error = r.mean_norm_error / r.mean_norm;
    if (!std::isfinite(reduced) || !(r.mean_norm > 0) || !std::isfinite(error)) {
      return log.cannot(&kReductionScale,
                        "The expected norm of the mean is unknown (no sketches).");
    }
    log.checked(&kReductionScale);
    const double ratio = reduced / r.mean_norm;
    const bool off = std::abs(ratio - 1) > std::max(kScaleOff, kSigmas * error);
    const bool again = off && last_ratio_ > 0 && is_multiple(ratio, last_ratio_);
    // Compression removes norm on purpose, and a custom hook may produce any factor, sometimes one
    // that looks like a mistake.
    const std::string hook = context.roster.fact_of_all("communication_hook");
    const double within = std::min(kScaleTolerance, kNamedWithin + 3 * error);
    const std::string near = factor_name(ratio, workers, kScaleTolerance);
    std::string name = factor_name(ratio, workers, within);
    if (name.empty() && !hook.empty() && again && ratio > 1) {
      name = factor_name(ratio * kLossy, workers, kLost);
    }
    if (!hook.empty() && off && last_ratio_ > 0) follow_hook(!again || near.empty(), log);
    last_ratio_ = off ? ratio : 0;
    if (off && name.empty() && !again) {
      log.needs(&kReductionScale, 1, "The norm was off once, which may be chance.");
    }
    if (!off || (name.empty() && !again)) return;
    const bool named = !name.empty() && (hook.empty() || !varies_);
    Scaled seen{.factor = ratio,
                .factor_error = ratio * error,
                .factor_is = named ? name : "",
                .reduced_norm = reduced,
                .mean_norm = r.mean_norm};
    Signal signal =
        sighting(&kReductionScale, context, of_all(r), named ? 0.9 : 0.6, std::move(seen));
    if (!named) signal.severity = hook.empty() ? Severity::kWarning : Severity::kInfo;
    if (!named && !hook.empty()) {
      signal.remedy =
          fmt::format("Nothing, if the communication hook {} changes the scale on purpose.", hook);
    }
    log.add(std::move(signal));
  }

  // Follows whether the factor of a custom hook varies between readings.
  void follow_hook(bool varies, SignalLog& log) {
    if (varies) {
      steady_ = 0;
      if (!std::exchange(varies_, true)) log.forget(&kReductionScale, key_of(Scaled{}));
    } else if (++steady_ >= kSteady) {
      varies_ = false;
    }
  }

  std::unique_ptr<Rule> layers_ = make_layers_reduced();
  bool late_ = false;                   // some passes were late in this record
  PerWorker<std::uint64_t> unreduced_;  // steps so far
  bool handed_over_ = false;            // some gradients were passed in for a reduction
  bool by_other_means_ = false;         // this is the current finding
  std::uint64_t unreduced_since_ = ~std::uint64_t{0};
  bool varies_ = false;       // from one reading to the next
  std::uint64_t steady_ = 0;  // readings since then without a change
  double last_ratio_ = 0;     // of the last wrong reduced norm; 0: it was right
};

}  // namespace

constexpr FingerprintKind kNoReductionKinds[] = {FingerprintKind::kWrapperForward};
constexpr Check kNoReductionExplains[] = {
    &kParameterDesync, &kBufferDesync, &kStateDesync,  &kRankOutlier,    &kPairTooSimilar,
    &kTooConsistent,   &kLossEvent,    &kMissingRank,  &kReductionScale, &kReducedGradientMismatch,
    &kReductionError,  &kClipNorm,     &kLostGradients};
constinit const CheckInfo kNoReduction{
    .id = "no-reduction",
    .severity = Severity::kCritical,
    .compares = "whether gradients were averaged before the optimizer ran",
    .fires =
        "immediately; in addition when reduced gradients are read; information if parameters are "
        "averaged at equal distances",
    .consequence =
        "A rank whose gradients are not reduced trains its own model; the checkpoint is one rank's "
        "model, trained on its share of the data.",
    .cannot_see =
        "Reductions by means that presum does not know, which it reports as missing: announce them "
        "with `monitor.before_reduction()`.",
    .mistake =
        "loss = ddp.module(x).loss       # around the wrapper: nothing is reduced\n"
        "with ddp.no_sync():             # left on in the last micro-batch\n"
        "    loss.backward()\n"
        "optimizer.step()",
    .fix =
        "Call the wrapped model itself, not `.module`, and end `no_sync()` before the last "
        "backward pass of each optimizer step. Until then every rank trains its own model.",
    .resembles = "pytorch/pytorch#104336",
    .precedence = 40,
    .explains = kNoReductionExplains,
    .fingerprints = kNoReductionKinds,
    .make = make<Reduction>,
};

constexpr Check kReductionScaleExplains[] = {
    &kNonfiniteGradient, &kNonfiniteLoss, &kReducedGradientMismatch, &kReductionError, &kLossEvent};
constinit const CheckInfo kReductionScale{
    .id = "reduction-scale",
    .severity = Severity::kCritical,
    .compares = "the norm of the reduced gradient, against that of the mean",
    .fires = "immediately for the world size and its inverse; for other factors the second time",
    .consequence =
        "The step is too long or too short by this factor, like a different learning rate.",
    .cannot_see =
        "Factors within 10% of 1, and what a wrong reading of the gradient would show too.",
    .mistake =
        "dist.all_reduce(p.grad)  # a sum, without / world_size\n"
        "loss = loss / world_size  # and DDP divides again",
    .fix = "Divide by the world size exactly once, either in the reduction or in the loss.",
    .resembles = "NeMo Automodel#3830",
    .precedence = 150,
    .explains = kReductionScaleExplains,
    .make = make<Reduction>,
};

constexpr Check kReducedGradientMismatchExplains[] = {
    &kNonfiniteGradient, &kNonfiniteLoss, &kParameterDesync, &kBufferDesync, &kStateDesync,
    &kReductionError,    &kClipNorm,      &kRankOutlier,     &kLossEvent};
constinit const CheckInfo kReducedGradientMismatch{
    .id = "reduced-gradient-mismatch",
    .severity = Severity::kCritical,
    .compares = "whether all ranks hold the same reduced gradient",
    .fires = "immediately, when they are read",
    .consequence = "Ranks that step along different gradients drift apart from here on.",
    .cannot_see = "Steps other than the first and every 25th.",
    .mistake =
        "if rank in active:  # only some ranks reduce this parameter\n    dist.all_reduce(p.grad, "
        "group=active)",
    .fix =
        "Check communication hooks, parameters that only some ranks use, and the communication "
        "library; replace the hardware of the named ranks if it happens again.",
    .resembles = "pmodels/mpich#6538",
    .precedence = 160,
    .explains = kReducedGradientMismatchExplains,
    .sets_apart = true,
    .make = make<Reduction>,
};

}  // namespace presum::checks
