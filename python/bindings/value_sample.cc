// SPDX-License-Identifier: Apache-2.0
#include "observe/value_sample.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Span = std::tuple<std::uintptr_t, std::size_t, std::uint8_t>;  // address, count, dtype

struct HostValues {
  std::vector<double> values;
};

HostValues sample(const std::vector<Span>& spans, std::size_t each) {
  std::vector<observe::Buffer> buffers;
  buffers.reserve(spans.size());
  for (const auto& [address, count, dtype] : spans) {
    buffers.push_back({memory_at<const void>(address, count), count, static_cast<Dtype>(dtype)});
  }
  return {observe::value_sample(buffers, each)};
}

}  // namespace

void bind_value_sample(nb::module_& m) {
  nb::class_<HostValues>(m, "HostValues", "A few elements of tensors in host memory.")
      .def(
          "__init__",
          [](HostValues* self, const std::vector<Span>& spans, std::size_t each) {
            new (self) HostValues(sample(spans, each));
          },
          nb::arg("spans"), nb::arg("each"),
          "At most so many of each (address, count, dtype), at equal distances.")
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
