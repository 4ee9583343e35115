// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfenv>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace presum::base {

// Sets the thread's floating-point environment to the default while it lives: round to nearest,
// keep denormals (torch.set_flush_denormal drops them), no traps. The destructor restores the
// caller's environment, including the exception flags. On x86 it exchanges only the SSE state: all
// arithmetic here is SSE, and exchanging the x87 state too costs more than processing a small
// buffer.
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

// Returns whether an operation since clear_inexact() rounded its result or was invalid (such as
// infinity - infinity), according to the processor's flags. `results` is the memory that the
// operations wrote; their operands must be in memory too. This keeps the compiler from moving the
// operations.
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

// False on emulators that do not set the flag.
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
