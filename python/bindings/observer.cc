// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/simd.h"
#include "bindings.h"
#include "presum/fingerprint.h"
#include "step/activity.h"
#include "step/names.h"
#include "step/phases.h"
#include "step/steps.h"
#include "step/waits.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::EndedStep;
using step::Number;
using step::Steps;
using Named = std::tuple<std::string, std::uint64_t, std::string>;  // name, elements, group
using Facts = std::vector<std::pair<std::string, std::string>>;
using RowsOf = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig, nb::ndim<2>>;

std::vector<Parameter> to_parameters(const std::vector<Named>& named) {
  std::vector<Parameter> list;
  list.reserve(named.size());
  for (const auto& [name, elements, group] : named) list.push_back({name, elements, group});
  return list;
}

Steps make(std::uint32_t model_index, std::uint32_t replica, std::uint32_t dp_group,
           std::uint32_t rank, std::uint32_t replicas, std::uint32_t sketch_size, std::string host,
           Facts facts, const std::vector<Named>& parameters, const std::vector<Named>& buffers,
           std::uint64_t every, std::uint64_t reduced_every, bool knows_optimizer,
           bool one_optimizer, bool on_host) {
  step::WorkerOptions options{.identity = {model_index, replica, dp_group, rank, replicas},
                              .sketch_size = sketch_size,
                              .host = std::move(host),
                              .facts = std::move(facts),
                              .buffers = to_parameters(buffers)};
  step::Settings settings{every, reduced_every, knows_optimizer, one_optimizer, on_host, {}};
  if (on_host) settings.clocks = {step::read_clock, base::thread_times};
  return unwrap(Steps::create(std::move(options), to_parameters(parameters), std::move(settings)));
}

template <bool kReduced>
void gradient(Steps& o, ParameterId id, std::uintptr_t address, std::size_t count, Dtype dtype) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] { return o.gradients().read(id, data, count, dtype, kReduced); }));
}

void gradient_part(Steps& o, ParameterId id, std::uintptr_t address, std::size_t count, Dtype dtype,
                   std::uint64_t first, std::uint32_t shard, double scale, bool reduced,
                   bool added) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] {
    return o.gradients().read_part(id, data, count, dtype, {first, shard, scale, reduced, added});
  }));
}

template <class To>
void gradient_sums(To& to, ParameterId id, std::uint64_t elements, bool reduced, double sum_squares,
                   double max_abs, std::uint64_t nonfinite, std::uint64_t fingerprint,
                   std::uint64_t zeros) {
  unwrap(to.gradients().take(id, {sum_squares, max_abs, nonfinite, fingerprint, zeros}, elements,
                             reduced));
}

void state(Steps& o, StateHash::Kind kind, std::uint32_t index, std::uintptr_t address,
           std::size_t count, std::uint32_t element_bytes, std::uint32_t shard) {
  const auto* data = memory_at<const void>(address, count);
  unwrap(without_gil([&] {
    return o.contents().state(o.layout(), kind, index, data, count, element_bytes, shard);
  }));
}

template <class To>
void state_sum(To& to, StateHash::Kind kind, std::uint32_t index, std::uint64_t fingerprint,
               std::uint32_t shard) {
  unwrap(to.contents().state_sum(to.layout(), kind, index, fingerprint, shard));
}

void reached(Steps& steps, std::uint64_t forward, std::optional<Number> loss, Number tokens,
             std::optional<Number> share) {
  steps.reached(forward, {.loss = loss, .tokens = tokens, .share = share});
}

step::Read pass_begins(Steps& steps, bool reduces, bool more_follow, bool readable, Number held) {
  return steps.pass_begins({reduces, more_follow, readable, held});
}

void pass_ends(Steps& steps, Number scale, std::optional<Number> root, double share_factor,
               double gradient_factor, Number targets, Number targets_weight, bool part) {
  steps.pass_ends({{}, root, scale, share_factor, gradient_factor, targets, targets_weight}, part);
}

