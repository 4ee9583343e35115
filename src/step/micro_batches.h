// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "presum/records.h"

namespace presum::step {

// The losses of one step, in the order in which they came. Where a step has more than this, one
// micro-batch stands for all: their weighted mean, the sums of their weights and of their tokens.
inline constexpr std::size_t kMicroBatchesMax = 1024;

// Memory: at most twice that many, however long the step is.
class MicroBatches {
 public:
  void add(const MicroBatch& one);
  std::vector<MicroBatch> bounded() const;

 private:
  bool put_together_ = false;
  std::vector<MicroBatch> all_;
};

}  // namespace presum::step
