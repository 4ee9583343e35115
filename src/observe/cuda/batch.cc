// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "device/host_grid.h"

namespace presum::observe::cuda {
namespace {

constexpr std::uint32_t kMaxBlocks = 256;
constexpr std::uint32_t kMaxSums = 1U << 20;  // over all blocks: 4 MiB
constexpr std::uint32_t kFewBlocks = 32;      // minimum, for small batches
// A block reads and writes its sketch once per launch. It gets this many bytes of gradients for
// each of those bytes.
constexpr std::uint64_t kBytesPerSketchByte = 12;

bool is_size(std::uint32_t size) {
  return size == 0 || (std::has_single_bit(size) && size >= 64 && size <= 65536);
}

// ---- the grid of kernels.cu on the host: the same functions in the same order; the end of a loop
// over threads is a barrier

using device::each;
using device::Kernel;
using device::Order;

// Adds in the order in which the threads of a warp exchange values; all threads end with the same
// bits.
Partial warp_sum(std::array<Partial, kWarp> values) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    const std::array<Partial, kWarp> before = values;
    for (unsigned i = 0; i < kWarp; ++i) values[i] = combine(before[i], before[i ^ step]);
  }
  return values[0];
}

// The threads of one block.
template <Dtype kDtype>
using Threads = std::vector<Thread<kDtype>>;

template <Dtype kDtype>
void add_span(Threads<kDtype>& threads, const Walk& walk, const BlockSketch& sketch, Order order) {
  std::array<std::uint64_t, kTiles> sums{};
  each(kThreads, order, [&](unsigned t) {
    const Item& gradient = walk.gradient();
    const auto pairs = threads[t].load(gradient, walk.first());
    Signs signs;
    for (unsigned j = 0; j < kPairs; ++j) signs.of[j] = threads[t].signs(gradient, walk.first(), j);
    sums[t / kTileThreads] +=
        threads[t].add(gradient, walk.first(), pairs, kFingerprintKey.data(), signs, sketch);
  });
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    threads[tile * kTileThreads].end_tile(sums[tile], walk.gradient(), walk.first());
  }
}

template <Dtype kDtype>
Partial take_partials(Threads<kDtype>& threads) {
  Partial sum{};
  for (unsigned warp = 0; warp < kWarps; ++warp) {
    std::array<Partial, kWarp> values;
    for (unsigned i = 0; i < kWarp; ++i) values[i] = threads[warp * kWarp + i].take_partial();
    sum = warp == 0 ? warp_sum(values) : combine(sum, warp_sum(values));
  }
  return sum;
}

template <Dtype kDtype>
void run_block(const Batch& batch, std::uint32_t block, Order order) {
  std::vector<float> shared(batch.in_shared() ? batch.sums() : 0);
  float* row = batch.rows + std::size_t{block} * batch.sketch_size;
  const BlockSketch sketch{batch.in_shared() ? shared.data() : row, batch.sketch_size,
                           batch.sums()};
  const float* held = block < batch.rows_in_use ? row : nullptr;
  Threads<kDtype> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(t);
  each(kThreads, order, [&](unsigned t) { begin(sketch, held, t); });
  for (Walk walk(batch, block); walk.more();) {
    Walk next = walk;
    next.next();
    add_span<kDtype>(threads, walk, sketch, order);
    if (!next.more() || next.item() != walk.item()) {
      batch.partials[std::size_t{block} + walk.item()] = take_partials<kDtype>(threads);
    }
    walk = next;
  }
  each(kThreads, order, [&](unsigned t) { store(sketch, row, t); });
}

template <Dtype kDtype>
void run(const void* argument, std::uint32_t blocks, Order order) {
  const Batch& batch = *static_cast<const Batch*>(argument);
  each(blocks, order, [&](std::uint32_t block) { run_block<kDtype>(batch, block, order); });
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

void finish_all(const void* argument, std::uint32_t /*blocks*/, Order order) {
  const Step& step = *static_cast<const Step*>(argument);
  each(step.gradients, order, [&](std::uint32_t i) { finish_gradient(step, i); });
  each(step.sketch_size, order, [&](std::uint32_t i) { finish_bucket(step, i); });
}

// Indexed by Dtype; the kernels of the second array keep their sums in global memory.
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
constexpr Kernel kFinish = {"observe", "presum_finish", kFinishThreads, finish_all};

}  // namespace

