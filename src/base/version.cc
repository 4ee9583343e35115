// SPDX-License-Identifier: Apache-2.0
#include "presum/version.h"

namespace presum {

const char* version() { return PRESUM_VERSION; }

}  // namespace presum
