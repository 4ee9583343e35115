// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "device/host_grid.h"
#include "observe/cuda/batch.h"
#include "observe/cuda/pass_threads.h"
#include "observe/cuda/row_threads.h"
#include "observe/cuda/rows.h"

// The grid of kernels.cu on the host: the same functions in the same order, a barrier being the end
// of a loop over threads.

namespace presum::observe::cuda {
namespace {

using device::each;
using device::Kernel;
using device::Order;

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
      const Item& gradient = walk.gradient();
      const auto pairs = threads_[t].load(gradient, walk.first());
      Signs signs;
      for (unsigned j = 0; j < kPairs; ++j) {
        signs.of[j] = threads_[t].signs(gradient, walk.first(), j);
      }
      sums[t / kTileThreads] +=
          threads_[t].add(gradient, walk.first(), pairs, kFingerprintKey.data(), signs, sketch_);
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
void run(const void* argument, std::uint32_t blocks, Order order) {
  const Batch& batch = *static_cast<const Batch*>(argument);
  each(blocks, order, [&](std::uint32_t block) { Block<kDtype>(batch, block, order).run(); });
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

void finish(const void* argument, std::uint32_t /*blocks*/, Order order) {
  const Step& step = *static_cast<const Step*>(argument);
  each(step.gradients, order, [&](std::uint32_t i) { finish_gradient(step, i); });
  each(step.sketch_size, order, [&](std::uint32_t i) { finish_bucket(step, i); });
}

std::uint64_t hash_row(const Rows& rows, std::uint32_t row, Order order) {
  std::uint64_t left = rows.places();
  if (rows.mask == nullptr) {
    std::uint64_t other = 0;
    each(kRowThreads, order,
         [&](unsigned t) { other = std::max(other, last_other(rows, row, t)); });
    left = without_padding(rows, other);
  }
  RowShare whole{0, 0};
  each(kRowThreads, order, [&](unsigned t) {
    const RowShare share = row_share(rows, row, left, t);
    whole = {whole.sum + share.sum, whole.kept + share.kept};
  });
  return row_hash(whole);
}

void hash_all_rows(const void* argument, std::uint32_t blocks, Order order) {
  const Rows& rows = *static_cast<const Rows*>(argument);
  each(blocks, order, [&](std::uint32_t row) { rows.hashes[row] = hash_row(rows, row, order); });
}

// By Dtype; the second ones keep their sums in global memory.
constexpr std::array<Kernel, 4> kPass = {{
    {"observe", "presum_pass_f32", kThreads, run<Dtype::kF32>},
    {"observe", "presum_pass_f64", kThreads, run<Dtype::kF64>},
    {"observe", "presum_pass_bf16", kThreads, run<Dtype::kBF16>},
    {"observe", "presum_pass_f16", kThreads, run<Dtype::kF16>},
}};
constexpr std::array<Kernel, 4> kLargePass = {{
    {"observe", "presum_large_pass_f32", kThreads, run<Dtype::kF32>},
    {"observe", "presum_large_pass_f64", kThreads, run<Dtype::kF64>},
    {"observe", "presum_large_pass_bf16", kThreads, run<Dtype::kBF16>},
    {"observe", "presum_large_pass_f16", kThreads, run<Dtype::kF16>},
}};
constexpr Kernel kHashRows = {"observe", "presum_rows", kRowThreads, hash_all_rows};
constexpr Kernel kFinish = {"observe", "presum_finish", kFinishThreads, finish};

}  // namespace

const Kernel& pass_kernel(Dtype dtype, bool in_shared) {
  return (in_shared ? kPass : kLargePass)[static_cast<std::size_t>(dtype)];
}

const Kernel& rows_kernel() { return kHashRows; }

const Kernel& finish_kernel() { return kFinish; }

}  // namespace presum::observe::cuda
