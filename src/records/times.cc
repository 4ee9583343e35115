// SPDX-License-Identifier: Apache-2.0
#include "presum/times.h"

#include "records/names.h"

namespace presum {

const char* to_string(Phase phase) { return records::name_of(records::kPhases, phase); }

}  // namespace presum
