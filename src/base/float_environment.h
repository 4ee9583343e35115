// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace presum::base {

// While it lives, this thread computes in the default floating-point environment: round to nearest,
// keep denormals (torch.set_flush_denormal drops them), no traps. The end restores the caller's
// environment, exception flags included. On x86 only the SSE state is exchanged, because all
// arithmetic here is SSE and exchanging the x87 state as well costs more than a small buffer.
class DefaultFloatEnvironment {
 public:
#if defined(__SSE2__)
  DefaultFloatEnvironment() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kDefault = _MM_MASK_MASK | _MM_ROUND_NEAREST;
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace presum::base
