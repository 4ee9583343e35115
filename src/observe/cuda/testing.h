// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "observe/cuda/gradient_blocks.h"
#include "observe/gradient_pass.h"

// The grid of gradient_pass.cu on the host: the same functions in the same order, a barrier being
// the end of a loop over threads. What runs between two barriers must not depend on the order of
// threads, so it can be turned round.
namespace presum::observe::cuda {

enum class Order { kForward, kBackward };

template <class Function>
void each(unsigned count, Order order, Function function) {
  for (unsigned i = 0; i < count; ++i) {
    function(order == Order::kForward ? i : count - 1 - i);
  }
}

inline Partial reduce(std::vector<Partial>& values, Order order) {
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    each(half, order, [&](unsigned t) { values[t] = combine(values[t], values[t + half]); });
  }
  return values[0];
}

template <Dtype kDtype>
void emulate_block(unsigned block, const Gradient& gradient, const Plan& plan, std::uint64_t seed,
                   const Workspace& workspace, Order order) {
  std::vector<float> shared(plan.in_shared() ? plan.sums : 0);
  float* stored = workspace.sketches + std::size_t{block} * plan.size;
  const BlockSketch sketch{plan.in_shared() ? shared.data() : stored, plan.size, plan.sums, seed};
  each(kThreads, order, [&](unsigned t) { clear(sketch, t); });
  std::vector<Thread<kDtype>> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(t);
  for (std::uint64_t tile = block; tile < plan.tiles; tile += plan.blocks) {
    std::uint64_t sum = 0;
    each(kThreads, order, [&](unsigned t) { sum += threads[t].add(gradient, tile, sketch); });
    threads[0].end_tile(sum, tile, gradient.count);
  }
  each(kThreads, order, [&](unsigned t) { store(sketch, stored, t); });
  std::vector<Partial> partials(kThreads);
  each(kThreads, order, [&](unsigned t) { partials[t] = threads[t].partial(); });
  workspace.partials[block] = reduce(partials, order);
}

inline Partial emulate_finish(const Workspace& workspace, const Plan& plan, Order order) {
  std::vector<Partial> values(kThreads);
  each(kThreads, order,
       [&](unsigned t) { values[t] = gather(workspace.partials, plan.blocks, t); });
  return reduce(values, order);
}

inline void emulate_add_sketches(const Workspace& workspace, const Plan& plan, float* to,
                                 Order order) {
  for (std::uint32_t bucket = 0; bucket < plan.size; ++bucket) {
    float sums[kRows];
    for (unsigned row = 0; row < kRows; ++row) {
      sums[row] = gather(workspace.sketches, plan.blocks, plan.size, bucket, row);
    }
    for (unsigned half = kRows / 2; half > 0; half /= 2) {
      each(half, order, [&](unsigned row) { sums[row] += sums[row + half]; });
    }
    to[bucket] += sums[0];
  }
}

template <Dtype kDtype>
GradientSums emulate(const void* data, std::size_t count, SketchSpan sketch, Order order) {
  const Plan plan = plan_of(count, sketch.size);
  // Exactly as large as promised, so that the address sanitizer sees a write beside it.
  const auto memory = std::make_unique<std::byte[]>(plan.workspace_bytes());
  const Workspace workspace(memory.get(), plan);
  const Gradient gradient = gradient_of(data, count, kDtype);
  each(plan.blocks, order, [&](unsigned block) {
    emulate_block<kDtype>(block, gradient, plan, sketch.seed, workspace, order);
  });
  const Partial all = emulate_finish(workspace, plan, order);
  if (plan.blocks > 0) emulate_add_sketches(workspace, plan, sketch.values, order);
  return {all.sum_squares, all.max_abs, all.nonfinite, all.fingerprint, all.zeros};
}

inline GradientSums emulate(const void* data, std::size_t count, Dtype dtype, SketchSpan sketch,
                            Order order = Order::kForward) {
  switch (dtype) {
    case Dtype::kF32:
      return emulate<Dtype::kF32>(data, count, sketch, order);
    case Dtype::kF64:
      return emulate<Dtype::kF64>(data, count, sketch, order);
    case Dtype::kBF16:
      return emulate<Dtype::kBF16>(data, count, sketch, order);
    case Dtype::kF16:
      return emulate<Dtype::kF16>(data, count, sketch, order);
  }
  return {};
}

}  // namespace presum::observe::cuda