std::vector<std::uint64_t> hash_rows_of(const RowsOf& x, const std::optional<RowsOf>& mask) {
  RowBatch batch{.data = memory_of(x),
                 .rows = x.shape(0),
                 .columns = x.shape(1),
                 .element_bytes = static_cast<std::uint32_t>(x.itemsize())};
  if (mask) {
    require_size(mask->size(), x.size());
    batch.mask = memory_of(*mask);
    batch.mask_bytes = static_cast<std::uint32_t>(mask->itemsize());
  }
  std::vector<std::uint64_t> out(batch.rows);
  hash_rows(batch, out);
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

std::uint64_t hash_memory(std::uintptr_t address, std::size_t bytes) {
  return XXH3_64bits(memory_at<const void>(address, bytes), bytes);
}

std::uint64_t hash_array(const Array& values) {
  return XXH3_64bits(memory_of(values), values.nbytes());
}

nb::bytes end_step(Steps& o, std::uint64_t optimizer_step, std::uint32_t micro_batches,
                   std::uint32_t skipped, double scale) {
  return to_bytes(step::end_step(o, {optimizer_step, micro_batches, skipped, scale}));
}

nb::bytes goodbye(const Steps& o, std::uint64_t optimizer_steps,
                  const std::vector<std::pair<FingerprintKind, std::uint64_t>>& fingerprints,
                  std::string text) {
  std::vector<FingerprintValue> values;
  for (const auto& [kind, value] : fingerprints) {
    values.push_back({static_cast<std::uint32_t>(kind), value});
  }
  return to_bytes(o.goodbye(optimizer_steps, std::move(values), std::move(text)));
}

template <bool kBroken>
nb::bytes note(const Steps& o, std::string text) {
  return to_bytes(o.worker().note({.broken = kBroken, .text = std::move(text), .state = {}}));
}

nb::bytes stamp(const nb::bytes& packet, std::uint64_t run, std::uint32_t segment,
                std::uint64_t dropped) {
  const auto bytes = as_span(packet);
  Packet copy{{bytes.begin(), bytes.end()}};
  copy.stamp({run, segment}, dropped);
  return to_bytes(copy);
}

// What a program reports of the step that is open, or of one that has ended.
template <class Class>
void bind_contents(Class& bound) {
  using Self = typename Class::Type;
  bound
      .def(
          "samples",
          [](Self& self, const std::vector<std::uint64_t>& h) { self.contents().samples(h); },
          nb::arg("hashes"))
      .def(
          "indices",
          [](Self& self, const std::vector<std::uint64_t>& i) { self.contents().indices(i); },
          nb::arg("indices"))
      .def(
          "fingerprint",
          [](Self& self, FingerprintKind kind, std::uint64_t value) {
            self.contents().fingerprint(static_cast<std::uint32_t>(kind), value);
          },
          nb::arg("kind"), nb::arg("value"))
      .def(
          "gram",
          [](Self& self, const ArrayOf<double>& share) {
            unwrap(self.contents().set_gram({memory_of(share), share.size()},
                                            self.identity().replicas));
          },
          nb::arg("share").noconvert())
      .def("begin_states", [](Self& self) { self.contents().begin_states(); })
      .def("state_sum", &state_sum<Self>, nb::arg("kind"), nb::arg("index"), nb::arg("fingerprint"),
           nb::arg("shard") = 0)
      .def(
          "watched",
          [](Self& self, std::string_view name, std::uint32_t index, std::uint64_t fingerprint,
             StateHash::Kind kind, std::uint32_t shard) {
            self.contents().watched(name, index, fingerprint, kind, shard);
          },
          nb::arg("name"), nb::arg("index"), nb::arg("fingerprint"),
          nb::arg("kind") = StateHash::Kind::kWatched, nb::arg("shard") = 0)
      .def("gradient_sums", &gradient_sums<Self>, nb::arg("parameter"), nb::arg("elements"),
           nb::arg("reduced"), nb::arg("sum_squares"), nb::arg("max_abs"), nb::arg("nonfinite"),
           nb::arg("fingerprint"), nb::arg("zeros"))
      .def(
          "add_sketch",
          [](Self& self, const ArrayOf<float>& values) {
            self.gradients().add_sketch({memory_of(values), values.size()});
          },
          nb::arg("values").noconvert())
      .def("no_sketch", [](Self& self) { self.gradients().forget_sketch(); });
}

void bind_events(nb::class_<Steps>& steps) {
  steps.def("forward", &Steps::forward, nb::arg("left") = Number(kNaN))
      .def("evaluates", [](Steps& s) { s.timing().on(step::Mark::kEvaluates, s.machine()); })
      .def(
          "backward", [](Steps& s, bool certain) { s.timing().backward(s.machine(), certain); },
          nb::arg("certain"))
      .def("enter_wrapper", &Steps::enter_wrapper)
      .def("enter_module", &Steps::enter_module)
      .def_prop_ro("asks_what_is_left", &Steps::asks_what_is_left)
      .def_prop_ro("next_is_recorded", &Steps::next_is_recorded)
      .def_prop_ro("turn", &Steps::turn)
      .def_prop_ro("in_window", [](const Steps& s) { return s.machine().in_window(); })
      .def_prop_ro("window_begins", &Steps::window_begins)
      .def("reached", &reached, nb::arg("forward"), nb::arg("loss").none(), nb::arg("tokens"),
           nb::arg("share").none())
      .def("forget_reached", &Steps::forget_reached)
      .def_prop_ro("needs_root", &Steps::needs_root)
      .def("pass_begins", &pass_begins, nb::arg("reduces"), nb::arg("more_follow"),
           nb::arg("readable"), nb::arg("held"))
      .def("pass_ends", &pass_ends, nb::arg("scale"), nb::arg("root").none(),
           nb::arg("share_factor"), nb::arg("gradient_factor"), nb::arg("targets"),
           nb::arg("targets_weight"), nb::arg("part"))
      .def_prop_ro("records", &Steps::records)
      .def_prop_ro("collects", &Steps::collects)
      .def_prop_ro("windows", &Steps::windows)
      .def_prop_ro("open", &Steps::open)
      .def_prop_ro("passes", [](const Steps& s) { return s.machine().passes(); })
      .def("reduced_is_due", &Steps::reduced_is_due)
      .def("postpone_reduced", &Steps::postpone_reduced)
      .def("reduction", &Steps::reduction)
      .def("shadow", &Steps::shadow)
      .def("arrives", &Steps::arrives, nb::arg("parameter"))
      .def(
          "mark_seen", [](Steps& s, ParameterId id) { s.gradients().mark_seen(id); },
          nb::arg("parameter"))
      .def(
          "seen", [](const Steps& s, ParameterId id) { return s.gradients().seen(id); },
          nb::arg("parameter"))
      .def_prop_ro("unseen", [](const Steps& s) { return s.gradients().unseen(); })
      .def(
          "skip",
          [](Steps& s, std::uint32_t count) { s.contents().report.skipped_parameters += count; },
          nb::arg("count"))
      .def(
          "seed", [](const Steps& s, ParameterId id) { return s.gradients().seed(id); },
          nb::arg("parameter"))
      .def(
          "group",
          [](const Steps& s, ParameterId id) {
            const step::Layout& layout = s.layout();
            return layout.groups().at(layout.parameters().at(id).group).name;
          },
          nb::arg("parameter"))
      .def("zeroed", &Steps::zeroed, nb::arg("changed"))
      .def("optimizer_begins", &Steps::optimizer_begins)
      .def_prop_ro("in_optimizer_step", [](Steps& s) { return s.optimizers().in_step(); })
      .def("optimizer_fails", [](Steps& s) { s.optimizers().fail(); })
      .def("optimizer_steps", nb::overload_cast<std::uint64_t>(&Steps::optimizer_steps),
           nb::arg("which"))
      .def_prop_ro("optimizer_steps_done", nb::overload_cast<>(&Steps::optimizer_steps, nb::const_))
      .def("closed", &Steps::closed)
      .def_prop_ro("steps", [](const Steps& s) { return s.machine().steps(); })
      .def("take_ended", &Steps::take_ended);
}

void bind_ended_step(nb::module_& m) {
  nb::class_<step::Late>(m, "Late", "A number that is still on its device: its place.")
      .def(nb::init<std::uint32_t>(), nb::arg("place"));
  nb::class_<EndedStep> ended(m, "EndedStep",
                              "A step that has ended, until its packet is made (see "
                              "src/step/ended_step.h). One thread at a time.");
  bind_contents(ended);
  ended.def("numbers", &EndedStep::numbers, nb::arg("come"))
      .def("rows", &EndedStep::rows, nb::arg("hashes"), nb::arg("others"))
      .def(
          "times",
          [](EndedStep& e, const std::vector<std::pair<step::Mark, double>>& marks) {
            std::vector<step::Marked> list;
            list.reserve(marks.size());
            for (const auto& [mark, at] : marks) list.push_back({mark, at});
            e.times(list);
          },
          nb::arg("marks"))
      .def("packet", [](EndedStep& e) { return to_bytes(e.packet()); });
}

void bind_times(nb::module_& m) {
  m.def(
      "wait_begins",
      [](const nb::args&, const nb::kwargs&) { step::waits().begin(monotonic_now().count()); },
      nb::sig("def wait_begins(*args: object, **kwargs: object) -> None"),
      "This thread waits for other ranks from now on (see src/step/waits.h), whatever the "
      "arguments. May be nested.");
  m.def(
      "wait_ends", [] { step::waits().end(monotonic_now().count()); },
      "It does no more. Without a beginning it does nothing.");
}

}  // namespace

