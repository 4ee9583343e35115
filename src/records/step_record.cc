// SPDX-License-Identifier: Apache-2.0
#include "presum/step_record.h"

#include "records/names.h"

namespace presum {

const char* to_string(CosineSource source) {
  return records::name_of(records::kCosineSources, source);
}

}  // namespace presum
