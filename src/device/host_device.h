// SPDX-License-Identifier: Apache-2.0
#pragma once

// C++'s library for headers that the host and NVRTC compile. There every function is a device's
// (tools/cubins.py: --device-as-default-execution-space).
#ifdef __CUDACC_RTC__
#include "device/rtc_std.h"
#else
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#endif
