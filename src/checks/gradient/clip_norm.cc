// SPDX-License-Identifier: Apache-2.0
// **clip-norm.** Reads the norm that torch's `clip_grads_with_norm_` receives, from
// `clip_grad_norm_` (which Accelerate, the Trainer and Lightning call) or from any other caller,
// for all of the model's parameters that have a gradient; or the value that
// `monitor.grad_norm(value)` reports. In one call of 25 presum computes the norm of these gradients
// itself just before, with the `norm_type` that torch was asked for (1 to infinity). If torch did
// not compute the norm (`get_total_norm`), or computed it from parts, the type is unknown. Such a
// norm is compared only between ranks, and the check is not possible, with two exceptions: it
// equals the L2 norm, or the ranks are the whole job and it is between one and four times the L2
// norm (an L1 norm is larger than that).
//
// A reported value is right if it equals the norm just before, the norm that was clipped by, or the
// norm of the reduced gradient, because a program may change its gradients and clip in its own way.
// If only the norm of the reduced gradient is known, the finding needs the same factor twice. A
// norm that is off by more than 5% is reported. The ratio is given with its usual cause: a part, a
// mean of norms, the number of ranks or its root, parameters counted twice, norms of parts added
// up, or a loss scaler's factor that was not divided out (a power of two, if there is a scaler).
//
// Norms may differ between ranks by 0.1%; more in 2 records in a row is critical, and so is a rank
// that clips while the others do not. A norm from `monitor.grad_norm` that is NaN or infinite in 5
// records in a row, with finite gradients and no loss scaler, is critical. Norms of only some of
// the parameters are not judged. Norms of sharded gradients (FSDP2) are judged if the norm itself
// was a plain number: they are compared with what all ranks hold, counting each shard, replica and
// whole gradient once.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"
#include "checks/engine/text.h"
#include "checks/gradient/norm_ratio.h"

namespace presum::checks {
namespace {

constexpr double kSame = 1e-3;            // relative difference that is allowed between ranks
constexpr std::uint64_t kSureOfNorm = 2;  // records in a row
constexpr std::uint64_t kSureOfNone = 5;
constexpr double kEuclidean = 2;
constexpr double kBelowL1 = 4;  // times the L2 norm: an L1 norm is larger
constexpr const char* kOwnSteps =
    "Ranks take separate steps, each clipped by its own norm, and average their parameters.";
constexpr const char* kNone =
    "No norm of all of the model's gradients was seen: torch's clip_grad_norm_ was not called.";
constexpr const char* kAnyType =
    "The type of the norm that clip_grads_with_norm_ received is unknown, because torch's "
    "get_total_norm did not compute it.";

// The norm that the rank used or reported.
double used(const WorkerRecord& worker) {
  const double clip = real_of(worker, FingerprintKind::kClipNorm);
  return std::isnan(clip) ? real_of(worker, FingerprintKind::kGradNormTold) : clip;
}

bool has_norm(const WorkerRecord& worker) {
  using enum FingerprintKind;
  return worker.fingerprint_of(kClipNorm) != nullptr ||
         worker.fingerprint_of(kGradNormTold) != nullptr;
}

// NaN if unknown.
double type_of(const WorkerRecord& worker) {
  return worker.fingerprint_of(FingerprintKind::kClipNormType) == nullptr
             ? kEuclidean
             : real_of(worker, FingerprintKind::kClipNormType);
}

bool is_of_any_type(const WorkerRecord& worker) { return std::isnan(type_of(worker)); }

std::string name_of(double type) {
  if (type == kEuclidean) return "norm";
  return std::isinf(type) ? "largest element" : fmt::format("L{} norm", number(type));
}

// Whether a limit is below its norm. If not, no gradient has been changed yet.
bool binds(const StepRecord& record) {
  return std::ranges::any_of(record.workers, [](const WorkerRecord& w) {
    const std::uint64_t* limit = w.fingerprint_of(FingerprintKind::kClipLimit);
    const double norm = used(w);
    return limit != nullptr && (std::isnan(norm) || norm > std::bit_cast<double>(*limit));
  });
}

struct NormsApart {
  double clip_norm = kNaN;
  double others_clip_norm = kNaN;
  bool of_own_gradient = false;  // on each rank, before the reduction
  static constexpr std::tuple kFields{field("clip_norm", &NormsApart::clip_norm),
                                      field("others_clip_norm", &NormsApart::others_clip_norm),
                                      field("of_own_gradient", &NormsApart::of_own_gradient)};
};

std::string sentence(const NormsApart& seen, const Who& who) {
  if (!who.everyone) return who.words() + " clipped by another norm than the others";
  return who.words() + (seen.of_own_gradient
                            ? " clipped by the norm of their own gradient, before it was reduced"
                            : " clipped one gradient by different norms");
}

struct SomeClipped {
  Ranks ranks_that_clipped;
  static constexpr std::tuple kFields{
      field("ranks_that_clipped", &SomeClipped::ranks_that_clipped)};
};

std::string sentence(const SomeClipped& seen, const Who& who) {
  if (who.everyone) {
    return Who{seen.ranks_that_clipped, false}.words() +
           " clipped the gradients, and the others did not";
  }
  return who.words() + (intersect(seen.ranks_that_clipped, who.ranks)
                            ? " clipped the gradients, and the others did not"
                            : " did not clip the gradients, as the others did");
}

struct NormNotFinite {
  static constexpr std::tuple<> kFields{};
};

std::string sentence(const NormNotFinite& /*seen*/, const Who& who) {
  return who.words() + " reported a gradient norm that is not finite, though the gradients are";
}

struct LimitsApart {
  std::string clipped_to;  // by rank
  static constexpr std::tuple kFields{field("clipped_to", &LimitsApart::clipped_to)};
};

std::string sentence(const LimitsApart& /*seen*/, const Who& who) {
  return who.words() + (who.everyone ? " clipped to different norms"
                                     : " clipped to another norm than the others");
}

struct WrongNorm {
  double clip_norm = kNaN;
  double true_norm = kNaN;
  double ratio = kNaN;
  std::string kind_of_norm;
  std::string usual_cause;
  static constexpr std::tuple kFields{
      field("clip_norm", &WrongNorm::clip_norm), field("true_norm", &WrongNorm::true_norm),
      field("ratio", &WrongNorm::ratio), field("kind_of_norm", &WrongNorm::kind_of_norm),
      field("usual_cause", &WrongNorm::usual_cause)};
};

std::string sentence(const WrongNorm& seen, const Who& who) {
  return fmt::format(
      "{} used {} times the gradient's {} where they clipped or logged it: perhaps {}", who.words(),
      number(seen.ratio), seen.kind_of_norm, seen.usual_cause);
}

bool clips(const WorkerRecord& worker) {
  return worker.fingerprint_of(FingerprintKind::kClipNorm) != nullptr;
}

// Ranks that clip while most do not, or the reverse.
Blame clip_alone(const StepContext& context) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : context.record.workers) {
    held.push_back({clips(w) ? 1U : 0U, w.rank});
  }
  const Split clipping = split(std::move(held));
  return clipping.differs() ? clipping.blame() : Blame{};
}

