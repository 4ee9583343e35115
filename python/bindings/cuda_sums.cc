// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bindings.h"
#include "reduce/cuda/sums.h"

// presum.reduce.kernels: addresses are of device memory, streams are CUstreams.
namespace presum::python {
namespace cuda_sums {
namespace {

using Address = std::uintptr_t;
namespace cuda = reduce::cuda;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

void check_bits(int bits) {
  if (bits == 32 || bits == 64) return;
  unwrap(Status(fail(ErrorCode::kInvalidArgument, "reduce: bits must be 32 or 64")));
}

reduce::Binned binned(Address top, Address high, Address low) {
  return {at<std::uint8_t>(top), at<std::int64_t>(high), at<std::int64_t>(low)};
}

void exact(const std::vector<Address>& leaves, Address uploaded, Dtype dtype, std::size_t count,
           std::uint32_t divisor, Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::exact({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                       dtype, count, divisor, at<void>(out));
  }));
}

void exponents(const std::vector<Address>& leaves, Address uploaded, Dtype dtype, std::size_t count,
               Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::exponents({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                           dtype, count, at<std::uint8_t>(out));
  }));
}

void encode(const std::vector<Address>& leaves, Address uploaded, Dtype dtype, std::size_t count,
            Address exponents, std::size_t total_leaves, int bits, Address out, Address stream) {
  check_bits(bits);
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::encode({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                        dtype, count, at<const std::uint8_t>(exponents), total_leaves, bits,
                        at<void>(out));
  }));
}

void decode(Address sums, Address exponents, std::size_t count, std::size_t total_leaves,
            std::uint32_t divisor, int bits, Dtype dtype, Address out, Address stream) {
  check_bits(bits);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::decode({launcher, at<void>(stream)}, at<const void>(sums),
                        at<const std::uint8_t>(exponents), count, total_leaves, divisor, bits,
                        dtype, at<void>(out));
  }));
}

void fixed(const std::vector<Address>& leaves, Address uploaded, Dtype dtype, std::size_t count,
           std::uint32_t divisor, int bits, Address out, Address stream) {
  check_bits(bits);
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::fixed({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                       dtype, count, divisor, bits, at<void>(out));
  }));
}

void binned_add(Address top, Address high, Address low, std::size_t count, Address leaf,
                Dtype dtype, Address stream) {
  const auto inputs = memory_at({leaf}, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_add({launcher, at<void>(stream)}, binned(top, high, low), count, {inputs},
                            dtype);
  }));
}

void binned_raise(Address top, Address high, Address low, std::size_t count, Address to,
                  Address stream) {
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_raise({launcher, at<void>(stream)}, binned(top, high, low), count,
                              at<const std::uint8_t>(to));
  }));
}

void binned_merge(Address top, Address high, Address low, Address other_top, Address other_high,
                  Address other_low, std::size_t count, Address stream) {
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_merge({launcher, at<void>(stream)}, binned(top, high, low),
                              binned(other_top, other_high, other_low), count);
  }));
}

void binned_decode(Address top, Address high, Address low, std::size_t count, std::uint32_t divisor,
                   Dtype dtype, Address out, Address stream) {
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_decode({launcher, at<void>(stream)}, binned(top, high, low), count, divisor,
                               dtype, at<void>(out));
  }));
}

}  // namespace
}  // namespace cuda_sums

void bind_cuda_sums(nanobind::module_& m) {
  m.attr("CUDA_NEAR_LEAVES") = reduce::cuda::kNearLeaves;
  using nanobind::literals::operator""_a;
  m.def("cuda_exact", &cuda_sums::exact, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a,
        "divisor"_a, "out"_a, "stream"_a);
  m.def("cuda_exponents", &cuda_sums::exponents, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a,
        "out"_a, "stream"_a);
  m.def("cuda_encode", &cuda_sums::encode, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a,
        "exponents"_a, "total_leaves"_a, "bits"_a, "out"_a, "stream"_a);
  m.def("cuda_decode", &cuda_sums::decode, "sums"_a, "exponents"_a, "count"_a, "total_leaves"_a,
        "divisor"_a, "bits"_a, "dtype"_a, "out"_a, "stream"_a);
  m.def("cuda_fixed", &cuda_sums::fixed, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a,
        "divisor"_a, "bits"_a, "out"_a, "stream"_a);
  m.def("cuda_binned_add", &cuda_sums::binned_add, "top"_a, "high"_a, "low"_a, "count"_a, "leaf"_a,
        "dtype"_a, "stream"_a);
  m.def("cuda_binned_raise", &cuda_sums::binned_raise, "top"_a, "high"_a, "low"_a, "count"_a,
        "to"_a, "stream"_a);
  m.def("cuda_binned_merge", &cuda_sums::binned_merge, "top"_a, "high"_a, "low"_a, "other_top"_a,
        "other_high"_a, "other_low"_a, "count"_a, "stream"_a);
  m.def("cuda_binned_decode", &cuda_sums::binned_decode, "top"_a, "high"_a, "low"_a, "count"_a,
        "divisor"_a, "dtype"_a, "out"_a, "stream"_a);
}

}  // namespace presum::python
