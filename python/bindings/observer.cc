// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Named = std::tuple<std::string, std::uint64_t, std::string>;  // name, elements, group
using Facts = std::vector<std::pair<std::string, std::string>>;

Observer make(std::uint32_t module, std::uint32_t replica, std::uint32_t shard,
              std::uint32_t world_rank, std::uint32_t replicas, std::uint32_t sketch_size,
              std::string host, Facts facts, const std::vector<Named>& parameters) {
  std::vector<Parameter> list;
  list.reserve(parameters.size());
  for (const auto& [name, elements, group] : parameters) list.push_back({name, elements, group});
  ObserverOptions options{.identity = {module, replica, shard, world_rank, replicas},
                          .sketch_size = sketch_size,
                          .host = std::move(host),
                          .facts = std::move(facts)};
  return unwrap(Observer::create(std::move(options), list));
}

// `address` is a data_ptr(); the tensor outlives the call because its caller holds it.
const void* pointer(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

void gradient(Observer& o, ParameterId id, std::uintptr_t address, std::size_t count,
              std::uint8_t dtype) {
  unwrap(without_gil(
      [&] { return o.gradient(id, pointer(address), count, static_cast<Dtype>(dtype)); }));
}

void reduced(Observer& o, ParameterId id, std::uintptr_t address, std::size_t count,
             std::uint8_t dtype) {
  unwrap(without_gil(
      [&] { return o.reduced_gradient(id, pointer(address), count, static_cast<Dtype>(dtype)); }));
}

void gradient_sums(Observer& o, ParameterId id, std::uint64_t elements, bool reduced,
                   double sum_squares, double max_abs, std::uint64_t nonfinite,
                   std::uint64_t fingerprint) {
  unwrap(o.gradient_sums(id, {sum_squares, max_abs, nonfinite, fingerprint}, elements, reduced));
}

nb::bytes end_step(Observer& o, std::uint64_t optimizer_step, std::uint32_t micro_batches,
                   std::uint32_t skipped, double scale, std::uint64_t dropped) {
  return to_bytes(o.end_step({optimizer_step, micro_batches, skipped, scale, dropped}));
}

nb::bytes stamp(const nb::bytes& packet, std::uint64_t run, std::uint32_t segment) {
  const auto bytes = as_span(packet);
  Packet copy{{bytes.begin(), bytes.end()}};
  copy.stamp(run, segment);
  return to_bytes(copy);
}

}  // namespace

void bind_observer(nb::module_& m) {
  nb::class_<Observer>(m, "Observer",
                       "One worker's gradients, step by step, as packets (see presum/observer.h). "
                       "One thread at a time.")
      .def(nb::new_(&make), nb::kw_only(), nb::arg("module"), nb::arg("replica"), nb::arg("shard"),
           nb::arg("world_rank"), nb::arg("replicas"), nb::arg("sketch_size"), nb::arg("host"),
           nb::arg("facts"), nb::arg("parameters"))
      .def("hello", [](const Observer& o) { return to_bytes(o.hello()); })
      .def("begin_step", &Observer::begin_step, nb::arg("step"))
      .def("gradient", &gradient, nb::arg("parameter"), nb::arg("address"), nb::arg("count"),
           nb::arg("dtype"))
      .def("reduced_gradient", &reduced, nb::arg("parameter"), nb::arg("address"), nb::arg("count"),
           nb::arg("dtype"))
      .def("gradient_sums", &gradient_sums, nb::arg("parameter"), nb::arg("elements"),
           nb::arg("reduced"), nb::arg("sum_squares"), nb::arg("max_abs"), nb::arg("nonfinite"),
           nb::arg("fingerprint"))
      .def(
          "add_sketch", [](Observer& o, const std::vector<float>& values) { o.add_sketch(values); },
          nb::arg("values"))
      .def("sketch_seed", &Observer::sketch_seed, nb::arg("parameter"), nb::arg("step"))
      .def("loss", &Observer::loss, nb::arg("value"), nb::arg("weight"), nb::arg("tokens"))
      .def("fingerprint", &Observer::fingerprint, nb::arg("kind"), nb::arg("value"))
      .def("end_step", &end_step, nb::arg("optimizer_step"), nb::arg("micro_batches"),
           nb::arg("skipped_parameters"), nb::arg("gradient_scale"), nb::arg("dropped"))
      .def(
          "note",
          [](const Observer& o, bool final, std::uint64_t sent, std::uint64_t dropped,
             std::string_view text) { return to_bytes(o.note(final, sent, dropped, text)); },
          nb::arg("final"), nb::arg("sent"), nb::arg("dropped"), nb::arg("text"));
  m.def("stamp", &stamp, nb::arg("packet"), nb::arg("run"), nb::arg("segment"),
        "The packet with the run and segment that the aggregator announced.");
  m.def(
      "count_targets",
      [](std::uintptr_t address, std::size_t count, std::int64_t ignored) {
        return count_targets({reinterpret_cast<const std::int64_t*>(address), count}, ignored);
      },
      nb::arg("address"), nb::arg("count"), nb::arg("ignored"));
  m.def("canonical_name", &canonical_name, nb::arg("name"));
  m.def(
      "simd_target", [] { return std::string(unwrap(simd_target())); },
      "Name of the SIMD target in use; PRESUM_SIMD forces one.");
}

}  // namespace presum::python
