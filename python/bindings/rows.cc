// SPDX-License-Identifier: Apache-2.0
#include "step/rows.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using step::RowMatcher;
using Hashes = std::vector<std::uint64_t>;
using Origin = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;  // batch, place, row

std::vector<std::optional<Origin>> take(RowMatcher& matcher, const Hashes& hashes,
                                        std::uint64_t offered, bool trains) {
  std::vector<std::optional<Origin>> out;
  for (const std::uint64_t hash : hashes) {
    const auto row = matcher.take(hash, offered, trains);
    out.push_back(row ? std::optional(Origin(row->batch, row->place, row->row)) : std::nullopt);
  }
  return out;
}

}  // namespace

void bind_rows(nb::module_& m) {
  nb::class_<RowMatcher>(m, "RowMatcher",
                         "Which of the batches that loaders handed out a forward pass was given, "
                         "by hashes of rows. Whole calls do not overlap.")
      .def(nb::init<>())
      .def("offer", &RowMatcher::offer, nb::arg("batch"), nb::arg("rows"), nb::arg("trains"),
           "A batch, by the places of its tensors; returns the oldest that is still known.")
      .def("take", &take, nb::arg("hashes"), nb::arg("offered"), nb::arg("trains"),
           "For each hash batch, place and row, or None.");
}

}  // namespace presum::python
