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

}  // namespace

void bind_reduce(nb::module_& m) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  m.def("reduce_exact", &exact, array("leaves"), nb::arg("divisor"), array("out"),
        array("gram").none() = nb::none(),
        "The sum of arrays in host memory (see presum/reduce.h). gram: leaves x leaves doubles.");
}

}  // namespace presum::python
