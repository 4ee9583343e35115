// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <tuple>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bindings.h"
#include "presum/fingerprint.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using Named = std::tuple<std::string, std::uint64_t, std::string>;  // name, elements, group
using Facts = std::vector<std::pair<std::string, std::string>>;

std::vector<Parameter> to_parameters(const std::vector<Named>& named) {
  std::vector<Parameter> list;
  list.reserve(named.size());
  for (const auto& [name, elements, group] : named) list.push_back({name, elements, group});
  return list;
}

Observer make(std::uint32_t module, std::uint32_t replica, std::uint32_t shard, std::uint32_t rank,
              std::uint32_t replicas, std::uint32_t sketch_size, std::string host, Facts facts,
              const std::vector<Named>& parameters, const std::vector<Named>& buffers) {
  ObserverOptions options{.identity = {module, replica, shard, rank, replicas},
                          .sketch_size = sketch_size,
                          .host = std::move(host),
                          .facts = std::move(facts),
                          .buffers = to_parameters(buffers)};
  return unwrap(Observer::create(std::move(options), to_parameters(parameters)));
}

void gradient(Observer& o, ParameterId id, std::uintptr_t address, std::size_t count,
              std::uint8_t dtype) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] { return o.gradient(id, data, count, static_cast<Dtype>(dtype)); }));
}

void reduced(Observer& o, ParameterId id, std::uintptr_t address, std::size_t count,
             std::uint8_t dtype) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(
      without_gil([&] { return o.reduced_gradient(id, data, count, static_cast<Dtype>(dtype)); }));
}

void gradient_sums(Observer& o, ParameterId id, std::uint64_t elements, bool reduced,
                   double sum_squares, double max_abs, std::uint64_t nonfinite,
                   std::uint64_t fingerprint) {
  unwrap(o.gradient_sums(id, {sum_squares, max_abs, nonfinite, fingerprint}, elements, reduced));
}

void gram(Observer& o, const std::vector<double>& share) { unwrap(o.gram(share)); }

void state(Observer& o, std::uint32_t kind, std::uint32_t index, std::uintptr_t address,
           std::size_t count, std::uint32_t element_bytes) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] {
    return o.state(static_cast<StateHash::Kind>(kind), index, data, count, element_bytes);
  }));
}

void state_sum(Observer& o, std::uint32_t kind, std::uint32_t index, std::uint64_t fingerprint) {
  unwrap(o.state_sum(static_cast<StateHash::Kind>(kind), index, fingerprint));
}

std::vector<std::uint64_t> hash_rows_at(std::uintptr_t address, std::uint64_t rows,
                                        std::uint64_t columns, std::uint32_t element_bytes,
                                        std::uintptr_t mask_address, std::uint32_t mask_bytes) {
  const auto* data = memory_at<const void>(address, rows * columns);
  const auto* mask = reinterpret_cast<const void*>(mask_address);  // 0: none
  std::vector<std::uint64_t> out(rows);
  hash_rows({data, rows, columns, element_bytes, mask, mask_bytes}, out);
  return out;
}

std::map<std::string, std::uint32_t> kinds() {
  std::map<std::string, std::uint32_t> out;
  for (const FingerprintInfo& info : fingerprint_kinds()) {
    out.emplace(info.name, static_cast<std::uint32_t>(info.kind));
  }
  return out;
}

// Anything with the buffer protocol, in one block.
std::uint64_t hash_bytes(const nb::object& data, std::uint64_t seed) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::uint64_t hash =
      XXH3_64bits_withSeed(view.buf, static_cast<std::size_t>(view.len), seed);
  PyBuffer_Release(&view);
  return hash;
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
           nb::arg("rank"), nb::arg("replicas"), nb::arg("sketch_size"), nb::arg("host"),
           nb::arg("facts"), nb::arg("parameters"), nb::arg("buffers"))
      .def("fact", &Observer::fact, nb::arg("key"), nb::arg("value"))
      .def("begin_states", &Observer::begin_states)
      .def("state", &state, nb::arg("kind"), nb::arg("index"), nb::arg("address"), nb::arg("count"),
           nb::arg("element_bytes"))
      .def("state_sum", &state_sum, nb::arg("kind"), nb::arg("index"), nb::arg("fingerprint"))
      .def(
          "samples", [](Observer& o, const std::vector<std::uint64_t>& h) { o.samples(h); },
          nb::arg("hashes"))
      .def(
          "indices", [](Observer& o, const std::vector<std::uint64_t>& i) { o.indices(i); },
          nb::arg("indices"))
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
      .def("mean_dot", &Observer::mean_dot, nb::arg("value"))
      .def("gram", &gram, nb::arg("share"))
      .def("end_step", &end_step, nb::arg("optimizer_step"), nb::arg("micro_batches"),
           nb::arg("skipped_parameters"), nb::arg("gradient_scale"), nb::arg("dropped"))
      .def(
          "broken",
          [](const Observer& o, std::uint64_t sent, std::uint64_t dropped, std::string_view text) {
            return to_bytes(o.broken(sent, dropped, text));
          },
          nb::arg("sent"), nb::arg("dropped"), nb::arg("text"))
      .def(
          "note",
          [](const Observer& o, bool final, std::uint64_t sent, std::uint64_t dropped,
             std::string_view text,
             std::uint64_t clock) { return to_bytes(o.note(final, sent, dropped, text, clock)); },
          nb::arg("final"), nb::arg("sent"), nb::arg("dropped"), nb::arg("text"),
          nb::arg("clock") = 0);
  m.def("hash_rows", &hash_rows_at, nb::arg("address"), nb::arg("rows"), nb::arg("columns"),
        nb::arg("element_bytes"), nb::arg("mask_address"), nb::arg("mask_bytes"),
        "A 64-bit hash of each row of a batch in host memory, without its padding.");
  m.def("hash_bytes", &hash_bytes, nb::arg("data"), nb::arg("seed") = 0,
        "A 64-bit hash of anything with the buffer protocol.");
  m.def("fingerprint_kinds", &kinds, "Number of each kind of fingerprint, by name.");
  m.def("stamp", &stamp, nb::arg("packet"), nb::arg("run"), nb::arg("segment"),
        "The packet with the run and segment that the aggregator announced.");
  m.def(
      "count_targets",
      [](std::uintptr_t address, std::size_t count, std::int64_t ignored) {
        return count_targets({memory_at<const std::int64_t>(address, count), count}, ignored);
      },
      nb::arg("address"), nb::arg("count"), nb::arg("ignored"));
  m.def("canonical_name", &canonical_name, nb::arg("name"));
  m.def(
      "simd_targets",
      [] {
        const auto texts = [](const std::vector<std::string_view>& names) {
          return std::vector<std::string>(names.begin(), names.end());
        };
        const SimdTargets targets = simd_targets();
        return std::pair(texts(targets.possible), texts(targets.impossible));
      },
      "Names of the targets of this processor, and of those compiled in that it lacks.");
  m.def(
      "simd_target", [] { return std::string(unwrap(simd_target())); },
      "Name of the SIMD target in use; PRESUM_SIMD forces one.");
}

}  // namespace presum::python
