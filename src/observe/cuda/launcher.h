// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "observe/cuda/pass_threads.h"
#include "presum/dtype.h"
#include "presum/status.h"

// Starts the kernels of kernels.cu: on a device (observe/cuda/driver.h), or on the host, where each
// launch is written down (observe/cuda/host_grid.h).
namespace presum::observe::cuda {

// Memory that a launch reads and writes, each byte once where it is read once.
struct Traffic {
  std::uint64_t gradient_bytes = 0;
  std::uint64_t other_bytes = 0;
};

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Queues a kernel on a stream of the current device, a CUstream, and returns. Memory that the
  // arguments point to is the caller's and stays as it is until the stream has come so far. Fails
  // with kIo where the launch is refused; what fails on the device shows later, in the stream.
  virtual Status pass(Dtype dtype, const Batch& batch, const Traffic& traffic, void* stream) = 0;
  virtual Status finish(const Step& step, const Traffic& traffic, void* stream) = 0;
};

}  // namespace presum::observe::cuda
