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

Dtype to_dtype(std::uint8_t dtype) { return static_cast<Dtype>(dtype); }

void check_bits(int bits) {
  if (bits == 32 || bits == 64) return;
  unwrap(Status(fail(ErrorCode::kInvalidArgument, "reduce: bits must be 32 or 64")));
}

reduce::Binned binned(Address top, Address high, Address low) {
  return {at<std::uint8_t>(top), at<std::int64_t>(high), at<std::int64_t>(low)};
}

void exact(const std::vector<Address>& leaves, Address uploaded, std::uint8_t dtype,
           std::size_t count, std::uint32_t divisor, Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::exact({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                       to_dtype(dtype), count, divisor, at<void>(out));
  }));
}

void exponents(const std::vector<Address>& leaves, Address uploaded, std::uint8_t dtype,
               std::size_t count, Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::exponents({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                           to_dtype(dtype), count, at<std::uint8_t>(out));
  }));
}

void encode(const std::vector<Address>& leaves, Address uploaded, std::uint8_t dtype,
            std::size_t count, Address exponents, std::size_t total_leaves, int bits, Address out,
            Address stream) {
  check_bits(bits);
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::encode({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                        to_dtype(dtype), count, at<const std::uint8_t>(exponents), total_leaves,
                        bits, at<void>(out));
  }));
}

void decode(Address sums, Address exponents, std::size_t count, std::size_t total_leaves,
            std::uint32_t divisor, int bits, std::uint8_t dtype, Address out, Address stream) {
  check_bits(bits);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::decode({launcher, at<void>(stream)}, at<const void>(sums),
                        at<const std::uint8_t>(exponents), count, total_leaves, divisor, bits,
                        to_dtype(dtype), at<void>(out));
  }));
}

void fixed(const std::vector<Address>& leaves, Address uploaded, std::uint8_t dtype,
           std::size_t count, std::uint32_t divisor, int bits, Address out, Address stream) {
  check_bits(bits);
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::fixed({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                       to_dtype(dtype), count, divisor, bits, at<void>(out));
  }));
}

void binned_add(Address top, Address high, Address low, std::size_t count, Address leaf,
                std::uint8_t dtype, Address stream) {
  const auto inputs = memory_at({leaf}, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_add({launcher, at<void>(stream)}, binned(top, high, low), count, {inputs},
                            to_dtype(dtype));
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
                   std::uint8_t dtype, Address out, Address stream) {
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::binned_decode({launcher, at<void>(stream)}, binned(top, high, low), count, divisor,
                               to_dtype(dtype), at<void>(out));
  }));
}

}  // namespace
}  // namespace cuda_sums

void bind_cuda_sums(nanobind::module_& m) {
  m.attr("CUDA_NEAR_LEAVES") = reduce::cuda::kNearLeaves;
  m.def("cuda_exact", &cuda_sums::exact);
  m.def("cuda_exponents", &cuda_sums::exponents);
  m.def("cuda_encode", &cuda_sums::encode);
  m.def("cuda_decode", &cuda_sums::decode);
  m.def("cuda_fixed", &cuda_sums::fixed);
  m.def("cuda_binned_add", &cuda_sums::binned_add);
  m.def("cuda_binned_raise", &cuda_sums::binned_raise);
  m.def("cuda_binned_merge", &cuda_sums::binned_merge);
  m.def("cuda_binned_decode", &cuda_sums::binned_decode);
}

}  // namespace presum::python
