// SPDX-License-Identifier: Apache-2.0
#include "presum/aggregator.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

void ingest(Aggregator& aggregator, const nb::bytes& packet) {
  const auto bytes = as_span(packet);
  unwrap(without_gil([&] { return aggregator.ingest(bytes); }));
}

template <Status (Aggregator::*Method)()>
void call(Aggregator& aggregator) {
  unwrap(without_gil([&] { return (aggregator.*Method)(); }));
}

std::map<std::string, std::uint64_t> counters(const Aggregator& aggregator) {
  const auto c = aggregator.counters();
  return {{"packets", c.packets},     {"damaged", c.damaged}, {"foreign", c.foreign},
          {"duplicate", c.duplicate}, {"late", c.late},       {"records", c.records},
          {"steps", c.steps}};
}

}  // namespace

void bind_aggregator(nb::module_& m) {
  nb::class_<Aggregator>(
      m, "Aggregator",
      "Packets of all ranks into one run log (see presum/aggregator.h). One thread "
      "at a time.")
      .def(nb::new_([](const std::filesystem::path& run, std::uint32_t world_size) {
             return unwrap(without_gil([&] {
               return Aggregator::open({.run = run, .world_size = world_size, .clock = {}});
             }));
           }),
           nb::arg("run"), nb::arg("world_size") = 0)
      .def_prop_ro("run", [](const Aggregator& o) { return o.announcement().run; })
      .def_prop_ro("segment", [](const Aggregator& o) { return o.announcement().segment; })
      .def_prop_ro("everyone_left", &Aggregator::everyone_left)
      .def_prop_ro("ranks_heard", &Aggregator::ranks_heard)
      .def_prop_ro("stall", &Aggregator::stall)
      .def_prop_ro(
          "processes",
          [](const Aggregator& o) {
            std::vector<std::tuple<std::uint32_t, std::string, std::string, std::string>> out;
            for (auto& p : o.processes()) out.emplace_back(p.rank, p.host, p.pid, p.start);
            return out;
          })
      .def(
          "process_ended",
          [](Aggregator& o, std::uint32_t rank, int signal, int exit_code) {
            const ProcessEnd end{.signal = signal, .exit_code = exit_code};
            unwrap(without_gil([&] { return o.process_ended(rank, end); }));
          },
          nb::arg("rank"), nb::arg("signal"), nb::arg("exit_code"))
      .def_prop_ro("counters", &counters)
      .def("ingest", &ingest, nb::arg("packet"))
      .def("tick", &call<&Aggregator::tick>)
      .def(
          "take_new_findings",
          [](Aggregator& o) { return to_list(without_gil([&] { return o.take_new_findings(); })); },
          nb::sig("def take_new_findings(self) -> list[dict[str, typing.Any]]"))
      .def(
          "findings",
          [](const Aggregator& o) { return to_list(without_gil([&] { return o.findings(); })); },
          nb::sig("def findings(self) -> list[dict[str, typing.Any]]"))
      .def("take_notices",
           [](Aggregator& o) { return without_gil([&] { return o.take_notices(); }); })
      .def("verdict",
           [](const Aggregator& o) {
             return std::string(to_string(without_gil([&] { return o.verdict(); })));
           })
      .def(
          "end_preflight",
          [](Aggregator& o, bool require_statistics) {
            return unwrap(without_gil([&] { return o.end_preflight(require_statistics); }));
          },
          nb::arg("require_statistics") = false)
      .def("too_short",
           [](const Aggregator& o) { return without_gil([&] { return o.too_short(); }); })
      .def(
          "lose_others",
          [](Aggregator& o, const std::string& why) {
            unwrap(without_gil([&] { return o.lose_others(why); }));
          },
          nb::arg("why"))
      .def(
          "abandon",
          [](Aggregator& o, const std::string& why) { without_gil([&] { o.abandon(why); }); },
          nb::arg("why"))
      .def("incomplete", &Aggregator::incomplete)
      .def("close", &call<&Aggregator::close>);
}

}  // namespace presum::python
