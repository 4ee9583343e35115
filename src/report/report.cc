// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include "base/try.h"
#include "report/page_assets.h"
#include "report/page_data.h"

namespace presum::report {

Result<std::string> page(std::span<const RunLog> runs, const Json& comparison) {
  PRESUM_ASSIGN(auto data, page_data(runs));
  if (!comparison.is_null()) (data)["comparison"] = comparison;
  std::string out(kPageBeforeData);
  out += embeddable(data);
  out += kPageAfterData;
  return out;
}

}  // namespace presum::report
