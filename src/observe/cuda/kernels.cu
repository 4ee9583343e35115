// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/pass_threads.h"
#include "observe/cuda/row_threads.h"

// Compiled by NVRTC (tools/cubins.py), without headers of CUDA or C++. The rest of the code is in
// pass_threads.h and row_threads.h, which the host runs too.
namespace presum::observe::cuda {
namespace {

std::uint64_t xor_shuffle(std::uint64_t value, unsigned step) {
  return __shfl_xor_sync(0xFFFFFFFFU, static_cast<unsigned long long>(value), step);
}

double xor_shuffle(double value, unsigned step) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, step);
}

std::uint64_t warp_sum(std::uint64_t value) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) value += xor_shuffle(value, step);
  return value;
}

Partial warp_sum(Partial value) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    value = combine(value, {xor_shuffle(value.sum_squares, step), xor_shuffle(value.max_abs, step),
                            xor_shuffle(value.nonfinite, step),
                            xor_shuffle(value.fingerprint, step), xor_shuffle(value.zeros, step)});
  }
  return value;
}

struct Shared {
  std::uint64_t shares[2][kWarps];  // alternating, so that one barrier per span suffices
  Partial partials[kWarps];
};

// Writes the block's result for a gradient to its place. There is another barrier before the next
// call.
void leave(const Partial& of_thread, Shared& shared, Partial* place) {
  const Partial of_warp = warp_sum(of_thread);
  if (threadIdx.x % kWarp == 0) shared.partials[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Partial sum = shared.partials[0];
  for (unsigned i = 1; i < kWarps; ++i) sum = combine(sum, shared.partials[i]);
  *place = sum;
}

// Each lane hashes the signs of one pair and receives those of all pairs.
template <Dtype kDtype>
Signs share_signs(const Thread<kDtype>& thread, const Walk& walk) {
  const std::uint64_t own = thread.signs(walk.gradient(), walk.first(), threadIdx.x % kPairs);
  Signs signs;
  for (unsigned j = 0; j < kPairs; ++j) {
    signs.of[j] = __shfl_sync(0xFFFFFFFFU, static_cast<unsigned long long>(own), j);
  }
  return signs;
}

template <Dtype kDtype, bool kInShared>
void pass(const Batch& batch) {
  extern __shared__ float sums[];
  __shared__ Shared shared;
  __shared__ alignas(16) std::uint32_t keys[Thread<kDtype>::kAllKeys];
  float* row = batch.rows + std::size_t{blockIdx.x} * batch.sketch_size;
  const BlockSketch sketch{kInShared ? sums : row, batch.sketch_size, batch.sums()};
  begin(sketch, blockIdx.x < batch.rows_in_use ? row : nullptr, threadIdx.x);
  for (unsigned i = threadIdx.x; i < Thread<kDtype>::kAllKeys; i += kThreads) {
    keys[i] = fingerprint_key(i);
  }
  __syncthreads();
  Thread<kDtype> thread(threadIdx.x);
  Walk walk(batch, blockIdx.x);
  auto pairs = thread.load(walk.gradient(), walk.first());
  unsigned turn = 0;
  while (walk.more()) {
    Walk next = walk;
    next.next();
    const auto now = pairs;
    if (next.more()) pairs = thread.load(next.gradient(), next.first());
    const Signs signs = share_signs(thread, walk);
    const std::uint64_t share =
        warp_sum(thread.add(walk.gradient(), walk.first(), now, keys, signs, sketch));
    if (threadIdx.x % kWarp == 0) shared.shares[turn][threadIdx.x / kWarp] = share;
    __syncthreads();
    if (threadIdx.x % kTileThreads == 0) {
      std::uint64_t sum = 0;
      for (unsigned i = 0; i < kTileWarps; ++i) sum += shared.shares[turn][threadIdx.x / kWarp + i];
      thread.end_tile(sum, walk.gradient(), walk.first());
    }
    turn ^= 1;
    if (!next.more() || next.item() != walk.item()) {
      leave(thread.take_partial(), shared, batch.partials + blockIdx.x + walk.item());
    }
    walk = next;
  }
  __syncthreads();
  store(sketch, row, threadIdx.x);
}

void finish_gradients(const Step& step) {
  const unsigned gradient = blockIdx.x * Step::kGradients + threadIdx.x / kWarp;
  if (gradient >= step.gradients) return;
  const Partial sum = warp_sum(gather(step.parts[gradient], threadIdx.x % kWarp));
  if (threadIdx.x % kWarp == 0) step.found[gradient] = sum;
}

void finish_sketch(const Step& step, std::uint32_t block) {
  __shared__ float sums[kRows][kColumns];
  const unsigned column = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const std::uint32_t bucket = block * kColumns + column;
  sums[row][column] = gather(step, bucket, row);
  for (unsigned half = kRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) sums[row][column] += sums[row + half][column];
  }
  if (row == 0) step.sketch[bucket] = sums[0][column];
}

std::uint64_t warp_max(std::uint64_t value) {
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    const std::uint64_t other = xor_shuffle(value, step);
    value = value < other ? other : value;
  }
  return value;
}

void hash_row(const Rows& rows) {
  constexpr unsigned kRowWarps = kRowThreads / kWarp;
  __shared__ std::uint64_t others[kRowWarps];
  __shared__ RowShare shares[kRowWarps];
  const unsigned warp = threadIdx.x / kWarp;
  const bool first_of_warp = threadIdx.x % kWarp == 0;
  std::uint64_t left = rows.places();
  if (rows.mask == nullptr) {
    const std::uint64_t other = warp_max(last_other(rows, blockIdx.x, threadIdx.x));
    if (first_of_warp) others[warp] = other;
    __syncthreads();
    std::uint64_t last = 0;
    for (unsigned i = 0; i < kRowWarps; ++i) last = last < others[i] ? others[i] : last;
    left = without_padding(rows, last);
  }
  const RowShare share = row_share(rows, blockIdx.x, left, threadIdx.x);
  const RowShare of_warp{warp_sum(share.sum), warp_sum(share.kept)};
  if (first_of_warp) shares[warp] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  RowShare whole{0, 0};
  for (unsigned i = 0; i < kRowWarps; ++i) {
    whole.sum += shares[i].sum;
    whole.kept += shares[i].kept;
  }
  rows.hashes[blockIdx.x] = row_hash(whole);
}

}  // namespace

#define PRESUM_PASS(name, dtype, blocks)                              \
  extern "C" __global__ void __launch_bounds__(kThreads, blocks)      \
      presum_pass_##name(const __grid_constant__ Batch batch) {       \
    pass<Dtype::dtype, true>(batch);                                  \
  }                                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads, blocks)      \
      presum_large_pass_##name(const __grid_constant__ Batch batch) { \
    pass<Dtype::dtype, false>(batch);                                 \
  }
PRESUM_PASS(f32, kF32, 2)
PRESUM_PASS(f64, kF64, 1)
PRESUM_PASS(bf16, kBF16, 2)
PRESUM_PASS(f16, kF16, 2)

extern "C" __global__ void __launch_bounds__(kRowThreads)
    presum_rows(const __grid_constant__ Rows rows) {
  hash_row(rows);
}

extern "C" __global__ void __launch_bounds__(kFinishThreads)
    presum_finish(const __grid_constant__ Step step) {
  const std::uint32_t before = step.gradient_blocks();
  if (blockIdx.x < before) {
    finish_gradients(step);
  } else {
    finish_sketch(step, blockIdx.x - before);
  }
}

}  // namespace presum::observe::cuda
