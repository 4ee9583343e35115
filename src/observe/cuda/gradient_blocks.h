// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "observe/fingerprint.h"
#include "observe/sketch.h"
#include "observe/zeros.h"
#include "presum/dtype.h"

// What each thread of the CUDA pass does between two barriers, as functions that the host can run
// too: the tests run a whole grid of them one thread after the other (observe/cuda/testing.h).
//
// A tile is a fingerprint block, 1,024 elements. A block of threads takes every `blocks`-th tile;
// in a tile a thread takes 4 pairs of neighbouring elements. So no two threads meet in a bucket
// between two barriers, every sum has a fixed order, and the grid depends on the gradient's length
// only: results are the same bits on every GPU. They differ from those of observe/gradient_pass.h
// in the order of floating-point additions.
//
// Nothing here is synchronised or allocated; pointers are borrowed.
#ifdef __CUDACC__
#define PRESUM_HOST_DEVICE __host__ __device__
#else
#define PRESUM_HOST_DEVICE
#endif

namespace presum::observe::cuda {

inline constexpr unsigned kThreads = 128;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kPairs = kFingerprintBlock / 2 / kThreads;  // of a thread in a tile
inline constexpr unsigned kColumns = 32;  // threads of a block that adds up sketches: 32 x 32
inline constexpr unsigned kRows = 32;

// What a block of threads found.
struct Partial {
  double sum_squares;
  double max_abs;
  std::uint64_t nonfinite;
  std::uint64_t fingerprint;
  std::uint64_t zeros;
};

PRESUM_HOST_DEVICE inline Partial combine(const Partial& a, const Partial& b) {
  return {a.sum_squares + b.sum_squares, a.max_abs < b.max_abs ? b.max_abs : a.max_abs,
          a.nonfinite + b.nonfinite, a.fingerprint + b.fingerprint, a.zeros + b.zeros};
}

// The grid for a gradient. Blocks are few enough that their sketches take at most 16 MiB, and no
// more floats than the gradient has elements (rounded up).
struct Plan {
  static constexpr std::uint32_t kMaxBlocks = 1024;
  static constexpr std::uint32_t kMaxSums = 1U << 22;  // of all blocks together
  static constexpr std::uint32_t kMaxShared = 8192;    // sums that fit into shared memory

  std::uint64_t tiles;
  std::uint32_t blocks;  // 0 for an empty gradient
  std::uint32_t size;    // of the sketch
  std::uint32_t sums;    // floats that a block adds to: whole sketches, at least a tile's elements

  bool in_shared() const { return sums <= kMaxShared; }
  std::size_t shared_bytes() const { return in_shared() ? sums * sizeof(float) : 0; }
  std::size_t workspace_bytes() const {
    return blocks * (sizeof(Partial) + std::size_t{size} * sizeof(float));
  }
};

inline Plan plan_of(std::uint64_t count, std::uint32_t sketch_size) {
  const std::uint32_t stretch = std::max<std::uint32_t>(sketch_size, kFingerprintBlock);
  const std::uint64_t wanted = count / stretch + (count % stretch != 0 ? 1 : 0);
  const std::uint32_t most = std::min(Plan::kMaxBlocks, Plan::kMaxSums / stretch);
  const std::uint64_t tiles = count / kFingerprintBlock + (count % kFingerprintBlock != 0 ? 1 : 0);
  return {tiles, static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, most)), sketch_size,
          sketch_size == 0 ? 0 : stretch};
}

// Memory that blocks leave their results in: a Partial each, then a sketch each.
struct Workspace {
  Partial* partials;
  float* sketches;

  Workspace(void* memory, const Plan& plan)
      : partials(static_cast<Partial*>(memory)),
        sketches(reinterpret_cast<float*>(partials + plan.blocks)) {}
};

struct Gradient {
  const void* data;
  std::uint64_t count;
  bool pairs_aligned;  // to the size of two elements
};

inline Gradient gradient_of(const void* data, std::uint64_t count, Dtype dtype) {
  return {data, count, reinterpret_cast<std::uintptr_t>(data) % (2 * element_bytes(dtype)) == 0};
}

// The sums of one block of threads. Where a sketch is shorter than a tile there are several, one
// after the other, so that each element of a tile has a sum of its own.
struct BlockSketch {
  float* values;
  std::uint32_t size;  // 0: no sketch
  std::uint32_t sums;
  std::uint64_t seed;
};

