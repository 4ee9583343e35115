// SPDX-License-Identifier: Apache-2.0
#include "presum/monitor.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

void ingest(Monitor& monitor, const nb::bytes& packet) {
  const auto bytes = as_span(packet);
  unwrap(without_gil([&] { return monitor.ingest(bytes); }));
}

template <Status (Monitor::*Method)()>
void call(Monitor& monitor) {
  unwrap(without_gil([&] { return (monitor.*Method)(); }));
}

std::map<std::string, std::uint64_t> counters(const Monitor& monitor) {
  const auto c = monitor.counters();
  return {{"packets", c.packets},     {"damaged", c.damaged}, {"foreign", c.foreign},
          {"duplicate", c.duplicate}, {"late", c.late},       {"steps", c.steps}};
}

}  // namespace

void bind_monitor(nb::module_& m) {
  nb::class_<Monitor>(m, "Aggregator",
                      "Packets of all workers into one run log (see presum/monitor.h). One thread "
                      "at a time.")
      .def(nb::new_([](const std::string& run, std::uint32_t world_size) {
             return unwrap(Monitor::open({.run = run, .world_size = world_size, .clock = {}}));
           }),
           nb::arg("run"), nb::arg("world_size") = 0)
      .def_prop_ro("run", &Monitor::run)
      .def_prop_ro("segment", &Monitor::segment)
      .def_prop_ro("goodbyes", &Monitor::goodbyes)
      .def_prop_ro("counters", &counters)
      .def("ingest", &ingest, nb::arg("packet"))
      .def("tick", &call<&Monitor::tick>)
      .def("close", &call<&Monitor::close>);
}

}  // namespace presum::python
