// SPDX-License-Identifier: Apache-2.0
// What `presum audit` found, as text and as JSON.
#pragma once

#include <string>

#include "audit/survey.h"

namespace presum::cli {

struct AuditReport {
  std::string source;  // "gradients fp32 values of 16 workers, seed 1"
  std::uint32_t workers = 0;
  Dtype dtype = Dtype::kF32;
  audit::SurveyResult survey;
};

std::string audit_text(const AuditReport& report);
std::string audit_json(const AuditReport& report);

}  // namespace presum::cli
