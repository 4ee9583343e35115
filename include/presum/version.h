// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace presum {

// The library's version, "major.minor.patch", from the file VERSION.
const char* version();

}  // namespace presum
