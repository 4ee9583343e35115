// SPDX-License-Identifier: Apache-2.0
#include "presum/finding.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <variant>
#include <vector>

#include "bindings.h"
#include "checks/engine/wording.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

nb::object value_of(const Finding::Value& value) {
  return std::visit([](const auto& v) { return nb::cast(v); }, value);
}

nb::dict to_dict(const Finding& f) {
  nb::dict evidence;
  for (const auto& [name, value] : f.evidence) evidence[name.c_str()] = value_of(value);
  const checks::Wording said = checks::wording(f);
  nb::dict out;
  out["check"] = f.check;
  out["also"] = f.also;
  out["severity"] = to_string(f.severity);
  out["ranks"] = f.ranks;
  out["hosts"] = f.hosts;
  out["first_step"] = f.first_step;
  out["last_step"] = f.last_step;
  out["confidence"] = f.confidence;
  out["title"] = f.title;
  out["sentence"] = said.sentence;
  out["consequence"] = said.consequence;
  out["evidence_text"] = said.evidence;
  out["suspects"] = said.suspects;
  out["evidence"] = evidence;
  out["remedy"] = f.remedy;
  out["resembles"] = f.resembles;
  out["segment"] = f.model.segment;
  out["module"] = f.model.module;
  out["shard"] = f.model.shard;
  return out;
}

}  // namespace

nb::list to_list(const std::vector<Finding>& findings) {
  nb::list out;
  for (const Finding& f : findings) out.append(to_dict(f));
  return out;
}

}  // namespace presum::python
