// SPDX-License-Identifier: Apache-2.0
#include "step/snapshots.h"

#include <cstdint>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::Snapshots;

void parameter(Snapshots& m, ParameterId id, std::uintptr_t address, std::size_t count, Dtype dtype,
               std::uint64_t first, std::uint32_t shard, bool in_order) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] { return m.parameter(id, data, count, dtype, first, shard, in_order); }));
}

void state_at(Snapshots& m, ParameterId id, std::uintptr_t address, std::size_t count,
              std::uint32_t element_bytes) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] { return m.state(id, data, count, element_bytes); }));
}

}  // namespace

void bind_snapshots(nb::module_& m) {
  nb::class_<Snapshots>(m, "Snapshots",
                        "Where the training of one worker stands, as packets (see "
                        "src/step/snapshots.h). One thread at a time.")
      .def(nb::init<const step::Steps&>(), nb::arg("observer"), nb::keep_alive<1, 2>())
      .def(
          "begin",
          [](Snapshots& o, TrainingSnapshot::Kind kind, double optimizer_steps,
             double learning_rate) { o.begin(kind, optimizer_steps, learning_rate); },
          nb::arg("kind"), nb::arg("optimizer_steps"), nb::arg("learning_rate"))
      .def("generator", &Snapshots::generator, nb::arg("kind"), nb::arg("value"))
      .def("parameter", &parameter, nb::arg("parameter"), nb::arg("address"), nb::arg("count"),
           nb::arg("dtype"), nb::arg("first"), nb::arg("shard"), nb::arg("in_order"))
      .def(
          "sums",
          [](Snapshots& o, ParameterId id, std::uint64_t fingerprint, double squares,
             std::uint64_t elements, std::uint16_t formats, std::uint32_t shard) {
            unwrap(o.parameter_sums(id, fingerprint, squares, elements, formats, shard));
          },
          nb::arg("parameter"), nb::arg("fingerprint"), nb::arg("squares"), nb::arg("elements"),
          nb::arg("formats"), nb::arg("shard"))
      .def(
          "state",
          [](Snapshots& o, ParameterId id, std::uint64_t fingerprint) {
            unwrap(o.state(id, fingerprint));
          },
          nb::arg("parameter"), nb::arg("fingerprint"))
      .def("state_at", &state_at, nb::arg("parameter"), nb::arg("address"), nb::arg("count"),
           nb::arg("element_bytes"))
      .def("packet", [](Snapshots& o) { return to_bytes(o.packet()); });
}

}  // namespace presum::python
