// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bindings.h"
#include "step/activity.h"
#include "watch/watchdog.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using watch::Watchdog;

// The interpreter's own streams take its lock.
void say(const std::string& line) {
  const std::string text = line + "\n";
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
}

void make(Watchdog* place, std::uint32_t rank, std::string host, double period,
          double stall_seconds, std::uint64_t thread, bool quiet) {
  new (place) Watchdog({.pulse = {.identity = {.rank = rank, .replicas = 1},
                                  .host = std::move(host),
                                  .period = period,
                                  .stall_seconds = stall_seconds},
                        .thread = thread,
                        .say = quiet ? std::function<void(const std::string&)>() : say});
}

nb::bytes beat(Watchdog& dog, std::string collective, std::string site, std::string stack,
               std::string recorder) {
  watch::Place place{std::move(collective), std::move(site), std::move(stack), std::move(recorder)};
  return to_bytes(without_gil([&] { return dog.beat(std::move(place)); }));
}

}  // namespace

void bind_watch(nb::module_& m) {
  nb::class_<Watchdog>(m, "Watchdog",
                       "Tells where this process stands, by a thread of its own where the "
                       "interpreter does not answer (see src/watch/watchdog.h).")
      .def("__init__", &make, nb::kw_only(), nb::arg("rank"), nb::arg("host"), nb::arg("period"),
           nb::arg("stall_seconds"), nb::arg("thread"), nb::arg("quiet") = false)
      .def("beat", &beat, nb::arg("collective"), nb::arg("site"), nb::arg("stack"),
           nb::arg("recorder"))
      .def_prop_ro("still",
                   [](const Watchdog& dog) { return without_gil([&] { return dog.still(); }); })
      .def("stop", &Watchdog::stop, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "reaches",
          [](Watchdog& dog, std::vector<std::string> hosts, std::uint16_t port, std::string queue,
             std::uint64_t run, std::uint32_t segment) {
            dog.reaches({std::move(hosts), port, std::move(queue)}, {run, segment});
          },
          nb::kw_only(), nb::arg("hosts"), nb::arg("port"), nb::arg("queue"), nb::arg("run"),
          nb::arg("segment"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace presum::python
