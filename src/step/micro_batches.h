// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "presum/records.h"

namespace presum::step {

// The most losses that one step keeps, in the order in which they arrive. If a step has more, one
// micro-batch replaces them all: their weighted mean, the sum of their weights and the sum of their
// tokens.
inline constexpr std::size_t kMicroBatchesMax = 1024;

// Memory: at most twice kMicroBatchesMax, however long the step is.
class MicroBatches {
 public:
  void add(const MicroBatch& one);
  std::vector<MicroBatch> bounded() const;

 private:
  bool put_together_ = false;
  std::vector<MicroBatch> all_;
};

}  // namespace presum::step
