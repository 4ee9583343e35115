// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/dtype.h"
#include "presum/records.h"

// One pass over a gradient buffer: norm, largest element, non-finite count, sketch and fingerprint.
//
// Every function accepts any Dtype, any count (including 0) and any alignment. `data` is borrowed
// for the call and may be null if count is 0. Results are bit-identical on every processor, because
// the orders of additions are fixed. They do not depend on the caller's floating-point environment
// (rounding, flush to zero, traps), and leave it unchanged. Thread-safe, as long as no two calls
// share a sketch. Nothing allocates.
namespace presum::observe {

// The destination of the sketch (observe/sketch.h). The pass adds to `values`, so sketches of
// several buffers or micro-batches accumulate. A non-finite element makes its bucket non-finite.
// REQUIRES: size is 0 (no sketch) or a power of two from 64 to 65,536, and values has room for it.
struct SketchSpan {
  float* values = nullptr;
  std::uint32_t size = 0;
  std::uint64_t seed = 0;
};

// In these functions, sum_squares is added in double, element i to accumulator i mod 16, and the 16
// accumulators as a tree. +Inf with nonfinite = 0 is an overflow (f64 only). The fingerprint is
// that of observe/fingerprint.h; 0 if count is 0.

// Reads the memory once, or twice if the sum of squares is not finite.
GradientSums gradient_pass(const void* data, std::size_t count, Dtype dtype,
                           SketchSpan sketch) noexcept;

// Adds `count` elements of a larger buffer to the sketch; `first` is the position of the first in
// that buffer. The sketches of a buffer's parts, added in order, equal the buffer's sketch bit for
// bit. Plain code, because it runs rarely: for a shard of a gradient at one step in 25.
void sketch_part(const void* data, std::size_t count, Dtype dtype, std::uint64_t first,
                 SketchSpan sketch) noexcept;

// The same sums without a sketch, and with fingerprint 0. Plain code, for gradients that are not
// finite.
GradientSums plain_norm(const void* data, std::size_t count, Dtype dtype);

}  // namespace presum::observe
