// SPDX-License-Identifier: Apache-2.0
// reduction-error, reduction-dtype, reduction-nondeterministic: from audits of the reduction.
#include <fmt/format.h>

#include "diagnose/rules.h"
#include "presum/audit.h"

namespace presum::diagnose {
namespace {

constexpr const char* kNotAudited = "No reduction was audited (audit= was not set).";
constexpr int kFp32Bits = 24;

Signal shared(Check check, const StepContext& context, const WorkerRecord& w) {
  Signal signal = sighting(check, context, of_all(context.record), 0.95);
  signal.evidence = {{"audited_by_rank", static_cast<std::int64_t>(w.rank)},
                     {"elements", static_cast<std::int64_t>(w.audit->elements)},
                     {"elements_differing", static_cast<std::int64_t>(w.audit->differing)},
                     {"relative_l2", w.audit->relative_l2},
                     {"error_max", w.audit->error_max},
                     {"accumulation", std::string(to_string(w.audit->accumulation))},
                     {"order", std::string(to_string(w.audit->order))}};
  return signal;
}

void check_error(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  log.checked(Check::kReductionError);
  if (w.audit->wrong == 0) return;
  Signal signal = shared(Check::kReductionError, context, w);
  signal.title = fmt::format(
      "{} of {} elements that {{ranks}} got from the reduction are further from the sum than "
      "rounding explains",
      w.audit->wrong, w.audit->elements);
  signal.evidence.emplace_back("elements_wrong", static_cast<std::int64_t>(w.audit->wrong));
  log.add(std::move(signal));
}

void check_dtype(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  const int bits = significand_bits(w.audit->accumulation);
  if (bits == 0) {
    return log.waits(Check::kReductionDtype,
                     "Audited, but the format could not be told: all gave the same bits.");
  }
  log.checked(Check::kReductionDtype);
  const bool fewer = bits < significand_bits(w.audit->gradient);
  if (!fewer && bits >= kFp32Bits) return;
  Signal signal = shared(Check::kReductionDtype, context, w);
  signal.key = static_cast<std::uint64_t>(w.audit->accumulation);
  // Sixteen-bit gradients that are added in their own format: nothing was promised.
  if (!fewer) signal.severity = Severity::kInfo;
  signal.title = fmt::format("The gradients of {{ranks}} were added in {}, and they are {}",
                             to_string(w.audit->accumulation), to_string(w.audit->gradient));
  log.add(std::move(signal));
}

void check_repeat(const StepContext& context, const WorkerRecord& w, SignalLog& log) {
  if (w.audit->repeat == Repeat::kNotTried) {
    return log.waits(Check::kReductionNondeterministic, "Audited, but not repeated.");
  }
  log.checked(Check::kReductionNondeterministic);
  if (w.audit->repeat == Repeat::kEqual) return;
  Signal signal = shared(Check::kReductionNondeterministic, context, w);
  signal.title = "The same reduction of the same gradients gave {ranks} other bits the second time";
  log.add(std::move(signal));
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
    for (const Check check :
         {Check::kReductionError, Check::kReductionDtype, Check::kReductionNondeterministic}) {
      log.cannot(check, kNotAudited);
    }
  }
};

}  // namespace

std::unique_ptr<Rule> make_audits() { return std::make_unique<Audits>(); }

}  // namespace presum::diagnose
