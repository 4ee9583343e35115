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

void exact(const std::vector<Address>& leaves, Address uploaded, Dtype dtype, std::size_t count,
           std::uint32_t divisor, Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return cuda::exact({launcher, at<void>(stream)}, {inputs, at<const void* const>(uploaded)},
                       dtype, count, divisor, at<void>(out));
  }));
}

}  // namespace
}  // namespace cuda_sums

void bind_cuda_sums(nanobind::module_& m) {
  m.attr("CUDA_NEAR_LEAVES") = reduce::cuda::kNearLeaves;
  using nanobind::literals::operator""_a;
  m.def("cuda_exact", &cuda_sums::exact, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a,
        "divisor"_a, "out"_a, "stream"_a);
}

}  // namespace presum::python
