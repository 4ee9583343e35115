// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/gradient_pass.h"

#include <cuda_runtime.h>

#include <bit>
#include <string>

#include "observe/cuda/gradient_blocks.h"

namespace presum::observe::cuda {
namespace {

constexpr unsigned kWarps = kThreads / kWarp;

// Integers: their order does not matter.
__device__ std::uint64_t warp_sum(std::uint64_t value) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, static_cast<unsigned long long>(value), step);
  }
  return value;
}

__device__ std::uint64_t sum_of_warps(const std::uint64_t (&sums)[kWarps]) {
  std::uint64_t sum = 0;
  for (const std::uint64_t warp : sums) sum += warp;
  return sum;
}

// The threads' values as a tree, into the first; the last barrier is before the last addition.
__device__ void reduce(Partial (&values)[kThreads]) {
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    }
  }
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kThreads)
    pass_blocks(Gradient gradient, Plan plan, std::uint64_t seed, Workspace workspace,
                bool in_shared) {
  extern __shared__ float shared_sums[];
  __shared__ std::uint64_t warp_sums[2][kWarps];  // by turns, so that one barrier a tile is enough
  __shared__ Partial partials[kThreads];
  float* stored = workspace.sketches + std::size_t{blockIdx.x} * plan.size;
  const BlockSketch sketch{in_shared ? shared_sums : stored, plan.size, plan.sums, seed};
  clear(sketch, threadIdx.x);
  __syncthreads();
  Thread<kDtype> thread(threadIdx.x);
  unsigned turn = 0;
  for (std::uint64_t tile = blockIdx.x; tile < plan.tiles; tile += plan.blocks) {
    const std::uint64_t share = warp_sum(thread.add(gradient, tile, sketch));
    if (threadIdx.x % kWarp == 0) warp_sums[turn][threadIdx.x / kWarp] = share;
    __syncthreads();
    if (threadIdx.x == 0) thread.end_tile(sum_of_warps(warp_sums[turn]), tile, gradient.count);
    turn ^= 1;
  }
  store(sketch, stored, threadIdx.x);
  partials[threadIdx.x] = thread.partial();
  reduce(partials);
  if (threadIdx.x == 0) workspace.partials[blockIdx.x] = partials[0];
}

__global__ void __launch_bounds__(kThreads)
    finish(const Partial* partials, std::uint32_t blocks, Results results) {
  __shared__ Partial values[kThreads];
  values[threadIdx.x] = gather(partials, blocks, threadIdx.x);
  reduce(values);
  if (threadIdx.x != 0) return;
  *results.sum_squares = values[0].sum_squares;
  *results.max_abs = values[0].max_abs;
  *results.nonfinite = static_cast<std::int64_t>(values[0].nonfinite);
  *results.fingerprint = values[0].fingerprint;
  *results.zeros = static_cast<std::int64_t>(values[0].zeros);
}

__global__ void __launch_bounds__(kColumns* kRows)
    add_sketches(const float* sketches, std::uint32_t blocks, std::uint32_t size, float* to) {
  __shared__ float sums[kRows][kColumns];
  const std::uint32_t bucket = blockIdx.x * kColumns + threadIdx.x;
  sums[threadIdx.y][threadIdx.x] = gather(sketches, blocks, size, bucket, threadIdx.y);
  for (unsigned half = kRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
    }
  }
  if (threadIdx.y == 0) to[bucket] += sums[0][threadIdx.x];
}

using PassBlocks = void (*)(Gradient, Plan, std::uint64_t, Workspace, bool);

PassBlocks kernel_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return pass_blocks<Dtype::kF32>;
    case Dtype::kF64:
      return pass_blocks<Dtype::kF64>;
    case Dtype::kBF16:
      return pass_blocks<Dtype::kBF16>;
    case Dtype::kF16:
      return pass_blocks<Dtype::kF16>;
  }
  return nullptr;
}

bool is_size(std::uint32_t size) {
  return size == 0 || (std::has_single_bit(size) && size >= 64 && size <= 65536);
}

}  // namespace

std::size_t workspace_bytes(std::size_t count, std::uint32_t sketch_size) {
  return plan_of(count, sketch_size).workspace_bytes();
}

Status gradient_pass(const void* data, std::size_t count, Dtype dtype, SketchSpan sketch,
                     Results results, void* workspace, void* stream) {
  const PassBlocks kernel = kernel_of(dtype);
  if (!is_size(sketch.size) || kernel == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "CUDA pass: no such sketch size or dtype");
  }
  const Plan plan = plan_of(count, sketch.size);
  const Workspace found(workspace, plan);
  auto* const queue = static_cast<cudaStream_t>(stream);
  if (plan.blocks > 0) {
    kernel<<<plan.blocks, kThreads, plan.shared_bytes(), queue>>>(
        gradient_of(data, count, dtype), plan, sketch.seed, found, plan.in_shared());
  }
  finish<<<1, kThreads, 0, queue>>>(found.partials, plan.blocks, results);
  if (plan.blocks > 0 && plan.size > 0) {
    add_sketches<<<plan.size / kColumns, dim3(kColumns, kRows), 0, queue>>>(
        found.sketches, plan.blocks, plan.size, sketch.values);
  }
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return fail(ErrorCode::kIo, std::string("CUDA pass: ") + cudaGetErrorString(error));
}

}  // namespace presum::observe::cuda
