// SPDX-License-Identifier: Apache-2.0
#include "audit/values.h"

#include <algorithm>
#include <cstring>

namespace presum::audit {
namespace {

float from_f16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 31U;
  const std::uint32_t fraction = h & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float size = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -size : size;
}

std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint32_t>((bits >> 16) & 0x8000U);
  const std::uint32_t size = bits & 0x7FFFFFFFU;
  std::uint32_t h = (size - (112U << 23)) >> 13;
  if (size > 0x7F800000U) h = 0x7E00U;
  if (size == 0x7F800000U) h = 0x7C00U;
  if (size < (113U << 23)) h = static_cast<std::uint32_t>(std::fabs(x) * 0x1p24F);
  return static_cast<std::uint16_t>(sign | h);
}

template <class Word, class Convert, class Real>
void unpack_as(const void* elements, std::size_t first, std::span<Real> out, Convert&& convert) {
  const auto* from = static_cast<const std::byte*>(elements) + first * sizeof(Word);
  for (std::size_t i = 0; i < out.size(); ++i) {
    Word word;
    std::memcpy(&word, from + i * sizeof(Word), sizeof(Word));
    out[i] = static_cast<Real>(convert(word));
  }
}

template <class Word, class Convert, class Real>
void pack_as(std::span<const Real> values, void* out, Convert&& convert) {
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Word word = convert(values[i]);
    std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
  }
}

template <class Bits>
std::int64_t ordered(Bits magnitude, bool negative) {
  const auto size = static_cast<std::int64_t>(magnitude);
  return negative ? -size : size;
}

}  // namespace

template <class Real>
void unpack(const void* elements, std::size_t first, Dtype dtype, std::span<Real> out) {
  switch (dtype) {
    case Dtype::kF64:
      return unpack_as<double>(elements, first, out, [](double x) { return x; });
    case Dtype::kF32:
      return unpack_as<float>(elements, first, out, [](float x) { return x; });
    case Dtype::kBF16:
      return unpack_as<std::uint16_t>(elements, first, out, [](std::uint16_t b) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
      });
    case Dtype::kF16:
      return unpack_as<std::uint16_t>(elements, first, out, from_f16);
  }
}

template <class Real>
void pack(std::span<const Real> values, Dtype dtype, void* out) {
  switch (dtype) {
    case Dtype::kF64:
      return pack_as<double>(values, out, [](Real x) { return static_cast<double>(x); });
    case Dtype::kF32:
      return pack_as<float>(values, out, [](Real x) { return static_cast<float>(x); });
    case Dtype::kBF16:
      return pack_as<std::uint16_t>(values, out, [](Real x) {
        return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >>
                                          16);
      });
    case Dtype::kF16:
      return pack_as<std::uint16_t>(values, out,
                                    [](Real x) { return to_f16(static_cast<float>(x)); });
  }
}

template <class Real>
std::int64_t place(Real value, Dtype dtype) {
  const bool negative = std::signbit(value);
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case Dtype::kF64:
      return ordered(std::bit_cast<std::uint64_t>(static_cast<double>(value)) << 1 >> 1, negative);
    case Dtype::kF32:
      return ordered(std::bit_cast<std::uint32_t>(narrow) & 0x7FFFFFFFU, negative);
    case Dtype::kBF16:
      return ordered((std::bit_cast<std::uint32_t>(narrow) & 0x7FFFFFFFU) >> 16, negative);
    case Dtype::kF16:
      return ordered(to_f16(narrow) & 0x7FFFU, negative);
  }
  return 0;
}

int significand_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return 24;
    case Dtype::kF64:
      return 53;
    case Dtype::kBF16:
      return 8;
    case Dtype::kF16:
      return 11;
  }
  return 0;
}

int smallest_exponent(Dtype dtype) {
  if (dtype == Dtype::kF64) return -1022;
  return dtype == Dtype::kF16 ? -14 : -126;
}

double half_ulp(double value, Dtype dtype) {
  const auto field = static_cast<int>((std::bit_cast<std::uint64_t>(value) >> 52) & 0x7FFU);
  const int exponent = std::max(field - 1023, smallest_exponent(dtype)) - significand_bits(dtype);
  if (exponent < -1022) return std::ldexp(1.0, exponent);
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

template void unpack(const void*, std::size_t, Dtype, std::span<float>);
template void unpack(const void*, std::size_t, Dtype, std::span<double>);
template void pack(std::span<const float>, Dtype, void*);
template void pack(std::span<const double>, Dtype, void*);
template std::int64_t place(float, Dtype);
template std::int64_t place(double, Dtype);

}  // namespace presum::audit
