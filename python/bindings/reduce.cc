// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Address = std::uintptr_t;  // a data_ptr(); the caller holds the tensor during the call

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

std::vector<const void*> to_pointers(const std::vector<Address>& addresses) {
  std::vector<const void*> pointers;
  pointers.reserve(addresses.size());
  for (const Address address : addresses) pointers.push_back(at<const void>(address));
  return pointers;
}

Dtype to_dtype(std::uint8_t dtype) { return static_cast<Dtype>(dtype); }

reduce::Binned binned(Address top, Address high, Address low) {
  return {at<std::uint8_t>(top), at<std::int64_t>(high), at<std::int64_t>(low)};
}

Status with_bits(unsigned bits) {
  if (bits == 32 || bits == 64) return {};
  return fail(ErrorCode::kInvalidArgument, "reduce: bits must be 32 or 64");
}

void exact(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
           std::uint32_t divisor, Address out, Address gram) {
  const auto pointers = to_pointers(leaves);
  unwrap(without_gil([&] {
    if (gram == 0) {
      return reduce::exact(pointers, to_dtype(dtype), count, divisor, at<void>(out));
    }
    return reduce::exact_with_gram(pointers, to_dtype(dtype), count, divisor, at<void>(out),
                                   {at<double>(gram), pointers.size() * pointers.size()});
  }));
}

void exponents(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
               Address out) {
  const auto pointers = to_pointers(leaves);
  unwrap(without_gil(
      [&] { return reduce::exponents(pointers, to_dtype(dtype), count, at<std::uint8_t>(out)); }));
}

void encode(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
            Address exponents, std::size_t total_leaves, unsigned bits, Address out) {
  unwrap(with_bits(bits));
  const auto pointers = to_pointers(leaves);
  const auto* bytes = at<const std::uint8_t>(exponents);
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::encode32(pointers, to_dtype(dtype), count, bytes, total_leaves,
                                         at<std::int32_t>(out))
                      : reduce::encode64(pointers, to_dtype(dtype), count, bytes, total_leaves,
                                         at<std::int64_t>(out));
  }));
}

void decode(Address sums, Address exponents, std::size_t count, std::size_t total_leaves,
            std::uint32_t divisor, unsigned bits, std::uint8_t dtype, Address out) {
  unwrap(with_bits(bits));
  const auto* bytes = at<const std::uint8_t>(exponents);
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::decode32(at<const std::int32_t>(sums), bytes, count, total_leaves,
                                         divisor, to_dtype(dtype), at<void>(out))
                      : reduce::decode64(at<const std::int64_t>(sums), bytes, count, total_leaves,
                                         divisor, to_dtype(dtype), at<void>(out));
  }));
}

void fixed(const std::vector<Address>& leaves, std::uint8_t dtype, std::size_t count,
           std::uint32_t divisor, unsigned bits, Address out) {
  unwrap(with_bits(bits));
  const auto pointers = to_pointers(leaves);
  unwrap(without_gil([&] {
    auto& sum = bits == 32 ? reduce::fixed32 : reduce::fixed64;
    return sum(pointers, to_dtype(dtype), count, divisor, at<void>(out));
  }));
}

void binned_add(Address top, Address high, Address low, std::size_t count, Address leaf,
                std::uint8_t dtype) {
  unwrap(without_gil([&] {
    return reduce::binned_add(binned(top, high, low), count, at<const void>(leaf), to_dtype(dtype));
  }));
}

void binned_raise(Address top, Address high, Address low, std::size_t count, Address to) {
  unwrap(without_gil([&] {
    return reduce::binned_raise(binned(top, high, low), count, at<const std::uint8_t>(to));
  }));
}

void binned_merge(Address top, Address high, Address low, Address other_top, Address other_high,
                  Address other_low, std::size_t count) {
  unwrap(without_gil([&] {
    return reduce::binned_merge(binned(top, high, low), binned(other_top, other_high, other_low),
                                count);
  }));
}

void binned_decode(Address top, Address high, Address low, std::size_t count, std::uint32_t divisor,
                   std::uint8_t dtype, Address out) {
  unwrap(without_gil([&] {
    return reduce::binned_decode(binned(top, high, low), count, divisor, to_dtype(dtype),
                                 at<void>(out));
  }));
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
