// SPDX-License-Identifier: Apache-2.0
// **reduction-error, reduction-dtype, reduction-nondeterministic.** Only at steps whose reduction
// is audited; [audit.md](audit.md) describes the method and its bounds. An element whose error is
// smaller than the rounding of the detected format passes. The format is unknown if every format
// gives the same bits: two ranks, or zeros. An audit covers the sum that all ranks share, so
// findings name all ranks.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/hash.h"
#include "checks/engine/rules.h"
#include "presum/audit.h"

namespace presum::checks {
namespace {

constexpr const char* kNotAudited = "No reduction was audited (audit= was not set).";
constexpr int kFp32Bits = 24;

// A differing element is not the correctly rounded sum.
struct Audited {
  std::uint32_t audited_by_rank = 0;
  std::uint64_t elements = 0;
  std::uint64_t elements_differing = 0;
  double relative_l2 = kNaN;
  double error_max = kNaN;
  std::string accumulation;
  std::string order;

  static constexpr std::tuple kFields{field("audited_by_rank", &Audited::audited_by_rank),
                                      field("elements", &Audited::elements),
                                      field("elements_differing", &Audited::elements_differing),
                                      field("relative_l2", &Audited::relative_l2),
                                      field("error_max", &Audited::error_max),
                                      field("accumulation", &Audited::accumulation),
                                      field("order", &Audited::order)};
};

struct WrongSum : Audited {
  std::uint64_t elements_wrong = 0;
  static constexpr auto kFields = std::tuple_cat(
      Audited::kFields, std::tuple{field("elements_wrong", &WrongSum::elements_wrong)});
};

struct AddedInFormat : Audited {
  std::string gradient_format;

  std::uint64_t key() const { return name_hash(accumulation); }
  static constexpr auto kFields = std::tuple_cat(
      Audited::kFields, std::tuple{field("gradient_format", &AddedInFormat::gradient_format)});
};

struct OtherBits : Audited {};

std::string sentence(const WrongSum& seen, const Who& who) {
  return fmt::format(
      "{} of {} elements that {} got from the reduction are further from the sum than rounding "
      "explains",
      seen.elements_wrong, seen.elements, who.within());
}

std::string sentence(const AddedInFormat& seen, const Who& who) {
  return fmt::format("The gradients of {} were added in {}, and they are {}", who.within(),
                     seen.accumulation, seen.gradient_format);
}

std::string sentence(const OtherBits& /*seen*/, const Who& who) {
  return fmt::format("The same reduction of the same gradients gave {} other bits the second time",
                     who.within());
}

Audited audited(const WorkerRecord& w) {
  return {.audited_by_rank = w.rank,
          .elements = w.audit->elements,
          .elements_differing = w.audit->differing,
          .relative_l2 = w.audit->relative_l2,
          .error_max = w.audit->error_max,
          .accumulation = to_string(w.audit->accumulation),
          .order = to_string(w.audit->order)};
}

Signal shared(Check check, const StepContext& context, Evidence seen) {
  return sighting(check, context, of_all(context.record), 0.95, std::move(seen));
}

void check_error(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  log.checked(&kReductionError);
  if (w.audit->wrong == 0) return;
  log.add(shared(&kReductionError, context, WrongSum{audited(w), w.audit->wrong}));
}

void check_dtype(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  const int bits = significand_bits(w.audit->accumulation);
  if (bits == 0) {
    return log.waits(&kReductionDtype,
                     "Audited, but the format is unknown: all formats gave the same bits.");
  }
  log.checked(&kReductionDtype);
  const bool fewer = bits < significand_bits(w.audit->gradient);
  if (!fewer && bits >= kFp32Bits) return;
  Signal signal =
      shared(&kReductionDtype, context, AddedInFormat{audited(w), to_string(w.audit->gradient)});
  // 16-bit gradients that are added in their own format: the program promised nothing else.
  if (!fewer) signal.severity = Severity::kInfo;
  log.add(std::move(signal));
}

void check_repeat(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  if (w.audit->repeat == Repeat::kNotTried) {
    return log.waits(&kReductionNondeterministic, "Audited, but not repeated.");
  }
  log.checked(&kReductionNondeterministic);
  if (w.audit->repeat == Repeat::kEqual) return;
  log.add(shared(&kReductionNondeterministic, context, OtherBits{audited(w)}));
}

// An audit covers the sum that all ranks share, whichever rank made it.
class Audits final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    bool any = false;
    for (const WorkerRecord& worker : context.record.workers) {
      if (!worker.audit) continue;
      any = true;
      check_error(context, worker, log);
      check_dtype(context, worker, log);
      check_repeat(context, worker, log);
    }
    if (any) return;
    for (const Check check : {&kReductionError, &kReductionDtype, &kReductionNondeterministic}) {
      log.cannot(check, kNotAudited);
    }
  }
};

}  // namespace

constexpr Check kReductionErrorExplains[] = {&kNonfiniteGradient, &kNonfiniteLoss, &kLossEvent};
constinit const CheckInfo kReductionError{
    .id = "reduction-error",
    .severity = Severity::kCritical,
    .compares = "each element of an audited sum, against what rounding can explain",
    .fires = "immediately, if the reduction is audited",
    .consequence = "The sum that trained the model is not the sum of the gradients.",
    .cannot_see = "Steps that were not audited, and errors smaller than rounding.",
    .mistake =
        "work = dist.all_reduce(bucket, async_op=True)\n"
        "bucket.mul_(scale)  # before work.wait()",
    .fix =
        "Check the communication library and its version, communication hooks, and whatever writes "
        "to the buffer during the reduction; `presum audit` on saved gradients shows what the "
        "reduction did to them.",
    .resembles = "NVIDIA/nccl#1950",
    .precedence = 170,
    .explains = kReductionErrorExplains,
    .compares_ranks = true,
    .make = make<Audits>,
};

constinit const CheckInfo kReductionDtype{
    .id = "reduction-dtype",
    .severity = Severity::kWarning,
    .compares = "the format in which an audited sum was accumulated",
    .fires =
        "immediately, if the reduction is audited; 16-bit gradients added in their own format are "
        "information",
    .consequence = "The sum loses small gradients, and more of them with more ranks.",
    .cannot_see = "Steps that were not audited; sums that have the same bits in every format.",
    .mistake = "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    .fix =
        "Reduce in fp32 (`reduce_dtype`, no compressing hook, fp32 gradients), or let presum "
        "reduce with `reduction=\"exact\"`.",
    .resembles = "pytorch/pytorch#190626",
    .precedence = 180,
    .compares_ranks = true,
    .make = make<Audits>,
};

constinit const CheckInfo kReductionNondeterministic{
    .id = "reduction-nondeterministic",
    .severity = Severity::kWarning,
    .compares = "the same reduction of the same gradients, twice",
    .fires = "when a reduction is repeated",
    .consequence = "Two runs of this program end with different parameters.",
    .cannot_see = "Steps whose reduction was not repeated.",
    .mistake =
        "os.environ.pop(\"NCCL_ALGO\", None)  # the library may pick another order each time",
    .fix =
        "Fix the algorithm of the communication library, or let presum reduce with "
        "`reduction=\"exact\"`: its bits do not depend on the order.",
    .resembles = "NVIDIA/nccl#1497",
    .precedence = 190,
    .compares_ranks = true,
    .make = make<Audits>,
};

}  // namespace presum::checks
