// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

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
    one["share"] = h.share();
    out.append(one);
  }
  return out;
}

nb::dict ulps(const audit::UlpHistogram& histogram) {
  nb::dict out;
  out["p50"] = histogram.percentile(0.5);
  out["p90"] = histogram.percentile(0.9);
  out["p99"] = histogram.percentile(0.99);
  out["max"] = histogram.largest();
  return out;
}

nb::dict to_dict(const Comparison& c, Dtype dtype) {
  nb::dict out;
  out["elements"] = c.measures.elements;
  out["differing"] = c.measures.differing;
  out["nonfinite"] = c.measures.nonfinite;
  out["wrong"] = c.inferred.wrong;
  out["relative_l2"] = c.measures.relative_l2();
  out["error_mean"] = c.measures.error_mean();
  out["error_max"] = c.measures.error_max;
  out["ulps"] = ulps(c.measures.ulps);
  out["accumulation"] = to_string(c.inferred.accumulation);
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

nb::dict compare(const std::vector<Array>& leaves, std::uint32_t divisor, const Array& result) {
  const Dtype dtype = dtype_of(result.dtype());
  const auto inputs = memory_of(leaves, dtype, result.size());
  return to_dict(unwrap(without_gil([&] {
                   return audit::compare(inputs, dtype, result.size(), divisor, memory_of(result));
                 })),
                 dtype);
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
  m.def("audit_compare", &compare, nb::arg("leaves").noconvert(), nb::arg("divisor"),
        nb::arg("result").noconvert(),
        nb::sig("def audit_compare(leaves: collections.abc.Sequence[DLPack], divisor: int, "
                "result: DLPack) -> dict[str, typing.Any]"),
        "Compares what a reduction gave with what went in (see src/audit/audit.h); divisor 1 where "
        "the result is a sum.");
  nb::object observer = m.attr("Observer");
  nb::setattr(observer, "audit",
              nb::cpp_function(&report, nb::is_method(), nb::scope(observer), nb::name("audit"),
                               nb::arg("record"), nb::kw_only(), nb::arg("repeat") = nb::none()));
}

}  // namespace presum::python
