// SPDX-License-Identifier: Apache-2.0
// **reduction-error, reduction-dtype, reduction-nondeterministic.** Only at steps whose reduction
// is audited; [audit.md](audit.md) says how and with what bounds. An element that is wrong by less
// than rounding in the found format may be is not seen. The format cannot be told where every
// format gives the same bits: two ranks, or zeros. An audit is of the sum that all ranks share:
// ranks are all.

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

// An element that differs is not the correctly rounded sum.
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
                     "Audited, but the format could not be told: all gave the same bits.");
  }
  log.checked(&kReductionDtype);
  const bool fewer = bits < significand_bits(w.audit->gradient);
  if (!fewer && bits >= kFp32Bits) return;
  Signal signal =
      shared(&kReductionDtype, context, AddedInFormat{audited(w), to_string(w.audit->gradient)});
  // Sixteen-bit gradients that are added in their own format: nothing was promised.
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

// An audit is of the sum that all workers share, whoever made it.
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
    .compares = "each element of an audited sum against what rounding can explain",
    .fires = "now, where the reduction is audited",
    .consequence = "The sum that trained the model is not the sum of the gradients.",
    .cannot_see = "Steps that were not audited, and errors smaller than rounding.",
    .mistake =
        "work = dist.all_reduce(bucket, async_op=True)\n"
        "bucket.mul_(scale)  # before work.wait()",
    .fix =
        "Look at the communication library and its version, at communication hooks, and at who "
        "writes to the buffer while it is reduced; `presum audit` on saved gradients shows what "
        "was done to them.",
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
        "now, where the reduction is audited; 16-bit gradients added in their own format are "
        "information",
    .consequence = "Small gradients are lost in the sum, more of them the more ranks there are.",
    .cannot_see = "Steps that were not audited; where every format gives the same bits.",
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
    .fires = "where it was repeated",
    .consequence = "Two runs of this program end with other parameters.",
    .cannot_see = "Steps whose reduction was not repeated.",
    .mistake = "os.environ.pop(\"NCCL_ALGO\", None)  # the library picks another order as it likes",
    .fix =
        "Fix the algorithm of the communication library, or let presum reduce with "
        "`reduction=\"exact\"`: its bits depend on no order.",
    .resembles = "NVIDIA/nccl#1497",
    .precedence = 190,
    .compares_ranks = true,
    .make = make<Audits>,
};

}  // namespace presum::checks
