// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C++ standard library for headers that both the host and NVRTC compile. NVRTC compiles every
// function for the device (tools/cubins.py: --device-as-default-execution-space).
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
