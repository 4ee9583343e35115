// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/host_grid.h"

#include <array>
#include <cstddef>

namespace presum::observe::cuda {
namespace {

template <class Function>
void each(std::uint32_t count, Order order, Function function) {
  for (std::uint32_t i = 0; i < count; ++i) {
    function(order == Order::kForward ? i : count - 1 - i);
  }
}

// As threads exchange values of a warp; all of them end with the same bits.
Partial warp_sum(std::array<Partial, kWarp> values) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    const std::array<Partial, kWarp> before = values;
    for (unsigned i = 0; i < kWarp; ++i) values[i] = combine(before[i], before[i ^ step]);
  }
  return values[0];
}

template <Dtype kDtype>
class Block {
 public:
  Block(const Batch& batch, std::uint32_t block, Order order)
      : batch_(batch),
        block_(block),
        order_(order),
        shared_(batch.in_shared() ? batch.sums() : 0),
        row_(batch.rows + std::size_t{block} * batch.sketch_size),
        sketch_{batch.in_shared() ? shared_.data() : row_, batch.sketch_size, batch.sums()} {
    for (unsigned t = 0; t < kThreads; ++t) threads_.emplace_back(t);
  }

  void run() {
    const float* held = block_ < batch_.rows_in_use ? row_ : nullptr;
    each(kThreads, order_, [&](unsigned t) { begin(sketch_, held, t); });
    for (Walk walk(batch_, block_); walk.more();) {
      Walk next = walk;
      next.next();
      span(walk);
      if (!next.more() || next.item() != walk.item()) leave(walk.item());
      walk = next;
    }
    each(kThreads, order_, [&](unsigned t) { store(sketch_, row_, t); });
  }

 private:
  void span(const Walk& walk) {
    std::array<std::uint64_t, kTiles> sums{};
    each(kThreads, order_, [&](unsigned t) {
      const auto pairs = threads_[t].load(walk.gradient(), walk.first());
      sums[t / kTileThreads] += threads_[t].add(walk.gradient(), walk.first(), pairs, sketch_);
    });
    for (unsigned tile = 0; tile < kTiles; ++tile) {
      threads_[tile * kTileThreads].end_tile(sums[tile], walk.gradient(), walk.first());
    }
  }

  void leave(std::uint32_t item) {
    Partial sum{};
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      std::array<Partial, kWarp> values;
      for (unsigned i = 0; i < kWarp; ++i) values[i] = threads_[warp * kWarp + i].take_partial();
      sum = warp == 0 ? warp_sum(values) : combine(sum, warp_sum(values));
    }
    batch_.partials[std::size_t{block_} + item] = sum;
  }

  const Batch& batch_;
  std::uint32_t block_;
  Order order_;
  std::vector<float> shared_;
  float* row_;
  BlockSketch sketch_;
  std::vector<Thread<kDtype>> threads_;
};

template <Dtype kDtype>
void run(const Batch& batch, Order order) {
  each(batch.blocks, order, [&](std::uint32_t block) { Block<kDtype>(batch, block, order).run(); });
}

void finish_gradient(const Step& step, std::uint32_t gradient) {
  std::array<Partial, kWarp> values;
  for (unsigned i = 0; i < kWarp; ++i) values[i] = gather(step.parts[gradient], i);
  step.found[gradient] = warp_sum(values);
}

void finish_bucket(const Step& step, std::uint32_t bucket) {
  std::array<float, kRows> sums;
  for (unsigned row = 0; row < kRows; ++row) sums[row] = gather(step, bucket, row);
  for (unsigned half = kRows / 2; half > 0; half /= 2) {
    for (unsigned row = 0; row < half; ++row) sums[row] += sums[row + half];
  }
  step.sketch[bucket] = sums[0];
}

}  // namespace

Status HostGrid::pass(Dtype dtype, const Batch& batch, const Traffic& traffic, void* /*stream*/) {
  launched_.push_back({false, batch.blocks, traffic});
  switch (dtype) {
    case Dtype::kF32:
      run<Dtype::kF32>(batch, order_);
      break;
    case Dtype::kF64:
      run<Dtype::kF64>(batch, order_);
      break;
    case Dtype::kBF16:
      run<Dtype::kBF16>(batch, order_);
      break;
    case Dtype::kF16:
      run<Dtype::kF16>(batch, order_);
      break;
  }
  return {};
}

Status HostGrid::finish(const Step& step, const Traffic& traffic, void* /*stream*/) {
  launched_.push_back({true, step.gradient_blocks() + step.sketch_blocks(), traffic});
  each(step.gradients, order_, [&](std::uint32_t i) { finish_gradient(step, i); });
  each(step.sketch_size, order_, [&](std::uint32_t i) { finish_bucket(step, i); });
  return {};
}

}  // namespace presum::observe::cuda
