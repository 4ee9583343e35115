// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "audit/survey.h"
#include "bindings.h"
#include "step/steps.h"

namespace presum::python {
namespace {

namespace nb = nanobind;
using audit::Comparison;

constexpr std::size_t kHypothesesShown = 16;

nb::list hypotheses(const audit::Inferred& inferred) {
  nb::list out;
  for (const audit::Hypothesis& h : inferred.hypotheses) {
    if (nb::len(out) >= kHypothesesShown) break;
    nb::dict one;
    one["order"] = to_string(h.order);
    one["wire"] = to_string(audit::accumulation_of(h.scheme.wire));
    one["accumulation"] = to_string(audit::accumulation_of(h.scheme.accumulation));
    one["division"] = to_string(h.division);
    one["examined"] = h.examined;
    one["reproduced"] = h.reproduced;
    out.append(one);
  }
  return out;
}

nb::dict to_dict(const audit::Measures& m) {
  nb::dict out;
  out["elements"] = m.elements;
  out["differing"] = m.differing;
  out["nonfinite"] = m.nonfinite;
  out["relative_l2"] = m.relative_l2();
  out["error_mean"] = m.error_mean();
  out["error_max"] = m.error_max;
  nb::dict ulps;
  const UlpPercentiles of = m.ulps.percentiles();
  ulps["p50"] = of.p50;
  ulps["p90"] = of.p90;
  ulps["p99"] = of.p99;
  ulps["max"] = of.max;
  out["ulps"] = ulps;
  return out;
}

nb::dict to_dict(const Comparison& c, Dtype dtype) {
  nb::dict out = to_dict(c.measures);
  out["wrong"] = c.inferred.wrong;
  out["unrelated"] = c.inferred.unrelated;
  out["copy_of"] = c.inferred.copy_of;
  out["accumulation"] = to_string(c.inferred.accumulation);
  out["accumulation_bits"] = significand_bits(c.inferred.accumulation);
  out["order"] = to_string(c.inferred.order);
  out["division"] = to_string(c.inferred.division);
  nb::dict beyond;
  for (const auto& [format, count] : c.inferred.beyond) beyond[to_string(format)] = count;
  out["beyond"] = beyond;
  out["hypotheses"] = hypotheses(c.inferred);
  nb::list pieces;
  for (const auto& p : c.inferred.pieces) pieces.append(nb::make_tuple(p.first, p.end, p.start));
  out["pieces"] = pieces;
  out["record"] = c.record(dtype);
  return out;
}

// Auditor and Survey take the next elements of every worker's buffer.
class PythonAuditor {
 public:
  PythonAuditor(std::size_t workers, Dtype dtype, std::uint32_t divisor, std::uint64_t elements)
      : dtype_(dtype),
        auditor_(unwrap(audit::Auditor::create(workers, dtype, divisor, elements))) {}

  void add(std::vector<Array> leaves, const Array& result) {
    leaves.push_back(result);  // memory_of checks that all are alike
    const auto memory = memory_of(leaves, dtype_, result.size());
    const auto inputs = std::span(memory).first(memory.size() - 1);
    unwrap(without_gil([&] { return auditor_->add(inputs, result.size(), memory.back()); }));
  }
  nb::dict result() const { return to_dict(auditor_->comparison(), dtype_); }

 private:
  Dtype dtype_;
  std::unique_ptr<audit::Auditor> auditor_;
};

class PythonSurvey {
 public:
  PythonSurvey(std::uint32_t workers, Dtype dtype, std::uint64_t elements, std::uint64_t seed)
      : dtype_(dtype), survey_(unwrap(audit::Survey::create({workers, dtype, elements, seed}))) {}

  void add(const std::vector<Array>& leaves) {
    const std::size_t count = leaves.empty() ? 0 : leaves.front().size();
    const auto inputs = memory_of(leaves, dtype_, count);
    without_gil([&] { survey_->add(inputs, count); });
  }
  nb::dict result() const {
    const audit::SurveyResult found = survey_->result();
    nb::list ways;
    for (const auto& row : found.rows) {
      nb::dict way;
      way["way"] = row.name;
      way.attr("update")(to_dict(row.measures));
      ways.append(way);
    }
    nb::list changes;
    for (const auto& pair : found.pairs) {
      nb::dict one;
      one["between"] = pair.name;
      one["elements"] = pair.differing;
      changes.append(one);
    }
    nb::dict out;
    out["elements"] = found.elements;
    out["ways"] = ways;
    out["changes"] = changes;
    return out;
  }

 private:
  Dtype dtype_;
  std::unique_ptr<audit::Survey> survey_;
};

nb::tuple nearer(const std::vector<Array>& leaves, const Array& result) {
  const Dtype dtype = dtype_of(result.dtype());
  const auto inputs = memory_of(leaves, dtype, result.size());
  const auto found =
      without_gil([&] { return audit::nearer(inputs, dtype, result.size(), memory_of(result)); });
  return nb::make_tuple(found.to_sum, found.to_mean);
}

void report(step::Steps& observer, AuditRecord record, std::optional<bool> repeat) {
  if (repeat) record.repeat = *repeat ? Repeat::kEqual : Repeat::kDifferent;
  observer.contents().report.audit = record;
}

}  // namespace

void bind_audit(nb::module_& m) {
  nb::class_<AuditRecord>(m, "AuditRecord", "What an audit found, as it is recorded.")
      .def_ro("elements", &AuditRecord::elements)
      .def_ro("differing", &AuditRecord::differing)
      .def_ro("wrong", &AuditRecord::wrong)
      .def_ro("relative_l2", &AuditRecord::relative_l2)
      .def_ro("error_max", &AuditRecord::error_max);
  m.def("audit_nearer", &nearer, nb::arg("leaves").noconvert(), nb::arg("result").noconvert(),
        nb::sig("def audit_nearer(leaves: collections.abc.Sequence[DLPack], result: DLPack) -> "
                "tuple[int, int]"),
        "How many elements of a result are nearer to the sum, and how many to the mean.");
  nb::class_<PythonAuditor>(m, "Auditor",
                            "Compares a reduction's result with what went in (src/audit/audit.h).")
      .def(nb::init<std::size_t, Dtype, std::uint32_t, std::uint64_t>(), nb::arg("workers"),
           nb::arg("dtype"), nb::arg("divisor"), nb::arg("elements"))
      .def("add", &PythonAuditor::add, nb::arg("leaves").noconvert(), nb::arg("result").noconvert())
      .def("result", &PythonAuditor::result, nb::sig("def result(self) -> dict[str, typing.Any]"));
  nb::class_<PythonSurvey>(m, "Survey", "Sums in many orders and formats (see src/audit/survey.h).")
      .def(nb::init<std::uint32_t, Dtype, std::uint64_t, std::uint64_t>(), nb::arg("workers"),
           nb::arg("dtype"), nb::arg("elements"), nb::arg("seed"))
      .def("add", &PythonSurvey::add, nb::arg("leaves").noconvert())
      .def("result", &PythonSurvey::result, nb::sig("def result(self) -> dict[str, typing.Any]"));
  nb::object observer = m.attr("Observer");
  nb::setattr(observer, "audit",
              nb::cpp_function(&report, nb::is_method(), nb::scope(observer), nb::name("audit"),
                               nb::arg("record"), nb::kw_only(), nb::arg("repeat") = nb::none()));
}

}  // namespace presum::python
