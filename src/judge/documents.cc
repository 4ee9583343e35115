// SPDX-License-Identifier: Apache-2.0
#include "judge/documents.h"

#include <cmath>
#include <utility>

#include "checks/engine/wording.h"

namespace presum::judge {
namespace {

using State = CheckRecord::State;

constexpr int kSchemaVersion = 1;
constexpr State kStates[] = {State::kFound, State::kPassed, State::kNotTriggered,
                             State::kNotPossible};

Json evidence_json(const Finding& finding) {
  Json out = Json::array();
  for (const Finding::Evidence& e : finding.evidence) {
    const Json values = Json::parse(e.values, nullptr, false);
    out.push_back({{"check", e.check},
                   {"ranks", e.ranks},
                   {"sentence", e.sentence},
                   {"values", values.is_object() ? values : Json::object()}});
  }
  return out;
}

Json step_json(std::optional<std::uint64_t> step) { return step ? Json(*step) : Json(nullptr); }

Json elsewhere_json(const Finding& finding) {
  Json out = Json::array();
  for (const ModelKey& m : finding.elsewhere) {
    out.push_back({{"model_index", m.model_index}, {"dp_group", m.dp_group}});
  }
  return out;
}

Json coverage_json(const Coverage& coverage) {
  Json checks = Json::object();
  for (const State state : kStates) {
    checks[to_string(state)] = coverage.checks[static_cast<std::size_t>(state)];
  }
  return {{"steps_logged", coverage.steps_logged},
          {"steps_lost", coverage.steps_lost},
          {"workers_expected", coverage.workers_expected},
          {"workers_seen", coverage.workers_seen},
          {"checks", std::move(checks)}};
}

Json ulps_json(const std::optional<UlpPercentiles>& ulps) {
  if (!ulps) return nullptr;
  return {{"p50", ulps->p50}, {"p90", ulps->p90}, {"p99", ulps->p99}, {"max", ulps->max}};
}

}  // namespace

Json findings_json(std::span<const Finding> findings) {
  Json out = Json::array();
  for (const Finding& f : findings) {
    const checks::Wording text = checks::wording(f);
    out.push_back({{"check", f.check},
                   {"also", f.also},
                   {"severity", to_string(f.severity)},
                   {"ranks", f.ranks},
                   {"hosts", f.hosts},
                   {"first_step", f.first_step},
                   {"last_step", f.last_step},
                   {"equal_until", step_json(f.equal_until)},
                   {"certain_step", step_json(f.certain_step)},
                   {"confidence", std::isfinite(f.confidence) ? Json(f.confidence) : Json(nullptr)},
                   {"title", f.title},
                   {"sentence", text.sentence},
                   {"consequence", text.consequence},
                   {"evidence_text", text.evidence},
                   {"suspects", f.suspects},
                   {"evidence", evidence_json(f)},
                   {"remedy", f.remedy},
                   {"resembles", f.resembles},
                   {"segment", f.model.segment},
                   {"model_index", f.model.model_index},
                   {"dp_group", f.model.dp_group},
                   {"elsewhere", elsewhere_json(f)}});
  }
  return out;
}

Json checks_json(std::span<const RunLog::Check> checks) {
  Json out = Json::array();
  for (const RunLog::Check& c : checks) {
    out.push_back({{"check", c.record.check},
                   {"state", to_string(c.record.state)},
                   {"reason", c.record.reason},
                   {"segment", c.model.segment},
                   {"model_index", c.model.model_index},
                   {"dp_group", c.model.dp_group}});
  }
  return out;
}

Json segments_json(std::span<const SegmentInfo> segments) {
  Json out = Json::array();
  for (const SegmentInfo& s : segments) {
    const auto code = s.preflight_exit_code;
    out.push_back({{"segment", s.segment},
                   {"started", s.started_utc},
                   {"presum", s.presum_version},
                   {"closed", s.closed},
                   {"preflight_exit_code", code ? Json(*code) : Json(nullptr)},
                   {"incomplete", s.incomplete.empty() ? Json(nullptr) : Json(incomplete_text(s))},
                   {"packets",
                    {{"damaged", s.packets.damaged},
                     {"foreign", s.packets.foreign},
                     {"duplicate", s.packets.duplicate},
                     {"late", s.packets.late}}}});
  }
  return out;
}

Json continuations_json(std::span<const Continuation> continuations) {
  Json out = Json::array();
  for (const Continuation& c : continuations) {
    out.push_back({{"segment", c.model.segment},
                   {"model_index", c.model.model_index},
                   {"dp_group", c.model.dp_group},
                   {"from_segment", c.from_segment ? Json(*c.from_segment) : Json(nullptr)},
                   {"from_step", c.from_step ? Json(*c.from_step) : Json(nullptr)},
                   {"steps_before", c.steps_before},
                   {"detector_steps", c.detector_steps},
                   {"reason", c.reason}});
  }
  return out;
}

Json judgment_json(const Judgment& judgment) {
  return {{"schema_version", kSchemaVersion},
          {"verdict", to_string(judgment.verdict)},
          {"coverage", coverage_json(judgment.coverage)},
          {"segments", segments_json(judgment.segments)},
          {"continuations", continuations_json(judgment.continuations)},
          {"findings", findings_json(judgment.findings)},
          {"checks", checks_json(judgment.checks)},
          {"audits", audits_json(judgment.audits)}};
}

Json audits_json(std::span<const AuditSummary> audits) {
  Json out = Json::array();
  for (const AuditSummary& a : audits) {
    out.push_back({{"segment", a.model.segment},
                   {"model_index", a.model.model_index},
                   {"dp_group", a.model.dp_group},
                   {"first_step", a.first_step},
                   {"last_step", a.last_step},
                   {"steps", a.steps},
                   {"audits", a.audits},
                   {"elements", a.elements},
                   {"differing", a.differing},
                   {"wrong", a.wrong},
                   {"relative_l2", std::isfinite(a.relative_l2) ? Json(a.relative_l2) : Json()},
                   {"ulps", ulps_json(a.ulps)},
                   {"gradient", a.gradient},
                   {"accumulation", a.accumulation},
                   {"order", a.order},
                   {"division", a.division},
                   {"repeated", a.repeated},
                   {"repeats_differing", a.repeats_differing}});
  }
  return out;
}

}  // namespace presum::judge
