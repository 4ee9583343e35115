// SPDX-License-Identifier: Apache-2.0
#include "presum/run_log.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/try.h"
#include "bindings.h"
#include "cli/findings_text.h"
#include "cli/rows.h"
#include "judge/documents.h"
#include "report/report.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

// The array owns the values.
template <class T>
nb::object to_array(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const std::size_t count = owned->size();
  const nb::capsule owner(owned.get(), [](void* all) noexcept {
    const std::unique_ptr<std::vector<T>> freed(static_cast<std::vector<T>*>(all));
  });
  static_cast<void>(owned.release());
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {count}, owner));
}

// Name, values, and the texts that they are positions in (None: they are none).
nb::list to_list(std::vector<Series> frame) {
  nb::list out;
  for (Series& s : frame) {
    nb::object texts = s.is_text ? nb::cast(s.texts) : nb::none();
    auto values = std::visit([](auto& v) { return to_array(std::move(v)); }, s.values);
    out.append(nb::make_tuple(s.name, std::move(values), std::move(texts)));
  }
  return out;
}

nb::list frame(const RunLog& log, const std::string& table, std::uint64_t after,
               std::uint64_t up_to) {
  return to_list(unwrap(without_gil([&] { return log.frame(table, {after, up_to}); })));
}

nb::list group_norms(const RunLog& log) {
  return to_list(unwrap(without_gil([&] { return log.group_norms(); })));
}

nb::object cosines(const RunLog& log, std::uint32_t segment, std::uint32_t model_index,
                   std::uint32_t dp_group, std::uint64_t step) {
  return to_array(unwrap(without_gil([&] {
    return log.cosines({{segment, model_index, dp_group}, step});
  })));
}

// Without the GIL until the end.
nb::tuple judgment(const RunLog& log) {
  const auto texts = unwrap(without_gil([&]() -> Result<std::pair<std::string, std::string>> {
    PRESUM_ASSIGN(const auto steps, log.steps());
    PRESUM_ASSIGN(const auto j, judge::judge(log, steps));
    auto line = cli::verdict_text(j) + "; " + cli::coverage_text(j.coverage) + "; " +
                cli::count(j.findings.size(), "finding") + cli::shortcomings_text(j);
    return std::pair(std::move(line), cli::json_line(judge::judgment_json(j)));
  }));
  return nb::make_tuple(texts.first, texts.second);
}

nb::list to_list(const std::vector<TableInfo>& tables) {
  nb::list out;
  for (const TableInfo& t : tables) {
    nb::list columns;
    for (const ColumnInfo& c : t.columns) {
      columns.append(nb::make_tuple(c.name, c.type, c.unit, c.meaning, c.unknown));
    }
    out.append(nb::make_tuple(t.name, t.meaning, columns));
  }
  return out;
}

}  // namespace

void bind_runlog(nb::module_& m) {
  nb::class_<RunLog>(m, "RunLog", "An open run log (see presum/run_log.h). One thread at a time.")
      .def(nb::new_([](const std::filesystem::path& run) {
             return unwrap(without_gil([&] { return RunLog::open(run); }));
           }),
           nb::arg("run"))
      .def(
          "frame", &frame, nb::arg("table"), nb::arg("after") = 0,
          nb::arg("up_to") = StepRows{}.up_to,
          nb::sig("def frame(self, table: str, after: int = 0, up_to: int = ...) -> "
                  "list[tuple[str, numpy.typing.NDArray[typing.Any], list[str] | None]]"),
          "Columns of a table: name, values, and texts that the values are positions in. Of tables "
          "about steps, only those after step number `after`, up to `up_to` (steps_written).")
      .def(
          "steps_written",
          [](const RunLog& log) {
            return unwrap(without_gil([&] { return log.steps_written(); }));
          },
          "Number of steps of all models and segments, in the order in which they were written.")
      .def(
          "report",
          [](const RunLog& log) {
            return unwrap(without_gil([&] { return report::page({&log, 1}); }));
          },
          "What `presum report` writes.")
      .def(
          "page_data",
          [](const RunLog& log) {
            return unwrap(without_gil([&]() -> Result<std::string> {
              PRESUM_ASSIGN(const auto data, report::page_data({&log, 1}));
              return cli::json_line(data);
            }));
          },
          "The data of that page, as JSON.")
      .def("group_norms", &group_norms,
           nb::sig("def group_norms(self) -> list[tuple[str, numpy.typing.NDArray[typing.Any], "
                   "list[str] | None]]"))
      .def(
          "findings",
          [](const RunLog& log) {
            return to_list(unwrap(without_gil([&] { return log.findings(); })));
          },
          nb::sig("def findings(self) -> list[dict[str, typing.Any]]"))
      .def("judgment", &judgment, nb::sig("def judgment(self) -> tuple[str, str]"),
           "The verdict with its coverage as one line, and what `presum findings --format json` "
           "prints.")
      .def("cosines", &cosines, nb::arg("segment"), nb::arg("model_index"), nb::arg("dp_group"),
           nb::arg("step"),
           nb::sig("def cosines(self, segment: int, model_index: int, dp_group: int, step: int) -> "
                   "numpy.typing.NDArray[numpy.float32]"));
  m.def("live_page", &report::live_page, nb::arg("nonce"),
        "The page of `presum report` that fetches its data from beside it.");
  m.def(
      "stored_tables", [] { return to_list(stored_tables()); },
      nb::sig("def stored_tables() -> list[tuple[str, str, list[tuple[str, str, str, str, str]]]]"),
      "Name, meaning and columns (name, type, unit, meaning, unknown) of the file's tables.");
  m.def(
      "shown_tables", [] { return to_list(shown_tables()); },
      nb::sig("def shown_tables() -> list[tuple[str, str, list[tuple[str, str, str, str, str]]]]"),
      "The same of the tables for people.");
}

}  // namespace presum::python
