// SPDX-License-Identifier: Apache-2.0
#include "report/judgement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/step_span.h"
#include "base/try.h"
#include "diagnose/diagnoser.h"
#include "report/part.h"

namespace presum::report {
namespace {

using State = CheckRecord::State;

constexpr int kSchemaVersion = 1;
constexpr State kStates[] = {State::kFound, State::kPassed, State::kNotTriggered,
                             State::kNotPossible};

struct Workers {
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;  // at one step
};

// Of one model and segment, over its steps.
Workers count_workers(std::span<const StepRecord> part) {
  Workers most;
  for (const StepRecord& s : part) {
    most.expected = std::max<std::uint64_t>(most.expected, s.workers_expected);
    most.seen = std::max<std::uint64_t>(most.seen, s.workers_seen);
  }
  return most;
}

// Shards of one model are trained by different workers, models of one process by the same.
Workers most_workers(const std::vector<std::span<const StepRecord>>& parts) {
  Workers most;
  Workers model;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StepRecord& first = parts[i].front();
    const bool same = i > 0 && parts[i - 1].front().model.segment == first.model.segment &&
                      parts[i - 1].front().model.module == first.model.module;
    const Workers part = count_workers(parts[i]);
    model = same ? Workers{model.expected + part.expected, model.seen + part.seen} : part;
    if (model.expected > most.expected) most = model;
  }
  return most;
}

Coverage cover(std::span<const StepRecord> steps, const std::vector<RunLog::Check>& checks) {
  Coverage out;
  const auto parts = cut(steps);
  for (const auto& part : parts) {
    base::StepSpan span;
    for (const StepRecord& s : part) span.add(s.step, !s.lacks_packets());
    out.steps_lost += span.lost();
  }
  out.steps_logged = steps.size();
  for (const StepRecord& s : steps) {
    out.steps_compared += s.workers_seen >= 2 && !s.lacks_packets();
  }
  const Workers workers = most_workers(parts);
  out.workers_expected = workers.expected;
  out.workers_seen = workers.seen;
  for (const RunLog::Check& c : checks) ++out.checks.at(static_cast<std::size_t>(c.record.state));
  return out;
}

// How many checks were possible.
std::uint64_t checks_made(const Coverage& coverage) {
  const auto impossible = coverage.checks[static_cast<std::size_t>(State::kNotPossible)];
  return std::accumulate(coverage.checks.begin(), coverage.checks.end(), std::uint64_t{0}) -
         impossible;
}

std::string why_insufficient(const Judgement& judgement) {
  const Coverage& coverage = judgement.coverage;
  for (const SegmentInfo& s : judgement.segments) {
    if (!s.incomplete.empty()) return "the record is " + incomplete_text(s);
  }
  if (coverage.steps_logged == 0) {
    return "no step was recorded (was a backward pass run after attach?)";
  }
  if (coverage.workers_expected == 1) return "one worker: there is nothing to compare";
  if (checks_made(coverage) == 0) {
    return "no check was made: the recording ended before its first findings";
  }
  if (coverage.steps_lost > 0) {
    const bool one = coverage.steps_lost == 1;
    return fmt::format("{} step{} not in the log, or without the packets of some workers",
                       coverage.steps_lost, one ? " is" : "s are");
  }
  return fmt::format("only {} step{} with at least two workers", coverage.steps_compared,
                     coverage.steps_compared == 1 ? "" : "s");
}

Verdict decide(const Judgement& j) {
  const std::uint64_t steps = checks_made(j.coverage) == 0 ? 0 : j.coverage.steps_compared;
  const bool whole = j.coverage.steps_lost == 0 &&
                     std::ranges::all_of(j.segments, &std::string::empty, &SegmentInfo::incomplete);
  return diagnose::verdict(j.findings, steps, whole);
}

struct BySegment {
  bool operator()(const StepRecord& s, std::uint32_t segment) const {
    return s.model.segment < segment;
  }
  bool operator()(std::uint32_t segment, const StepRecord& s) const {
    return segment < s.model.segment;
  }
};

struct ToJson {
  Json operator()(double value) const { return std::isfinite(value) ? Json(value) : Json(nullptr); }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(const std::string& value) const { return value; }
};

Json evidence_json(const Finding& finding) {
  Json out = Json::object();
  for (const auto& [name, value] : finding.evidence) out[name] = std::visit(ToJson{}, value);
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

}  // namespace

Result<Judgement> judge(const RunLog& log, std::span<const StepRecord> steps,
                        std::optional<std::uint32_t> segment) {
  PRESUM_ASSIGN(auto findings, log.findings());
  PRESUM_ASSIGN(auto checks, log.checks());
  PRESUM_ASSIGN(auto segments, log.segments());
  PRESUM_ASSIGN(const auto audits, log.audits());
  Judgement out{.segments = std::move(segments),
                .findings = std::move(findings),
                .checks = std::move(checks),
                .audits = summarise(audits)};
  if (segment) {
    const auto other = [&](const auto& of) { return of.model.segment != *segment; };
    std::erase_if(out.segments, [&](const SegmentInfo& s) { return s.segment != *segment; });
    std::erase_if(out.findings, other);
    std::erase_if(out.checks, other);
    std::erase_if(out.audits, other);
    const auto [first, last] = std::equal_range(steps.begin(), steps.end(), *segment, BySegment());
    steps = {first, last};
  }
  out.coverage = cover(steps, out.checks);
  out.verdict = decide(out);
  if (out.verdict == Verdict::kInsufficientEvidence) out.reason = why_insufficient(out);
  return out;
}

std::string packets_text(const PacketCounts& packets) {
  std::vector<std::string> out;
  const auto say = [&](std::uint64_t count, const char* what) {
    if (count > 0) out.push_back(fmt::format("{} packet{} {}", count, count == 1 ? "" : "s", what));
  };
  say(packets.late, "arrived late");
  say(packets.duplicate, "came twice");
  say(packets.damaged, "damaged");
  say(packets.foreign, "of another run");
  return fmt::format("{}", fmt::join(out, ", "));
}

Json findings_json(std::span<const Finding> findings) {
  Json out = Json::array();
  for (const Finding& f : findings) {
    out.push_back({{"check", f.check},
                   {"also", f.also},
                   {"severity", to_string(f.severity)},
                   {"ranks", f.ranks},
                   {"hosts", f.hosts},
                   {"first_step", f.first_step},
                   {"last_step", f.last_step},
                   {"confidence", ToJson{}(f.confidence)},
                   {"title", f.title},
                   {"evidence", evidence_json(f)},
                   {"remedy", f.remedy},
                   {"resembles", f.resembles},
                   {"segment", f.model.segment},
                   {"module", f.model.module},
                   {"shard", f.model.shard}});
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
                   {"module", c.model.module},
                   {"shard", c.model.shard}});
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

Json judgement_json(const Judgement& judgement) {
  return {{"schema_version", kSchemaVersion},
          {"verdict", to_string(judgement.verdict)},
          {"coverage", coverage_json(judgement.coverage)},
          {"segments", segments_json(judgement.segments)},
          {"findings", findings_json(judgement.findings)},
          {"checks", checks_json(judgement.checks)},
          {"audits", audits_json(judgement.audits)}};
}

}  // namespace presum::report
