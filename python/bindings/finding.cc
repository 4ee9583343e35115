// SPDX-License-Identifier: Apache-2.0
#include "presum/finding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings.h"
#include "checks/engine/wording.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

nb::list evidence_of(const Finding& f) {
  const nb::object loads = nb::module_::import_("json").attr("loads");
  nb::list out;
  for (const Finding::Evidence& e : f.evidence) {
    nb::dict each;
    each["check"] = e.check;
    each["ranks"] = e.ranks;
    each["sentence"] = e.sentence;
    each["values"] = loads(e.values);
    out.append(each);
  }
  return out;
}

nb::dict to_dict(const Finding& f) {
  const checks::Wording said = checks::wording(f);
  nb::dict out;
  out["check"] = f.check;
  out["also"] = f.also;
  out["severity"] = to_string(f.severity);
  out["ranks"] = f.ranks;
  out["hosts"] = f.hosts;
  out["first_step"] = f.first_step;
  out["last_step"] = f.last_step;
  out["equal_until"] = f.equal_until;
  out["certain_step"] = f.certain_step;
  out["confidence"] = f.confidence;
  out["title"] = f.title;
  out["sentence"] = said.sentence;
  out["consequence"] = said.consequence;
  out["evidence_text"] = said.evidence;
  out["suspects"] = f.suspects;
  out["evidence"] = evidence_of(f);
  out["remedy"] = f.remedy;
  out["resembles"] = f.resembles;
  out["segment"] = f.model.segment;
  out["model_index"] = f.model.model_index;
  out["dp_group"] = f.model.dp_group;
  return out;
}

}  // namespace

nb::list to_list(const std::vector<Finding>& findings) {
  nb::list out;
  for (const Finding& f : findings) out.append(to_dict(f));
  return out;
}

}  // namespace presum::python
