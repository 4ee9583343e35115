// SPDX-License-Identifier: Apache-2.0
#include "judge/judgment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/try.h"
#include "judge/recording_process.h"

namespace presum::judge {
namespace {

CheckCounts count(std::span<const RunLog::Check> checks) {
  CheckCounts out{};
  for (const RunLog::Check& c : checks) ++out.at(static_cast<std::size_t>(c.record.state));
  return out;
}

std::string why_insufficient(const Judgment& judgment) {
  const Coverage& coverage = judgment.coverage;
  for (const SegmentInfo& s : judgment.segments) {
    if (!s.incomplete.empty()) return "the record is " + incomplete_text(s);
  }
  const bool open = !judgment.segments.empty() && !judgment.segments.back().closed;
  if (coverage.steps_logged == 0 && open) {
    return "no step was recorded: the recording has just begun, or its process died within a "
           "second of it, or it was copied without the files beside it";
  }
  if (coverage.steps_logged == 0) {
    return "no step was recorded (was loss.backward() called after attach, on what the attached "
           "model itself returned? torch.autograd.grad is not seen; in manual mode "
           "before_reduction() and after_reduction() make a step)";
  }
  if (coverage.workers_expected == 1) return "one rank: there is nothing to compare";
  if (coverage.checks_made() == 0) {
    return "no check was made: the recording ended before its first findings";
  }
  if (coverage.steps_lost > 0) {
    const bool one = coverage.steps_lost == 1;
    return fmt::format("{} step{} not in the log, or without the packets of some ranks",
                       coverage.steps_lost, one ? " is" : "s are");
  }
  return fmt::format("only {} step{} with at least two ranks", coverage.steps_compared,
                     coverage.steps_compared == 1 ? "" : "s");
}

constexpr std::uint64_t kSlack = 50;  // in steps

bool same_cause(const Finding& a, const Finding& b) {
  const bool at_once = a.first_step <= b.last_step + kSlack && b.first_step <= a.last_step + kSlack;
  const bool same_model =
      a.model.model_index == b.model.model_index && a.model.dp_group == b.model.dp_group;
  return a.model.segment == b.model.segment && !same_model && a.check == b.check &&
         a.severity == b.severity && a.ranks == b.ranks && at_once;
}

// The recording process has ended without marking the record, so what it had not written is
// missing.
void note_lost_recorder(const RunLog& log, std::span<const StepRecord> steps, SegmentInfo& last) {
  if (last.closed || !last.incomplete.empty() || !recorder_is_gone(log, last.segment)) return;
  last.incomplete = "the process that recorded is gone: killed, crashed, or ended by os._exit()";
  for (const StepRecord& s : steps) {
    if (s.model.segment == last.segment) {
      last.incomplete_after = std::max(last.incomplete_after.value_or(0), s.step);
    }
  }
}

void decide(Judgment& judgment) {
  const bool complete =
      std::ranges::all_of(judgment.segments, &std::string::empty, &SegmentInfo::incomplete);
  judgment.verdict = verdict(judgment.findings, judgment.coverage, complete);
  const bool open = judgment.verdict == Verdict::kInsufficientEvidence;
  judgment.reason = open ? why_insufficient(judgment) : "";
}

}  // namespace

std::vector<Finding> one_per_cause(std::vector<Finding> findings) {
  std::vector<Finding> out;
  for (Finding& finding : findings) {
    const auto same =
        std::ranges::find_if(out, [&](const Finding& other) { return same_cause(other, finding); });
    if (same == out.end()) {
      out.push_back(std::move(finding));
      continue;
    }
    same->first_step = std::min(same->first_step, finding.first_step);
    same->last_step = std::max(same->last_step, finding.last_step);
    same->confidence = std::max(same->confidence, finding.confidence);
    same->elsewhere.push_back(finding.model);
  }
  return out;
}

Result<Judgment> judge(const RunLog& log, std::span<const StepRecord> steps,
                       std::optional<std::uint32_t> segment) {
  PRESUM_ASSIGN(auto findings, log.findings());
  PRESUM_ASSIGN(auto checks, log.checks());
  PRESUM_ASSIGN(auto segments, log.segments());
  PRESUM_ASSIGN(auto continuations, log.continuations());
  PRESUM_ASSIGN(const auto audits, log.audits());
  Judgment out{.segments = std::move(segments),
               .continuations = std::move(continuations),
               .findings = one_per_cause(std::move(findings)),
               .checks = std::move(checks),
               .audits = summarize(audits)};
  if (segment) {
    const auto other = [&](const auto& of) { return of.model.segment != *segment; };
    std::erase_if(out.segments, [&](const SegmentInfo& s) { return s.segment != *segment; });
    std::erase_if(out.continuations, other);
    std::erase_if(out.findings, other);
    std::erase_if(out.checks, other);
    std::erase_if(out.audits, other);
    const auto segment_of = [](const StepRecord& step) { return step.model.segment; };
    const auto first = std::ranges::lower_bound(steps, *segment, {}, segment_of);
    steps = {first, std::ranges::upper_bound(steps, *segment, {}, segment_of)};
  }
  if (!out.segments.empty()) note_lost_recorder(log, steps, out.segments.back());
  out.coverage = cover(models_of(steps), out.continuations, count(out.checks));
  decide(out);
  return out;
}

std::vector<Finding> set_aside(Judgment& judgment,
                               const std::function<bool(const Finding&)>& ignored) {
  auto& findings = judgment.findings;
  const auto first = std::stable_partition(
      findings.begin(), findings.end(), [&](const Finding& finding) { return !ignored(finding); });
  std::vector<Finding> out(std::make_move_iterator(first), std::make_move_iterator(findings.end()));
  findings.erase(first, findings.end());
  decide(judgment);
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

}  // namespace presum::judge
