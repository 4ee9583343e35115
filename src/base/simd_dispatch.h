// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// For sources that compile a kernel for every target; to be included before hwy/foreach_target.h.
// Scalable vectors are left out, because the kernels keep arrays of vectors; SSSE3 alone is older
// than any processor of interest. Where a processor has none of the others, EMU128 emulates vectors
// of 128 bits, by any compiler: Highway takes SCALAR, which has too few lanes, with older ones.
#define HWY_BROKEN_EMU128 0
#define HWY_DISABLED_TARGETS                                                            \
  (HWY_SCALAR | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   HWY_WASM_EMU256)
#include "hwy/targets.h"

namespace presum::base {

// The place of the target in use in a table made by HWY_EXPORT. Highway's own choice is one per
// process and belongs to every library in it, so it is left alone. Thread-safe.
std::size_t simd_table_index() noexcept;

}  // namespace presum::base

#define PRESUM_SIMD_DISPATCH(function) \
  (*(HWY_DISPATCH_TABLE(function)[presum::base::simd_table_index()]))

// Returns function<dtype>(arguments) from the enclosing function. REQUIRES: a known dtype.
#define PRESUM_RETURN_BY_DTYPE(dtype, function, ...) \
  switch (dtype) {                                   \
    case Dtype::kF32:                                \
      return function<Dtype::kF32>(__VA_ARGS__);     \
    case Dtype::kF64:                                \
      return function<Dtype::kF64>(__VA_ARGS__);     \
    case Dtype::kBF16:                               \
      return function<Dtype::kBF16>(__VA_ARGS__);    \
    case Dtype::kF16:                                \
      return function<Dtype::kF16>(__VA_ARGS__);     \
  }