template <Dtype kDtype>
struct Element;
template <>
struct Element<Dtype::kF32> {
  using Bits = std::uint32_t;
  using Real = float;
  PRESUM_HOST_DEVICE static float value(Bits bits) { return std::bit_cast<float>(bits); }
};
template <>
struct Element<Dtype::kF64> {
  using Bits = std::uint64_t;
  using Real = double;
  PRESUM_HOST_DEVICE static double value(Bits bits) { return std::bit_cast<double>(bits); }
};
template <>
struct Element<Dtype::kBF16> {
  using Bits = std::uint16_t;
  using Real = float;
  PRESUM_HOST_DEVICE static float value(Bits bits) {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
};
template <>
struct Element<Dtype::kF16> {
  using Bits = std::uint16_t;
  using Real = float;
  // Exponent and mantissa in their places of a float, which then lacks a factor of 2^112;
  // infinities and NaNs need all exponent bits besides.
  PRESUM_HOST_DEVICE static float value(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t exponent = magnitude > 0x7BFF ? 0x7F800000U : 0U;
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign | exponent);
  }
};

// One thread of a block: its share of every tile of that block.
template <Dtype kDtype>
class Thread {
 public:
  using Bits = typename Element<kDtype>::Bits;
  using Real = typename Element<kDtype>::Real;

  PRESUM_HOST_DEVICE explicit Thread(unsigned index) : index_(index) {
    for (unsigned j = 0; j < kPairs; ++j) {
      for (unsigned k = 0; k < kKeys; ++k) keys_[j][k] = fingerprint_key(kKeys * pair(j) + k);
    }
  }

  // Adds the elements to the sketch and to this thread's sums. Returns this thread's share of the
  // tile's block sum (observe/fingerprint.h).
  PRESUM_HOST_DEVICE std::uint64_t add(const Gradient& gradient, std::uint64_t tile,
                                       const BlockSketch& sketch) {
    std::uint64_t share = 0;
    for (unsigned j = 0; j < kPairs; ++j) {
      const std::uint64_t first = tile * kFingerprintBlock + 2 * pair(j);
      if (first >= gradient.count) break;
      const bool whole = first + 1 < gradient.count;
      const Pair bits = load(gradient, first, whole);
      share += products(bits, keys_[j], whole);
      add_values(Element<kDtype>::value(bits.first), Element<kDtype>::value(bits.second), first,
                 sketch);
      if (!whole && is_looked_at(first)) --zeros_;
    }
    return share;
  }

  // The block sum of a tile is known; one thread of the block is told.
  PRESUM_HOST_DEVICE void end_tile(std::uint64_t block_sum, std::uint64_t tile,
                                   std::uint64_t count) {
    const std::uint64_t left = count - tile * kFingerprintBlock;
    const std::size_t elements =
        left < kFingerprintBlock ? static_cast<std::size_t>(left) : kFingerprintBlock;
    fingerprint_ += fingerprint_of_block(block_sum, tile, elements);
  }

  PRESUM_HOST_DEVICE Partial partial() const {
    return {sum_squares_, static_cast<double>(largest_), nonfinite_, fingerprint_, zeros_};
  }

 private:
  static constexpr unsigned kKeys = kDtype == Dtype::kF64 ? 4 : 2;  // words of a pair

  struct alignas(2 * sizeof(Bits)) Pair {
    Bits first, second;
  };

  PRESUM_HOST_DEVICE unsigned pair(unsigned j) const { return index_ + j * kThreads; }

  // A second element that does not exist is zero, which changes no sum.
  PRESUM_HOST_DEVICE static Pair load(const Gradient& gradient, std::uint64_t first, bool whole) {
    const auto* from = static_cast<const char*>(gradient.data) + first * sizeof(Bits);
    Pair pair{0, 0};
    if (whole && gradient.pairs_aligned) {
      std::memcpy(&pair, __builtin_assume_aligned(from, sizeof(Pair)), sizeof(Pair));
      return pair;
    }
    pair.first = load_one(from);
    if (whole) pair.second = load_one(from + sizeof(Bits));
    return pair;
  }

  PRESUM_HOST_DEVICE static Bits load_one(const char* from) {
    Bits bits;
    std::memcpy(&bits, __builtin_assume_aligned(from, sizeof(Bits)), sizeof(Bits));
    return bits;
  }

  PRESUM_HOST_DEVICE static std::uint64_t product(std::uint32_t left, std::uint32_t right) {
    return static_cast<std::uint64_t>(left) * right;
  }

