// SPDX-License-Identifier: Apache-2.0
#include "observe/value_sample.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
struct HostValues {
  std::vector<double> values;
};

HostValues sample(const std::vector<Array>& arrays, std::size_t each) {
  std::vector<observe::Buffer> buffers;
  buffers.reserve(arrays.size());
  for (const Array& one : arrays) {
    buffers.push_back({memory_of(one), one.size(), dtype_of(one.dtype())});
  }
  return {observe::value_sample(buffers, each)};
}

}  // namespace

void bind_value_sample(nb::module_& m) {
  nb::class_<HostValues>(m, "HostValues", "A few elements of tensors in host memory.")
      .def(
          "__init__",
          [](HostValues* self, const std::vector<Array>& arrays, std::size_t each) {
            new (self) HostValues(sample(arrays, each));
          },
          nb::arg("arrays").noconvert(), nb::arg("each"),
          "At most so many of each array, at equal distances.")
      .def(
          "factor_to",
          [](const HostValues& self, const HostValues& now) {
            return observe::value_factor(self.values, now.values);
          },
          nb::arg("now"),
          "What multiplied them since: 1 where every bit is what it was, NaN where it is no "
          "factor, None where that is not known.");
}

}  // namespace presum::python
