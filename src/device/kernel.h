// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/status.h"

// A CUDA kernel as the host sees it. A room's kernels are in its cuda/kernels.cu; what their
// threads do is in headers that the host compiles too.
namespace presum::device {

// Of blocks and threads between two barriers: results must not depend on it.
enum class Order : std::uint8_t { kForward, kBackward };

struct Kernel {
  const char* room;  // whose kernels.cu has it
  const char* name;
  unsigned threads;  // of a block
  // The same grid on the host; "device memory" is the host's.
  void (*on_host)(const void* argument, std::uint32_t blocks, Order order);
};

// Memory that a launch reads and writes; what is read twice counts twice.
struct Traffic {
  std::uint64_t gradient_bytes = 0;
  std::uint64_t other_bytes = 0;
};

struct Launch {
  const Kernel& kernel;
  const void* argument;  // the kernel's only one, borrowed for the call
  std::uint32_t blocks;
  std::uint32_t shared_bytes;
  Traffic traffic;
};

// Starts kernels: on a device (device/driver.h), or on the host, where each launch is written down
// (device/host_grid.h).
class Launcher {
 public:
  virtual ~Launcher() = default;

  // Queues a kernel on a stream of the current device, a CUstream, and returns. Memory that the
  // argument points to is the caller's and stays as it is until the stream has come so far. Fails
  // with kIo where the launch is refused; what fails on the device shows later, in the stream.
  virtual Status start(const Launch& launch, void* stream) = 0;
};

}  // namespace presum::device
