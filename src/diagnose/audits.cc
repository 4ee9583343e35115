// SPDX-License-Identifier: Apache-2.0
#include "diagnose/audits.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/text.h"
#include "presum/audit.h"

namespace presum::diagnose {
namespace {

constexpr const char* kNotAudited = "No reduction was audited (audit_every= was not set).";
constexpr int kFp32Bits = 24;

struct Audited {
  AuditRecord audit;
  std::uint32_t rank = 0;
};

Signal shared(Check check, const Look& look, const Audited& a) {
  Signal signal = sighting(check, look.record.step, {all_ranks(look.record), true});
  signal.confidence = 0.95;
  signal.evidence = {{"audited_by_rank", static_cast<std::int64_t>(a.rank)},
                     {"elements", static_cast<std::int64_t>(a.audit.elements)},
                     {"elements_differing", static_cast<std::int64_t>(a.audit.differing)},
                     {"relative_l2", a.audit.relative_l2},
                     {"error_max", a.audit.error_max},
                     {"accumulation", std::string(to_string(a.audit.accumulation))},
                     {"order", std::string(to_string(a.audit.order))}};
  return signal;
}

void check_error(const Look& look, const Audited& a, Book& book) {
  book.looked(Check::kReductionError);
  if (a.audit.wrong == 0) return;
  Signal signal = shared(Check::kReductionError, look, a);
  signal.title = fmt::format(
      "{} of {} elements that {{ranks}} got from the reduction are further from the sum than "
      "rounding explains",
      a.audit.wrong, a.audit.elements);
  signal.evidence.emplace_back("elements_wrong", static_cast<std::int64_t>(a.audit.wrong));
  book.see(std::move(signal));
}

void check_dtype(const Look& look, const Audited& a, Book& book) {
  const int bits = significand_bits(a.audit.accumulation);
  if (bits == 0) {
    return book.armed(Check::kReductionDtype,
                      "Audited, but the format could not be told: all gave the same bits.");
  }
  book.looked(Check::kReductionDtype);
  const bool fewer = bits < significand_bits(a.audit.gradient);
  if (!fewer && bits >= kFp32Bits) return;
  Signal signal = shared(Check::kReductionDtype, look, a);
  signal.key = static_cast<std::uint64_t>(a.audit.accumulation);
  // Sixteen-bit gradients that are added in their own format: nothing was promised.
  if (!fewer) signal.severity = Severity::kInfo;
  signal.title = fmt::format("The gradients of {{ranks}} were added in {}, and they are {}",
                             to_string(a.audit.accumulation), to_string(a.audit.gradient));
  book.see(std::move(signal));
}

void check_repeat(const Look& look, const Audited& a, Book& book) {
  if (a.audit.repeat == Repeat::kNotTried) {
    return book.armed(Check::kReductionNondeterministic, "Audited, but not repeated.");
  }
  book.looked(Check::kReductionNondeterministic);
  if (a.audit.repeat == Repeat::kEqual) return;
  Signal signal = shared(Check::kReductionNondeterministic, look, a);
  signal.title = "The same reduction of the same gradients gave {ranks} other bits the second time";
  book.see(std::move(signal));
}

}  // namespace

void watch_audits(const Look& look, Book& book) {
  bool any = false;
  for (const WorkerRecord& worker : look.record.workers) {
    if (!worker.audit || look.alone()) continue;
    any = true;
    const Audited a{*worker.audit, worker.rank};
    check_error(look, a, book);
    check_dtype(look, a, book);
    check_repeat(look, a, book);
  }
  if (any) return;
  for (const Check check :
       {Check::kReductionError, Check::kReductionDtype, Check::kReductionNondeterministic}) {
    book.cannot(check, look.alone() ? kOneWorker : kNotAudited);
  }
}

}  // namespace presum::diagnose
