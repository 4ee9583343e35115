// SPDX-License-Identifier: Apache-2.0
#include "presum/run_log.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bindings.h"

namespace presum::python {
namespace {

using Rows = std::vector<std::vector<RunLog::Cell>>;

std::pair<std::vector<std::string>, Rows> run_table(const std::filesystem::path& run,
                                                    const std::string& table) {
  std::vector<std::string> columns;
  Rows rows;
  const RunLog log = unwrap(without_gil([&] { return RunLog::open(run); }));
  const auto visit = [&](auto names, auto cells) {
    if (cells.empty()) {
      columns.assign(names.begin(), names.end());
    } else {
      rows.emplace_back(cells.begin(), cells.end());
    }
  };
  unwrap(log.visit_table(table, visit));
  return {std::move(columns), std::move(rows)};
}

}  // namespace

void bind_runlog(nanobind::module_& m) {
  m.def(
      "check_run",
      [](const std::filesystem::path& run) {
        unwrap(without_gil([&] { return RunLog::open(run); }));
      },
      nanobind::arg("run"), "Raises OSError where RunLog::open has an error.");
  m.def("run_table", &run_table, nanobind::arg("run"), nanobind::arg("table"),
        "Columns and rows of a table for people, as RunLog::visit_table gives them.");
}

}  // namespace presum::python