void bind_observer(nb::module_& m) {
  bind_ended_step(m);
  bind_times(m);
  nb::class_<Steps> steps(m, "Observer",
                          "The steps of one model on one rank, as packets (see "
                          "src/step/steps.h). One thread at a time.");
  bind_contents(steps);
  bind_events(steps);
  steps
      .def(nb::new_(&make), nb::kw_only(), nb::arg("model_index"), nb::arg("replica"),
           nb::arg("dp_group"), nb::arg("rank"), nb::arg("replicas"), nb::arg("sketch_size"),
           nb::arg("host"), nb::arg("facts"), nb::arg("parameters"), nb::arg("buffers"),
           nb::arg("every") = 1, nb::arg("reduced_every") = 1, nb::arg("knows_optimizer") = false,
           nb::arg("one_optimizer") = false, nb::arg("on_host") = true)
      .def(
          "fact",
          [](Steps& o, std::string_view key, std::string_view value) {
            o.worker().fact(key, value);
          },
          nb::arg("key"), nb::arg("value"))
      .def("state", &state, nb::arg("kind"), nb::arg("index"), nb::arg("address"), nb::arg("count"),
           nb::arg("element_bytes"), nb::arg("shard") = 0)
      .def(
          "watch", [](Steps& o, std::string_view name) { o.worker().watch(name); }, nb::arg("name"))
      .def("hello", [](const Steps& o) { return to_bytes(o.hello()); })
      .def("begin_step", &Steps::begin_step, nb::arg("step"))
      .def("gradient", &gradient<false>, nb::arg("parameter"), nb::arg("address"), nb::arg("count"),
           nb::arg("dtype"))
      .def("reduced_gradient", &gradient<true>, nb::arg("parameter"), nb::arg("address"),
           nb::arg("count"), nb::arg("dtype"))
      .def("gradient_part", &gradient_part, nb::arg("parameter"), nb::arg("address"),
           nb::arg("count"), nb::arg("dtype"), nb::arg("first"), nb::arg("shard"), nb::arg("scale"),
           nb::arg("reduced"), nb::arg("added") = false)
      .def_prop_ro("layers_due", [](const Steps& o) { return o.gradients().layers_due(); })
      .def(
          "layer_unknown", [](Steps& o, ParameterId id) { o.gradients().layer_unknown(id); },
          nb::arg("parameter"))
      .def("loss", &Steps::loss, nb::arg("value"), nb::arg("weight"), nb::arg("tokens"))
      .def("end_step", &end_step, nb::arg("optimizer_step"), nb::arg("micro_batches"),
           nb::arg("skipped_parameters"), nb::arg("gradient_scale"))
      .def("broken", &note<true>, nb::arg("text"))
      .def("note", &note<false>, nb::arg("text"))
      .def("goodbye", &goodbye, nb::arg("optimizer_steps"), nb::arg("fingerprints") = nb::list(),
           nb::arg("text") = "");
  m.def("hash_rows", &hash_rows_of, nb::arg("rows").noconvert(),
        nb::arg("mask").noconvert().none() = nb::none(),
        "A 64-bit hash of each row of a batch, without its padding. mask: of the same shape, zero "
        "where a position is left out.");
  m.def("hash_bytes", &hash_bytes, nb::arg("data"), nb::arg("seed") = 0,
        "A 64-bit hash of anything with the buffer protocol.");
  m.def("hash_array", &hash_array, nb::arg("values").noconvert(),
        "A 64-bit hash of an array's bytes.");
  m.def("hash_memory", &hash_memory, nb::arg("address"), nb::arg("bytes"),
        "The same, of what lies at an address.");
  m.def("stamp", &stamp, nb::arg("packet"), nb::arg("run"), nb::arg("segment"),
        nb::arg("dropped") = 0,
        "The packet with what the aggregator announced and its sender has counted.");
  m.def("canonical_name", &step::canonical_name, nb::arg("name"));
  m.def(
      "simd_targets",
      [] {
        const auto texts = [](const std::vector<std::string_view>& names) {
          return std::vector<std::string>(names.begin(), names.end());
        };
        return std::pair(texts(base::simd_targets()), texts(base::impossible_simd_targets()));
      },
      "Names of the targets of this processor, and of those compiled in that it lacks.");
  m.def(
      "simd_target", [] { return std::string(unwrap(base::simd_target())); },
      "Name of the SIMD target in use; PRESUM_SIMD forces one.");
}

}  // namespace presum::python
