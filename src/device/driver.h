// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "device/kernel.h"
#include "presum/status.h"

// Kernels on a GPU, by way of the driver's library alone (libcuda.so.1, opened when this is first
// asked for): no CUDA runtime, and nothing on a machine without a driver.
namespace presum::device {

// A room's kernels, compiled for one kind of GPU: sm_75 is 75. PTX is compiled by the driver, for
// that kind and later ones.
struct Image {
  const char* room;
  unsigned gpu;
  bool is_ptx;
  const void* code;
};

// Those that presum was built with (CMake's PRESUM_CUBINS); may be none.
std::span<const Image> images();

// The best of a room's for a GPU: compiled for its generation and no later than it, else PTX;
// nullptr where there is none.
const Image* image_for(std::span<const Image> images, std::string_view room, unsigned gpu);

// For the current device of this thread, which has a context; owned by presum, for the rest of the
// process. Thread-safe. Fails with kUnsupported, and says why, where there are no kernels, no
// driver of CUDA 12.0 or later, or no image that the device can run.
Result<Launcher*> driver_launcher();

}  // namespace presum::device