std::vector<RankNumber> norms_of(const StepRecord& record) {
  std::vector<RankNumber> out;
  for (const WorkerRecord& w : record.workers) out.push_back({used(w), w.rank});
  return out;
}

bool is_own(const StepContext& context) {
  return std::ranges::all_of(context.record.workers, [](const WorkerRecord& w) {
    const double type = type_of(w);
    const double own = type == kEuclidean ? w.grad_norm : std::isinf(type) ? w.grad_max : kNaN;
    return near(used(w), own, 1e-2);
  });
}

// A reported norm that is not finite although the gradients are. A norm that torch computed is as
// finite as the reduced gradient.
bool is_no_number(const WorkerRecord& worker) {
  using enum FingerprintKind;
  const std::uint64_t* told = worker.fingerprint_of(kGradNormTold);
  return told != nullptr && !std::isfinite(std::bit_cast<double>(*told)) &&
         !(clips(worker) && !std::isfinite(used(worker))) && std::isfinite(worker.grad_norm) &&
         worker.nonfinite == 0 &&
         (std::isnan(worker.reduced_norm) || std::isfinite(worker.reduced_norm));
}

// The ratio of a norm to the true one; NaN if the true one is unknown.
struct Held {
  double ratio = kNaN;
  bool sure = true;  // one record is enough
};

// Compares with the gradients just before they were clipped: a program may have changed them since
// the reduction. The reduced gradient shows only a loss scaler's factor.
Held hold_clip(double clip, double clipped, double reduced, bool scaled) {
  if (!(clipped > 0) || !std::isfinite(clipped)) return {};
  const double since = clipped / reduced;
  const bool forgotten = near(clip, clipped, kTrue) && scaled && is_power_of_two(since);
  return {forgotten ? since : clip / clipped};
}

// A reported norm may be from before or after the program's changes, and the program may have
// clipped since.
Held hold_told(double told, double clip, double then, double reduced) {
  if (!(reduced > 0) || !std::isfinite(reduced)) return {};
  const bool right =
      near(told, clip, kTrue) || near(told, then, kTrue) || near(told, reduced, kTrue);
  return {right ? 1 : told / reduced, std::isfinite(then)};
}

