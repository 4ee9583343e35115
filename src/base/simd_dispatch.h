// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// For sources that compile a kernel for every target; include it before hwy/foreach_target.h.
// Excludes scalable vectors, because the kernels keep arrays of vectors, and SSSE3, which no
// current processor has as its best target. On a processor with none of the remaining targets,
// EMU128 emulates 128-bit vectors, with any compiler: by default, Highway uses SCALAR with older
// ones, which has too few lanes.
#define HWY_BROKEN_EMU128 0
#define HWY_DISABLED_TARGETS                                                            \
  (HWY_SCALAR | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   HWY_WASM_EMU256)
#include "hwy/targets.h"

namespace presum::base {

// Returns the index of the current target in a table made by HWY_EXPORT. Highway's own choice
// applies to every library in the process, so presum leaves it unchanged. Thread-safe.
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
