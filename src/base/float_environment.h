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

// Whether an operation since clear_inexact was rounded, or invalid as infinity - infinity is, as
// the processor reports it. `results` is the memory that the operations have written; what they
// read must be in memory as well. So the compiler cannot move them.
#if defined(__SSE2__)
inline constexpr unsigned kReported = _MM_EXCEPT_INEXACT | _MM_EXCEPT_INVALID;
#endif
inline void clear_inexact() noexcept {
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() & ~kReported);
#else
  std::feclearexcept(FE_INEXACT | FE_INVALID);
#endif
  asm volatile("" ::: "memory");
}
inline bool inexact(const void* results) noexcept {
  asm volatile("" : : "r"(results) : "memory");
#if defined(__SSE2__)
  return (_mm_getcsr() & kReported) != 0;
#else
  return std::fetestexcept(FE_INEXACT | FE_INVALID) != 0;
#endif
}

// False on emulators that leave it out.
inline bool inexact_is_reported() noexcept {
  static const bool reported = [] {
    const DefaultFloatEnvironment environment;
    volatile double one = 1, sum = 0;
    clear_inexact();
    sum = one + 0x1p-60;
    return inexact(const_cast<const double*>(&sum)) && sum == 1;
  }();
  return reported;
}

}  // namespace presum::base
