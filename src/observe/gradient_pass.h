// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/dtype.h"
#include "presum/records.h"

// One pass over a gradient buffer: norm, largest element, non-finite count, sketch and fingerprint.
//
// Every function takes any Dtype, any count (0 included) and any alignment; `data` is borrowed for
// the call and may be null if count is 0. Results are bit-identical on every processor, because
// orders of additions are fixed. The caller's floating-point environment (rounding, flush to zero,
// traps) neither changes a result nor is changed. Thread-safe, as long as no two calls share a
// sketch. Nothing allocates.
namespace presum::observe {

// Where the sketch goes (observe/sketch.h). Values are added to `values`, so sketches of several
// buffers or micro-batches accumulate; a non-finite element makes its bucket non-finite.
// REQUIRES: size is 0 (no sketch) or a power of two from 64 to 65,536, and values has room for it.
struct SketchSpan {
  float* values = nullptr;
  std::uint32_t size = 0;
  std::uint64_t seed = 0;
};

// In what follows sum_squares is added in double, element i in accumulator i mod 16, the 16 added
// as a tree. +Inf with nonfinite = 0 is an overflow (f64 only). The fingerprint is that of
// observe/fingerprint.h; 0 if count is 0.

// Reads memory once, or a second time if the sum of squares is not finite.
GradientSums gradient_pass(const void* data, std::size_t count, Dtype dtype,
                           SketchSpan sketch) noexcept;

// Adds to the sketch `count` elements of a larger buffer, which are its elements from `first` on:
// the sketches of a buffer's parts in their order are that of the buffer, bit for bit. Plain code,
// for what is rare: a shard of a gradient at one step in 25.
void sketch_part(const void* data, std::size_t count, Dtype dtype, std::uint64_t first,
                 SketchSpan sketch) noexcept;

// The same sums without a sketch, and with 0 as the fingerprint. Plain code, for gradients that are
// not finite.
GradientSums plain_norm(const void* data, std::size_t count, Dtype dtype);

}  // namespace presum::observe
