// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Leaves = std::vector<Array>;

reduce::Binned binned(const RoomOf<std::uint8_t>& top, const RoomOf<std::int64_t>& high,
                      const RoomOf<std::int64_t>& low) {
  require_size(high.size(), top.size());
  require_size(low.size(), top.size());
  return {memory_of(top), memory_of(high), memory_of(low)};
}

// Of an array of sums: 32 or 64.
int bits_of(nb::dlpack::dtype dtype) {
  const bool integers = dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int);
  if (integers && (dtype.bits == 32 || dtype.bits == 64)) return dtype.bits;
  throw nb::value_error("reduce: sums must be int32 or int64");
}

void exact(const Leaves& leaves, std::uint32_t divisor, const Room& out,
           const std::optional<RoomOf<double>>& gram) {
  const Dtype dtype = dtype_of(out.dtype());
  const auto inputs = memory_of(leaves, dtype, out.size());
  if (gram) require_size(gram->size(), inputs.size() * inputs.size());
  unwrap(without_gil([&] {
    if (!gram) return reduce::exact(inputs, dtype, out.size(), divisor, memory_of(out));
    return reduce::exact_with_gram(inputs, dtype, out.size(), divisor, memory_of(out),
                                   {memory_of(*gram), gram->size()});
  }));
}

void exponents(const Leaves& leaves, const RoomOf<std::uint8_t>& out) {
  const Dtype dtype = leaves.empty() ? Dtype::kF32 : dtype_of(leaves.front().dtype());
  const auto inputs = memory_of(leaves, dtype, out.size());
  unwrap(without_gil([&] { return reduce::exponents(inputs, dtype, out.size(), memory_of(out)); }));
}

void encode(const Leaves& leaves, const ArrayOf<std::uint8_t>& exponents, std::size_t total_leaves,
            const Room& out) {
  const int bits = bits_of(out.dtype());
  const Dtype dtype = leaves.empty() ? Dtype::kF32 : dtype_of(leaves.front().dtype());
  const auto inputs = memory_of(leaves, dtype, out.size());
  require_size(exponents.size(), out.size());
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::encode32(inputs, dtype, out.size(), memory_of(exponents),
                                         total_leaves, static_cast<std::int32_t*>(memory_of(out)))
                      : reduce::encode64(inputs, dtype, out.size(), memory_of(exponents),
                                         total_leaves, static_cast<std::int64_t*>(memory_of(out)));
  }));
}

void decode(const Array& sums, const ArrayOf<std::uint8_t>& exponents, std::size_t total_leaves,
            std::uint32_t divisor, const Room& out) {
  const int bits = bits_of(sums.dtype());
  const Dtype dtype = dtype_of(out.dtype());
  require_size(sums.size(), out.size());
  require_size(exponents.size(), out.size());
  unwrap(without_gil([&] {
    return bits == 32 ? reduce::decode32(static_cast<const std::int32_t*>(memory_of(sums)),
                                         memory_of(exponents), out.size(), total_leaves, divisor,
                                         dtype, memory_of(out))
                      : reduce::decode64(static_cast<const std::int64_t*>(memory_of(sums)),
                                         memory_of(exponents), out.size(), total_leaves, divisor,
                                         dtype, memory_of(out));
  }));
}

void fixed(const Leaves& leaves, std::uint32_t divisor, int bits, const Room& out) {
  if (bits != 32 && bits != 64) throw nb::value_error("reduce: bits must be 32 or 64");
  const Dtype dtype = dtype_of(out.dtype());
  const auto inputs = memory_of(leaves, dtype, out.size());
  unwrap(without_gil([&] {
    auto& add_up = bits == 32 ? reduce::fixed32 : reduce::fixed64;
    return add_up(inputs, dtype, out.size(), divisor, memory_of(out));
  }));
}

void binned_add(const RoomOf<std::uint8_t>& top, const RoomOf<std::int64_t>& high,
                const RoomOf<std::int64_t>& low, const Array& leaf) {
  const auto state = binned(top, high, low);
  require_size(leaf.size(), top.size());
  const Dtype dtype = dtype_of(leaf.dtype());
  unwrap(
      without_gil([&] { return reduce::binned_add(state, top.size(), memory_of(leaf), dtype); }));
}

void binned_raise(const RoomOf<std::uint8_t>& top, const RoomOf<std::int64_t>& high,
                  const RoomOf<std::int64_t>& low, const ArrayOf<std::uint8_t>& to) {
  const auto state = binned(top, high, low);
  require_size(to.size(), top.size());
  unwrap(without_gil([&] { return reduce::binned_raise(state, top.size(), memory_of(to)); }));
}

void binned_merge(const RoomOf<std::uint8_t>& top, const RoomOf<std::int64_t>& high,
                  const RoomOf<std::int64_t>& low, const RoomOf<std::uint8_t>& other_top,
                  const RoomOf<std::int64_t>& other_high, const RoomOf<std::int64_t>& other_low) {
  const auto state = binned(top, high, low);
  const auto other = binned(other_top, other_high, other_low);
  require_size(other_top.size(), top.size());
  unwrap(without_gil([&] { return reduce::binned_merge(state, other, top.size()); }));
}

void binned_decode(const RoomOf<std::uint8_t>& top, const RoomOf<std::int64_t>& high,
                   const RoomOf<std::int64_t>& low, std::uint32_t divisor, const Room& out) {
  const auto state = binned(top, high, low);
  const Dtype dtype = dtype_of(out.dtype());
  require_size(out.size(), top.size());
  unwrap(without_gil(
      [&] { return reduce::binned_decode(state, top.size(), divisor, dtype, memory_of(out)); }));
}

}  // namespace

void bind_reduce(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("reduce_exact", &exact, array("leaves"), nb::arg("divisor"), array("out"),
        array("gram").none() = nb::none(),
        "The sum of arrays in host memory (see presum/reduce.h). gram: leaves x leaves doubles.");
  m.def("reduce_exponents", &exponents, array("leaves"), array("exponents"));
  m.def("reduce_encode", &encode, array("leaves"), array("exponents"), nb::arg("total_leaves"),
        array("out"), "Into int32 or int64.");
  m.def("reduce_decode", &decode, array("sums"), array("exponents"), nb::arg("total_leaves"),
        nb::arg("divisor"), array("out"));
  m.def("reduce_fixed", &fixed, array("leaves"), nb::arg("divisor"), nb::arg("bits"), array("out"),
        "The three steps in one, of leaves that are all here.");
  m.def("binned_add", &binned_add, array("top"), array("high"), array("low"), array("leaf"));
  m.def("binned_raise", &binned_raise, array("top"), array("high"), array("low"), array("to"));
  m.def("binned_merge", &binned_merge, array("top"), array("high"), array("low"),
        array("other_top"), array("other_high"), array("other_low"));
  m.def("binned_decode", &binned_decode, array("top"), array("high"), array("low"),
        nb::arg("divisor"), array("out"));
}

}  // namespace presum::python
