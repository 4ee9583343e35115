// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of the C++ standard library that the kernels and their headers use, for NVRTC, which has
// none. tools/cubins.py substitutes this file for every <header>.
namespace std {

using size_t = decltype(sizeof(0));
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using int64_t = long;
using uintptr_t = unsigned long;

template <class To, class From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

template <class T>
constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}

template <class T>
constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}

constexpr int countl_zero(unsigned long value) {
  if (!__builtin_is_constant_evaluated()) return __clzll(static_cast<long long>(value));
  int count = 64;
  for (; value != 0; value >>= 1) --count;
  return count;
}

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float max() { return 0x1.fffffep127F; }
};
template <>
struct numeric_limits<double> {
  static constexpr double max() { return 0x1.fffffffffffffp1023; }
};

template <class T, size_t kSize>
struct array {
  T values[kSize];
  constexpr T& operator[](size_t i) { return values[i]; }
  constexpr const T& operator[](size_t i) const { return values[i]; }
  constexpr size_t size() const { return kSize; }
};

using ::fma;
using ::memcpy;

class string_view {
 public:
  constexpr const char* begin() const { return nullptr; }
  constexpr const char* end() const { return nullptr; }
};

}  // namespace std

using size_t = std::size_t;