Result<GradientBatch> GradientBatch::create(Dtype dtype, std::uint32_t sketch_size) {
  if (!is_size(sketch_size) || element_bytes(dtype) == 0) {
    return fail(ErrorCode::kInvalidArgument, "CUDA pass: no such sketch size or dtype");
  }
  return GradientBatch(dtype, sketch_size);
}

void GradientBatch::add(const void* data, std::uint64_t count, std::uint64_t seed) {
  items_.push_back({data, count, seed, spans_});
  spans_ += count / kSpan + (count % kSpan != 0 ? 1 : 0);
  elements_ += count;
}

std::uint32_t GradientBatch::most_blocks(std::uint32_t sketch_size) {
  return std::min(kMaxBlocks, kMaxSums / std::max(sketch_size, 1U));
}

std::uint32_t GradientBatch::blocks() const {
  const std::uint64_t sketch_bytes = std::uint64_t{2} * sketch_size_ * sizeof(float);
  const std::uint64_t worth =
      sketch_size_ == 0 ? kMaxBlocks
                        : elements_ * element_bytes(dtype_) / (kBytesPerSketchByte * sketch_bytes);
  const std::uint64_t wanted = std::max<std::uint64_t>(worth, kFewBlocks);
  return static_cast<std::uint32_t>(
      std::min({wanted, spans_, std::uint64_t{most_blocks(sketch_size_)}}));
}

Batch GradientBatch::batch(const Memory& memory) const {
  return {memory.list,
          memory.partials,
          memory.rows,
          spans_,
          static_cast<std::uint32_t>(items_.size()),
          blocks(),
          memory.rows_in_use,
          sketch_size_};
}

std::vector<Parts> GradientBatch::parts(const Partial* partials) const {
  const Batch whole = batch({});
  std::vector<Parts> found;
  found.reserve(items_.size());
  std::uint32_t block = 0;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const std::uint64_t begin = items_[i].first_span;
    const std::uint64_t end = i + 1 < items_.size() ? items_[i + 1].first_span : spans_;
    if (begin == end) {
      found.push_back({nullptr, 0});
      continue;
    }
    while (whole.first_span(block + 1) <= begin) ++block;
    std::uint32_t last = block;
    while (whole.first_span(last + 1) < end) ++last;
    found.push_back({partials + block + i, last - block + 1});
    block = last;
  }
  return found;
}

Status GradientBatch::launch(device::Launcher& launcher, const Memory& memory, void* stream) const {
  if (spans_ == 0) return {};
  const Batch argument = batch(memory);
  const std::uint32_t taken = std::min(memory.rows_in_use, blocks());
  const std::uint64_t rows = blocks() + taken;  // written and read
  const std::size_t shared = argument.in_shared() ? argument.sums() * sizeof(float) : 0;
  const device::Traffic traffic{
      elements_ * element_bytes(dtype_),
      list_bytes() + partials_bytes() + rows * sketch_size_ * sizeof(float)};
  const auto& kernels = argument.in_shared() ? kPass : kLargePass;
  return launcher.start({kernels[static_cast<std::size_t>(dtype_)], &argument, argument.blocks,
                         static_cast<std::uint32_t>(shared), traffic},
                        stream);
}

Status finish(device::Launcher& launcher, const Step& step, std::uint64_t traffic, void* stream) {
  const std::uint32_t blocks = step.gradient_blocks() + step.sketch_blocks();
  if (blocks == 0) return {};
  return launcher.start({kFinish, &step, blocks, 0, {0, traffic}}, stream);
}

}  // namespace presum::observe::cuda