// For gradients in parts: the norm of the parts of all ranks together. NaN if some are unknown.
double norm_of_parts(const StepContext& context) {
  double squares = context.complete() ? 0 : kNaN;
  for (const WorkerRecord& w : context.record.workers) {
    squares += real_of(w, FingerprintKind::kClippedShare);
  }
  return std::sqrt(squares);
}

Held hold(const WorkerRecord& worker, bool scaled, double norm_of_parts) {
  using enum FingerprintKind;
  const double clip = real_of(worker, kClipNorm);
  const double whole = real_of(worker, kClippedNorm);
  const bool of_squares = is_of_any_type(worker) || type_of(worker) == kEuclidean;
  const double clipped = std::isnan(whole) && of_squares ? norm_of_parts : whole;
  const double told = real_of(worker, kGradNormTold);
  if (std::isfinite(clip)) {
    const double reduced = type_of(worker) == kEuclidean ? worker.reduced_norm : kNaN;
    const Held held = hold_clip(clip, clipped, reduced, scaled);
    if (!std::isfinite(told) || !near(held.ratio, 1, kTrue)) return held;
  }
  const double then = real_of(worker, kGradNormThen);
  return std::isfinite(told) ? hold_told(told, clip, then, worker.reduced_norm) : Held{};
}

// The norm by which ranks clipped the gradients of all parameters, or that their program reports:
// compared with the true norm where that is known, and between ranks.
class ClipNorm final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const auto& workers = context.record.workers;
    if (context.averaging.interval() > 0) {
      log.retract(&kClipNorm);  // from steps before this was known
      return log.cannot(&kClipNorm, kOwnSteps);
    }
    if (std::ranges::none_of(workers, has_norm)) return log.cannot(&kClipNorm, kNone);
    if (!context.alone()) compare_workers(context, log);
    if (context.complete() && !context.alone()) compare_clipping(context, log);
    compare_limits(context, log);
    compare_finite(context, log);
    compare_true(context, log);
  }

 private:
  void compare_workers(const StepContext& context, SignalLog& log) {
    const StepRecord& record = context.record;
    if (std::ranges::none_of(record.workers, is_of_any_type)) {
      log.checked(&kClipNorm);
      log.needs_records(&kClipNorm, kSureOfNorm, "A single difference between ranks is tolerated.");
    }
    const std::vector<RankNumber> norms = norms_of(record);
    const auto known =
        std::ranges::count_if(norms, [](const RankNumber& n) { return std::isfinite(n.value); });
    if (known < 2) return;
    auto broken = norms_.see(far_from_middle(norms, kSame, true), record.step);
    if (!broken) return;
    const Ranks& ranks = broken->blame.ranks;
    const double norm = used(worker_of(record, ranks.front()));
    const auto other = std::ranges::find_if(record.workers, [&](const WorkerRecord& w) {
      return w.rank != ranks.front() && std::isfinite(used(w)) && !near(used(w), norm, kSame);
    });
    const NormsApart seen{.clip_norm = norm,
                          .others_clip_norm = other == record.workers.end() ? kNaN : used(*other),
                          .of_own_gradient = broken->blame.everyone && is_own(context)};
    Signal signal = sighting(&kClipNorm, record.step, std::move(*broken), 0.95, seen);
    signal.severity = Severity::kCritical;  // from here on the ranks take different steps
    log.add(std::move(signal), 1);
  }

  void compare_clipping(const StepContext& context, SignalLog& log) {
    auto broken = clipping_.see(clip_alone(context), context.record.step);
    if (!broken) return;
    Signal signal = sighting(&kClipNorm, context.record.step, std::move(*broken), 0.95,
                             SomeClipped{blame_where(context, clips).ranks});
    signal.severity = Severity::kCritical;
    signal.remedy =
        "Clip on every rank or on none. If only some ranks clip, they take different steps.";
    log.add(std::move(signal), 1);
  }

  void compare_finite(const StepContext& context, SignalLog& log) {
    Blame blame = blame_where(context, is_no_number);
    const bool found = !blame.ranks.empty() && context.roster.fact("grad_scaler").empty();
    if (no_number_.see(found, context.record.step) == 0) return;
    log.checked(&kClipNorm);
    if (no_number_.length < kSureOfNone) return;
    Signal signal = sighting(&kClipNorm, context, std::move(blame), 0.95, NormNotFinite{});
    signal.severity = Severity::kCritical;
    signal.first_step = no_number_.first_step;
    signal.remedy =
        "Check how the norm is computed: a division by zero, or an overflow of squares in 16 bits.";
    log.add(std::move(signal), 1);
  }

  static void compare_limits(const StepContext& context, SignalLog& log) {
    const Split limits = split(context.record, FingerprintKind::kClipLimit);
    if (!limits.differs()) return;
    const std::string clipped_to =
        limits.text([](std::uint64_t bits) { return number(std::bit_cast<double>(bits)); });
    Signal signal = sighting(&kClipNorm, context, limits.blame(), 0.95, LimitsApart{clipped_to});
    if (binds(context.record)) signal.severity = Severity::kCritical;
    signal.remedy = "Give `clip_grad_norm_` the same `max_norm` on every rank.";
    log.add(std::move(signal), kAllSteps);
  }

  void compare_true(const StepContext& context, SignalLog& log) {
    const StepRecord& record = context.record;
    const bool scaled = !context.roster.fact("grad_scaler").empty();
    const double parts = norm_of_parts(context);
    // If not, other ranks may hold other parts of the model, such as pipeline stages.
    const bool whole_job = context.roster.world_size() == record.workers.size();
    for (const WorkerRecord& w : record.workers) {
      const Held held = hold(w, scaled, parts);
      if (std::isnan(held.ratio)) continue;
      const bool right = near(held.ratio, 1, kTrue);
      const bool of_no_other_type = whole_job && held.ratio > 1 && held.ratio < kBelowL1;
      if (!right && is_of_any_type(w) && !of_no_other_type) {
        return log.cannot(&kClipNorm, kAnyType);
      }
      log.checked(&kClipNorm);
      if (right || !near(held.ratio, ratio_, kTrue)) untrue_ = {};
      ratio_ = held.ratio;
      untrue_.see(!right, record.step);
      const std::uint64_t sure = held.sure ? 1 : kSureOfNorm;
      if (untrue_.length >= sure) report_untrue(context, w, scaled, log);
      return;
    }
  }

  void report_untrue(const StepContext& context, const WorkerRecord& worker, bool scaled,
                     SignalLog& log) const {
    const StepRecord& record = context.record;
    Blame blame = blame_where(
        context, [&](const WorkerRecord& w) { return near(used(w), used(worker), kTrue); });
    const double type = is_of_any_type(worker) ? kEuclidean : type_of(worker);
    WrongNorm seen{.clip_norm = used(worker),
                   .true_norm = used(worker) / ratio_,
                   .ratio = ratio_,
                   .kind_of_norm = name_of(type),
                   .usual_cause = usual_cause(ratio_, type, record.workers_expected, scaled)};
    Signal signal = sighting(&kClipNorm, context, std::move(blame), 0.95, std::move(seen));
    signal.first_step = untrue_.first_step;
    log.add(std::move(signal), kAllSteps);
  }

  Agreement norms_{kSureOfNorm};
  Agreement clipping_{kSureOfNorm};
  Streak no_number_;
  Streak untrue_;  // the reported norm is not that of the reduced gradient
  double ratio_ = 0;
};

}  // namespace

