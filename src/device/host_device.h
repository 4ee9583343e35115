// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// Marks what both a device and the host run.
#ifdef __CUDACC__
#define PRESUM_HOST_DEVICE __host__ __device__
#else
#define PRESUM_HOST_DEVICE
#endif
