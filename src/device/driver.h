// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "device/kernel.h"
#include "presum/status.h"

// CUDA kernels on a GPU, started through the driver's library only (libcuda.so.1, opened at first
// use). Needs no CUDA runtime, and does nothing on a machine without a driver.
namespace presum::device {

// A room's kernels, compiled for one GPU architecture: sm_75 is 75. The driver compiles PTX for
// that architecture and later ones.
struct Image {
  const char* room;
  unsigned gpu;
  bool is_ptx;
  const void* code;
};

// The images that presum was built with (CMake's PRESUM_CUBINS); may be empty.
std::span<const Image> images();

// Returns the room's best image for a GPU: a binary of the GPU's generation, not newer than the
// GPU, or PTX; nullptr if there is none.
const Image* image_for(std::span<const Image> images, std::string_view room, unsigned gpu);

// Returns the launcher for this thread's current device, which must have a context. presum owns it
// until the process ends. Thread-safe. Fails with kUnsupported, and a message that gives the
// reason, if there are no kernels, no driver of CUDA 12.0 or later, or no image that the device can
// run.
Result<Launcher*> driver_launcher();

}  // namespace presum::device