constexpr FingerprintKind kClipNormKinds[] = {
    FingerprintKind::kClipNorm,     FingerprintKind::kClippedNorm, FingerprintKind::kGradNormTold,
    FingerprintKind::kGradNormThen, FingerprintKind::kClipLimit,   FingerprintKind::kClipNormType,
    FingerprintKind::kClippedShare};
constexpr Check kClipNormExplains[] = {&kParameterDesync, &kBufferDesync, &kStateDesync};
constinit const CheckInfo kClipNorm{
    .id = "clip-norm",
    .severity = Severity::kWarning,
    .compares = "the norm that gradients are clipped by, against the true norm of the gradients",
    .fires = "at the first record, then one in 25; between ranks after 2 records",
    .consequence =
        "Every step is scaled by a different factor than `max_norm` implies, or by a different "
        "factor on each rank.",
    .cannot_see =
        "Norms of only some of the parameters; custom clipping that is not reported with "
        "`monitor.grad_norm(value)`; norms that are DTensors; norms of another type than L2 that "
        "torch's `get_total_norm` did not compute.",
    .mistake =
        "norm = get_total_norm([p.grad for p in my_shard])  # only this rank's "
        "part\nclip_grads_with_norm_(model.parameters(), 1.0, "
        "norm)\nclip_grad_norm_(model.parameters(), 1.0)            # before "
        "scaler.unscale_(optimizer)",
    .fix =
        "Clip by the norm of the reduced gradient over all parameters, after the loss scaler's "
        "`unscale_`: the same number on every rank. To combine norms of parts, take the root of "
        "the sum of their squares, with each part counted once.",
    .resembles = "meta-pytorch/torchtune#2240",
    .precedence = 210,
    .explains = kClipNormExplains,
    .fingerprints = kClipNormKinds,
    .make = make<ClipNorm>,
};

}  // namespace presum::checks
