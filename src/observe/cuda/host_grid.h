// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "observe/cuda/launcher.h"

// The grid of kernels.cu on the host: the same functions in the same order, a barrier being the end
// of a loop over threads. What runs between two barriers must not depend on the order of threads
// and blocks, so it can be turned round. "Device memory" is the host's.
namespace presum::observe::cuda {

enum class Order { kForward, kBackward };

struct Launched {
  bool finish;  // or a pass
  std::uint64_t blocks;
  Traffic traffic;
};

// Runs each launch at once and writes it down. Not thread-safe.
class HostGrid final : public Launcher {
 public:
  explicit HostGrid(Order order = Order::kForward) : order_(order) {}

  Status pass(Dtype dtype, const Batch& batch, const Traffic& traffic, void* stream) override;
  Status finish(const Step& step, const Traffic& traffic, void* stream) override;

  const std::vector<Launched>& launched() const { return launched_; }

 private:
  Order order_;
  std::vector<Launched> launched_;
};

}  // namespace presum::observe::cuda
