// SPDX-License-Identifier: Apache-2.0
#include "step/micro_batches.h"

namespace presum::step {
namespace {

// NaN and Inf propagate. If all weights are 0, returns the plain mean.
MicroBatch together(const std::vector<MicroBatch>& all) {
  MicroBatch out{.loss = 0, .weight = 0};
  double plain = 0;
  double tokens_weight = 0;
  for (const MicroBatch& one : all) {
    plain += one.loss;
    out.loss += one.weight > 0 ? one.loss * one.weight : 0;
    out.weight += one.weight;
    out.tokens += one.tokens;
    out.targets += one.targets;
    tokens_weight += one.targets > 0 ? one.token_weight * static_cast<double>(one.targets) : 0;
  }
  if (out.targets > 0) out.token_weight = tokens_weight / static_cast<double>(out.targets);
  out.loss = out.weight > 0 ? out.loss / out.weight : plain / static_cast<double>(all.size());
  return out;
}

}  // namespace

void MicroBatches::add(const MicroBatch& one) {
  if (all_.size() == 2 * kMicroBatchesMax) {
    all_ = {together(all_)};
    put_together_ = true;
  }
  all_.push_back(one);
}

std::vector<MicroBatch> MicroBatches::bounded() const {
  const bool apart = !put_together_ && all_.size() <= kMicroBatchesMax;
  return apart ? all_ : std::vector{together(all_)};
}

}  // namespace presum::step
