// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/status.h"

// A CUDA kernel as the host sees it. The kernels of a room are in its cuda/kernels.cu; the code of
// their threads is in headers that the host also compiles.
namespace presum::device {

// Order of blocks, and of threads between two barriers. Results must not depend on it.
enum class Order : std::uint8_t { kForward, kBackward };

struct Kernel {
  const char* room;  // the room whose kernels.cu defines it
  const char* name;
  unsigned threads;  // per block
  // Runs the same grid on the host; "device memory" is host memory.
  void (*on_host)(const void* argument, std::uint32_t blocks, Order order);
};

// Memory that a launch reads and writes. Memory that is read twice counts twice.
struct Traffic {
  std::uint64_t gradient_bytes = 0;
  std::uint64_t other_bytes = 0;
};

struct Launch {
  const Kernel& kernel;
  const void* argument;  // the kernel's only argument, borrowed for the call
  std::uint32_t blocks;
  std::uint32_t shared_bytes;
  Traffic traffic;
};

// Starts kernels on a device (device/driver.h), or on the host, which records each launch
// (device/host_grid.h).
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Queues a kernel on a stream of the current device, a CUstream, and returns. The caller owns the
  // memory that the argument points to and keeps it unchanged until the stream has passed the
  // kernel. Fails with kIo if the launch is refused. A failure on the device shows later, in the
  // stream.
  virtual Status start(const Launch& launch, void* stream) = 0;
};

}  // namespace presum::device
