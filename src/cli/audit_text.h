// SPDX-License-Identifier: Apache-2.0
// What `presum audit` found: as text, as JSON, as a page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "audit/audit.h"
#include "audit/survey.h"

namespace presum::cli {

// The comparison with the result of an actual all-reduce.
struct ActualResult {
  std::string file;
  audit::Nearer nearer;
  bool mean() const { return nearer.to_mean >= nearer.to_sum; }  // else a sum
  bool either() const { return nearer.to_mean == 0 && nearer.to_sum == 0; }
  audit::Comparison comparison;
};

struct AuditReport {
  std::string source;  // "fp32 gradients of 16 workers, seed 1", or the files
  std::uint32_t workers = 0;
  Dtype dtype = Dtype::kF32;
  audit::SurveyResult survey;
  std::optional<ActualResult> actual;
};

// What the all-reduce did, in one sentence. REQUIRES: `actual`.
std::string audit_answer(const AuditReport& report);

// Why a reduction is worth a finding, one sentence each: 16-bit accumulation, elements that are no
// sums. Empty for a report without `actual`.
std::vector<std::string> audit_findings(const AuditReport& report);

// The hypotheses worth showing, best first: "ring in fp32, after-divide" and its share.
struct HypothesisLine {
  std::string arithmetic;
  double share = 0;
  std::string percent;
};
std::vector<HypothesisLine> hypothesis_lines(const audit::Inferred& inferred);
// The pieces of a ring, or "".
std::string pieces_line(const audit::Inferred& inferred);

std::string audit_text(const AuditReport& report);
std::string audit_json(const AuditReport& report);
// One HTML page that loads nothing and runs nothing.
std::string audit_page(const AuditReport& report);

// For text and page.
std::string percent(std::uint64_t part, std::uint64_t whole);  // "43.1 %"; "0" only for none
std::string power(double value);                               // "2^-24.1"; "0"; "-" for NaN
std::string ulps(std::uint64_t count);                         // "4096"; "2^17.5" above 99,999
std::string counted(std::uint64_t value);                      // "1,000,000"
std::string audit_verdict(const AuditReport& report);

}  // namespace presum::cli
