// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Address = std::uintptr_t;

Dtype to_dtype(std::uint8_t dtype) { return static_cast<Dtype>(dtype); }

reduce::Binned binned(Address top, Address high, Address low, std::size_t count) {
  return {memory_at<std::uint8_t>(top, count), memory_at<std::int64_t>(high, count),
          memory_at<std::int64_t>(low, count)};
}

Status with_bits(unsigned bits) {
  if (bits == 32 || bits == 64) return {};
  return fail(ErrorCode::kInvalidArgument, "reduce: bits must be 32 or 64");
}

void exact(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
           std::uint32_t divisor, Address out, Address gram) {
  const auto inputs = memory_at(leaves, count);
  auto* sum = memory_at<void>(out, count);
  unwrap(without_gil([&] {
    if (gram == 0) return reduce::exact(inputs, to_dtype(dtype), count, divisor, sum);
    return reduce::exact_with_gram(
        inputs, to_dtype(dtype), count, divisor, sum,
        {reinterpret_cast<double*>(gram), inputs.size() * inputs.size()});
  }));
}

void exponents(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
               Address out) {
  const auto inputs = memory_at(leaves, count);
  auto* found = memory_at<std::uint8_t>(out, count);
  unwrap(without_gil([&] { return reduce::exponents(inputs, to_dtype(dtype), count, found); }));
}

void encode(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
            Address exponents, std::size_t total_leaves, unsigned bits, Address out) {
  unwrap(with_bits(bits));
  const auto inputs = memory_at(leaves, count);
  const auto* bytes = memory_at<const std::uint8_t>(exponents, count);
  auto* sums = memory_at<void>(out, count);
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::encode32(inputs, to_dtype(dtype), count, bytes, total_leaves,
                                         static_cast<std::int32_t*>(sums))
                      : reduce::encode64(inputs, to_dtype(dtype), count, bytes, total_leaves,
                                         static_cast<std::int64_t*>(sums));
  }));
}

void decode(Address sums, Address exponents, std::size_t count, std::size_t total_leaves,
            std::uint32_t divisor, unsigned bits, std::uint8_t dtype, Address out) {
  unwrap(with_bits(bits));
  const auto* bytes = memory_at<const std::uint8_t>(exponents, count);
  const auto* integers = memory_at<const void>(sums, count);
  auto* quotients = memory_at<void>(out, count);
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::decode32(static_cast<const std::int32_t*>(integers), bytes, count,
                                         total_leaves, divisor, to_dtype(dtype), quotients)
                      : reduce::decode64(static_cast<const std::int64_t*>(integers), bytes, count,
                                         total_leaves, divisor, to_dtype(dtype), quotients);
  }));
}

void fixed(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
           std::uint32_t divisor, unsigned bits, Address out) {
  unwrap(with_bits(bits));
  const auto inputs = memory_at(leaves, count);
  auto* sum = memory_at<void>(out, count);
  unwrap(without_gil([&] {
    auto& add_up = bits == 32 ? reduce::fixed32 : reduce::fixed64;
    return add_up(inputs, to_dtype(dtype), count, divisor, sum);
  }));
}

void binned_add(Address top, Address high, Address low, std::size_t count, Address leaf,
                std::uint8_t dtype) {
  const auto state = binned(top, high, low, count);
  const auto* data = memory_at<const void>(leaf, count);
  unwrap(without_gil([&] { return reduce::binned_add(state, count, data, to_dtype(dtype)); }));
}

void binned_raise(Address top, Address high, Address low, std::size_t count, Address to) {
  const auto state = binned(top, high, low, count);
  const auto* tops = memory_at<const std::uint8_t>(to, count);
  unwrap(without_gil([&] { return reduce::binned_raise(state, count, tops); }));
}

void binned_merge(Address top, Address high, Address low, Address other_top, Address other_high,
                  Address other_low, std::size_t count) {
  const auto state = binned(top, high, low, count);
  const auto other = binned(other_top, other_high, other_low, count);
  unwrap(without_gil([&] { return reduce::binned_merge(state, other, count); }));
}

void binned_decode(Address top, Address high, Address low, std::size_t count, std::uint32_t divisor,
                   std::uint8_t dtype, Address out) {
  const auto state = binned(top, high, low, count);
  auto* quotients = memory_at<void>(out, count);
  unwrap(without_gil(
      [&] { return reduce::binned_decode(state, count, divisor, to_dtype(dtype), quotients); }));
}

}  // namespace

void bind_reduce(nb::module_& m) {
  m.def("reduce_exact", &exact, nb::arg("leaves"), nb::arg("dtype"), nb::arg("count"),
        nb::arg("divisor"), nb::arg("out"), nb::arg("gram") = 0,
        "Sums of buffers in host memory, given by address (see presum/reduce.h). gram: leaves * "
        "leaves doubles, or 0.");
  m.def("reduce_exponents", &exponents, nb::arg("leaves"), nb::arg("dtype"), nb::arg("count"),
        nb::arg("exponents"));
  m.def("reduce_encode", &encode, nb::arg("leaves"), nb::arg("dtype"), nb::arg("count"),
        nb::arg("exponents"), nb::arg("total_leaves"), nb::arg("bits"), nb::arg("out"));
  m.def("reduce_decode", &decode, nb::arg("sums"), nb::arg("exponents"), nb::arg("count"),
        nb::arg("total_leaves"), nb::arg("divisor"), nb::arg("bits"), nb::arg("dtype"),
        nb::arg("out"));
  m.def("reduce_fixed", &fixed, nb::arg("leaves"), nb::arg("dtype"), nb::arg("count"),
        nb::arg("divisor"), nb::arg("bits"), nb::arg("out"),
        "The three steps in one, of leaves that are all here.");
  m.def("binned_add", &binned_add, nb::arg("top"), nb::arg("high"), nb::arg("low"),
        nb::arg("count"), nb::arg("leaf"), nb::arg("dtype"));
  m.def("binned_raise", &binned_raise, nb::arg("top"), nb::arg("high"), nb::arg("low"),
        nb::arg("count"), nb::arg("to"));
  m.def("binned_merge", &binned_merge, nb::arg("top"), nb::arg("high"), nb::arg("low"),
        nb::arg("other_top"), nb::arg("other_high"), nb::arg("other_low"), nb::arg("count"));
  m.def("binned_decode", &binned_decode, nb::arg("top"), nb::arg("high"), nb::arg("low"),
        nb::arg("count"), nb::arg("divisor"), nb::arg("dtype"), nb::arg("out"));
}

}  // namespace presum::python