  PRESUM_HOST_DEVICE static std::uint64_t product_of_halves(std::uint64_t bits,
                                                            const std::uint32_t* keys) {
    return product(static_cast<std::uint32_t>(bits) + keys[0],
                   static_cast<std::uint32_t>(bits >> 32) + keys[1]);
  }

  PRESUM_HOST_DEVICE static std::uint64_t products(const Pair& bits, const std::uint32_t* keys,
                                                   bool whole) {
    if constexpr (kDtype == Dtype::kF64) {
      return product_of_halves(bits.first, keys) +
             (whole ? product_of_halves(bits.second, keys + 2) : 0);
    } else {
      return product(bits.first + keys[0], bits.second + keys[1]);
    }
  }

  PRESUM_HOST_DEVICE void add_values(Real a, Real b, std::uint64_t first,
                                     const BlockSketch& sketch) {
    add_norm(a);
    add_norm(b);
    if (is_looked_at(first)) zeros_ += (a == 0 ? 1U : 0U) + (b == 0 ? 1U : 0U);
    if (sketch.size != 0) add_to_sketch(a, b, first, sketch);
  }

  PRESUM_HOST_DEVICE void add_norm(Real value) {
    const auto wide = static_cast<double>(value);
    sum_squares_ += wide * wide;
    const Real magnitude = value < 0 ? -value : value;
    const bool finite = magnitude <= std::numeric_limits<Real>::max();  // not so for a NaN
    if (!finite) ++nonfinite_;
    if (finite && magnitude > largest_) largest_ = magnitude;
  }

  PRESUM_HOST_DEVICE void add_to_sketch(Real a, Real b, std::uint64_t first,
                                        const BlockSketch& sketch) {
    const std::uint32_t mask = sketch.size - 1;
    const std::uint64_t block = first / sketch.size;
    if (block != rotated_) {
      rotated_ = block;
      rotation_ = static_cast<std::uint32_t>(sketch_rotation(sketch.seed, block, sketch.size));
    }
    const auto place = static_cast<std::uint32_t>(first);
    float* values = sketch.values + (place & (sketch.sums - 1) & ~mask);
    const std::uint64_t signs = sketch_signs(sketch.seed, first / 64) >> (first % 64);
    add_signed(values[(place + rotation_) & mask], static_cast<float>(a), (signs & 1) != 0);
    add_signed(values[(place + 1 + rotation_) & mask], static_cast<float>(b), (signs & 2) != 0);
  }

  PRESUM_HOST_DEVICE static void add_signed(float& sum, float value, bool negated) {
    sum += negated ? -value : value;
  }

  unsigned index_;
  std::uint32_t keys_[kPairs][kKeys];
  std::uint64_t rotated_ = ~std::uint64_t{0};  // the block of the sketch that rotation_ is of
  std::uint32_t rotation_ = 0;
  double sum_squares_ = 0;
  Real largest_ = 0;
  std::uint64_t nonfinite_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::uint64_t zeros_ = 0;
};

PRESUM_HOST_DEVICE inline void clear(const BlockSketch& sketch, unsigned thread) {
  for (std::uint32_t i = thread; i < sketch.sums; i += kThreads) sketch.values[i] = 0;
}

// A block's sums become one sketch. Does nothing where `to` is where they lie.
PRESUM_HOST_DEVICE inline void store(const BlockSketch& sketch, float* to, unsigned thread) {
  if (sketch.values == to) return;
  for (std::uint32_t i = thread; i < sketch.size; i += kThreads) {
    float sum = sketch.values[i];
    for (std::uint32_t j = i + sketch.size; j < sketch.sums; j += sketch.size) {
      sum += sketch.values[j];
    }
    to[i] = sum;
  }
}

// One thread's share of all blocks' results.
PRESUM_HOST_DEVICE inline Partial gather(const Partial* partials, std::uint32_t blocks,
                                         unsigned thread) {
  Partial sum{};
  for (std::uint32_t i = thread; i < blocks; i += kThreads) sum = combine(sum, partials[i]);
  return sum;
}

// One thread's share of a bucket: the blocks `row`, `row` + kRows, ...
PRESUM_HOST_DEVICE inline float gather(const float* sketches, std::uint32_t blocks,
                                       std::uint32_t size, std::uint32_t bucket, unsigned row) {
  float sum = 0;
  for (std::uint32_t i = row; i < blocks; i += kRows) {
    sum += sketches[std::size_t{i} * size + bucket];
  }
  return sum;
}

}  // namespace presum::observe::cuda
