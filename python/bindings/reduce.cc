// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "bindings.h"
#include "reduce/cuda/sums.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Leaves = std::vector<Array>;

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

using Address = std::uintptr_t;  // of device memory; a stream is a CUstream

void exact_on_device(const std::vector<Address>& leaves, Address uploaded, Dtype dtype,
                     std::size_t count, std::uint32_t divisor, Address out, Address stream) {
  const auto inputs = memory_at(leaves, count);
  unwrap(on_device([&](device::Launcher& launcher) {
    return reduce::cuda::exact({launcher, device_pointer<void>(stream)},
                               {inputs, device_pointer<const void* const>(uploaded)}, dtype, count,
                               divisor, device_pointer<void>(out));
  }));
}

}  // namespace

void bind_reduce(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.attr("CUDA_NEAR_LEAVES") = reduce::cuda::kNearLeaves;
  using nb::literals::operator""_a;
  m.def("cuda_exact", &exact_on_device, "leaves"_a, "uploaded"_a, "dtype"_a, "count"_a, "divisor"_a,
        "out"_a, "stream"_a);
  m.def("reduce_exact", &exact, array("leaves"), nb::arg("divisor"), array("out"),
        array("gram").none() = nb::none(),
        "The sum of arrays in host memory (see presum/reduce.h). gram: leaves x leaves doubles.");
}

}  // namespace presum::python
