// SPDX-License-Identifier: Apache-2.0
#include "cli/findings_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/wording.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using State = CheckRecord::State;

// Rounded down: nearly certain must not show as certain.
std::string percent(double share) {
  if (!std::isfinite(share)) return "-";
  return fmt::format("{:.0f}%", std::floor(std::clamp(share, 0.0, 1.0) * 100));
}

// For anything with a first and a last step.
template <class T>
std::string steps(const T& found) {
  return found.first_step == found.last_step
             ? fmt::format("step {}", found.first_step)
             : fmt::format("steps {}-{}", found.first_step, found.last_step);
}

// "model 2", "models 0-2": the finding's own model and those that show the same.
std::string together(const char* noun, std::uint32_t own, const Finding& finding,
                     std::uint32_t ModelKey::*number) {
  std::set<std::uint32_t> all{own};
  for (const ModelKey& other : finding.elsewhere) all.insert(other.*number);
  if (all.size() == 1) return own == 0 ? "" : fmt::format(", {} {}", noun, own);
  return fmt::format(", {}s {}", noun, ranges({all.begin(), all.end()}));
}

std::string part(const Finding& finding) {
  const auto& model = finding.model;
  const auto segment = model.segment == 1 ? "" : fmt::format(", segment {}", model.segment);
  return segment + together("model", model.model_index, finding, &ModelKey::model_index) +
         together("data-parallel group", model.dp_group, finding, &ModelKey::dp_group);
}

std::string line(const char* label, const std::string& text) {
  return text.empty() ? "" : fmt::format("    {:<11}{}\n", label, text);
}

std::string joined(const std::vector<std::string>& texts) {
  return printable(fmt::format("{}", fmt::join(texts, ", ")));
}

// Further evidence of the same cause, one line each.
std::string also_seen(const Finding& finding) {
  std::string out;
  for (std::size_t i = 1; i < finding.evidence.size(); ++i) {
    const Finding::Evidence& e = finding.evidence[i];
    out += line("also seen", printable(fmt::format("{} ({})", e.sentence, e.check)));
  }
  std::vector<std::string> others = finding.also;
  std::erase_if(others, [&](const std::string& check) {
    return std::ranges::find(finding.evidence, check, &Finding::Evidence::check) !=
           finding.evidence.end();
  });
  out += line("also seen", joined(others));
  return out;
}

const char* meaning_of(std::uint32_t exit_code) {
  if (exit_code == 0) return "consistent";
  return exit_code == 1 ? "inconsistent" : "could not judge";
}

struct Group {
  State state;
  std::string reason;
  std::vector<std::pair<std::string, std::size_t>> checks;  // and the number of models and segments
};

// What a check is waiting for, or why it was not possible; without the final period.
std::string reason_of(const CheckRecord& check) {
  if (check.state == State::kFound || check.state == State::kPassed) return "";
  return check.reason.substr(0, check.reason.find_last_not_of('.') + 1);
}

void add_to(std::vector<Group>& groups, const CheckRecord& check) {
  auto group = std::ranges::find_if(groups, [&](const Group& g) {
    return g.state == check.state && g.reason == reason_of(check);
  });
  if (group == groups.end()) {
    group = groups.insert(groups.end(), {check.state, reason_of(check), {}});
  }
  const auto known =
      std::ranges::find(group->checks, check.check, &std::pair<std::string, std::size_t>::first);
  if (known == group->checks.end()) {
    group->checks.emplace_back(check.check, 1);
  } else {
    ++known->second;
  }
}

std::string line_of(const Group& group, std::size_t parts) {
  std::vector<std::string> names;
  for (const auto& [check, times] : group.checks) {
    names.push_back(times == parts ? check : fmt::format("{} ({} of {})", check, times, parts));
  }
  std::string state = to_string(group.state);
  std::ranges::replace(state, '-', ' ');
  const auto reason = group.reason.empty() ? "" : fmt::format(" ({})", printable(group.reason));
  return fmt::format("{}: {}{}\n", state, joined(names), reason);
}

// Names the run in "presum blame RUN --step 3". A path that a shell would not take as one word
// stays RUN.
std::string with_run(std::string text, const std::string& run) {
  constexpr std::string_view kName = " RUN ";
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_./-+:@").find(c) != std::string_view::npos;
  };
  if (run.empty() || !std::ranges::all_of(run, plain)) return text;
  for (auto at = text.find(kName); at != std::string::npos; at = text.find(kName, at + 1)) {
    text.replace(at + 1, kName.size() - 2, run);
  }
  return text;
}

}  // namespace

std::string count(std::uint64_t value, const char* noun) {
  return fmt::format("{} {}{}", value, noun, value == 1 ? "" : "s");
}

std::string times(std::uint64_t value) {
  if (value == 0) return "never";
  return value == 1 ? "once" : fmt::format("{} times", value);
}

std::string model_text(const ModelKey& model) {
  std::string out;
  if (model.segment != 1) out += fmt::format(", segment {}", model.segment);
  if (model.model_index != 0) out += fmt::format(", model {}", model.model_index);
  if (model.dp_group != 0) out += fmt::format(", data-parallel group {}", model.dp_group);
  return out;
}

std::string location_text(const Finding& finding) {
  const auto on = finding.hosts.empty() ? "" : " on " + hosts(finding.hosts);
  return fmt::format("{}{}{}", ranks(finding.ranks), on, part(finding));
}

std::string finding_text(const Finding& finding, const std::string& run) {
  const checks::Wording said = checks::wording(finding);
  const auto head = fmt::format("{}: {}\n    {}, {}, confidence {}\n", to_string(finding.severity),
                                printable(said.sentence), printable(finding.check),
                                location_text(finding), percent(finding.confidence));
  return head + line("matters", said.consequence) + line("evidence", printable(said.evidence)) +
         line("suspects", printable(finding.suspects)) +
         line("do", with_run(printable(finding.remedy), run)) + also_seen(finding) +
         line("resembles", printable(finding.resembles)) + line("more", with_run(said.more, run));
}

std::string checks_by_state(std::span<const RunLog::Check> checks) {
  std::vector<Group> groups;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> parts;
  for (const RunLog::Check& c : checks) {
    add_to(groups, c.record);
    parts.emplace(c.model.segment, c.model.model_index, c.model.dp_group);
  }
  std::ranges::stable_sort(groups, {}, &Group::state);
  std::string out;
  for (const Group& group : groups) out += line_of(group, parts.size());
  return out;
}

std::string audits_text(std::span<const judge::AuditSummary> audits) {
  std::string out;
  for (const judge::AuditSummary& a : audits) {
    out += fmt::format("the sum, audited {} in {}{}, {} elements in all:\n", times(a.audits),
                       steps(a), model_text(a.model), a.elements);
    out += fmt::format("    {} gradients, added in {}, order {}, division {}\n", a.gradient,
                       a.accumulation, a.order, a.division);
    out += fmt::format(
        "    {} % of the elements are not the correctly rounded ones, {} are wrong; "
        "relative L2 at most {:.3g}\n",
        number(100.0 * static_cast<double>(a.differing) / static_cast<double>(a.elements)), a.wrong,
        a.relative_l2);
    if (a.ulps) {
      out += fmt::format(
          "    units in the last place off: half at most {}, 99 % at most {}, largest {}\n",
          a.ulps->p50, a.ulps->p99, a.ulps->max);
    }
    if (a.repeated > 0) {
      out += fmt::format("    repeated {}, with other bits {}\n", times(a.repeated),
                         times(a.repeats_differing));
    }
  }
  return out;
}

std::string verdict_text(const judge::Judgment& judgment) {
  if (judgment.verdict != Verdict::kInsufficientEvidence) return to_string(judgment.verdict);
  return "insufficient evidence: " + printable(judgment.reason);
}

std::string coverage_text(const judge::Coverage& coverage) {
  const auto lost = coverage.steps_lost;
  return fmt::format("{}{}, {} of {}", count(coverage.steps_logged, "step"),
                     lost == 0 ? "" : fmt::format(" ({} lost)", lost), coverage.workers_seen,
                     count(coverage.workers_expected, "rank"));
}

std::string unfinished_text(const judge::Judgment& judgment) {
  std::vector<std::uint32_t> open;
  for (const SegmentInfo& s : judgment.segments) {
    if (!s.closed && s.incomplete.empty()) open.push_back(s.segment);
  }
  if (open.empty()) return "";
  const auto which = judgment.segments.size() == 1
                         ? ""
                         : fmt::format("segment{} {} ", open.size() == 1 ? "" : "s", ranges(open));
  return fmt::format("{}not closed (still running, or died): judged on the {} written", which,
                     count(judgment.coverage.steps_logged, "step"));
}

std::string shortcomings_text(const judge::Judgment& j) {
  const auto open = unfinished_text(j);
  const auto short_of = judge::statistics_text(j.coverage);
  std::string out = short_of.empty() ? "" : "; " + short_of;
  if (!open.empty()) out += "; " + open;
  // The verdict's reason already says it.
  if (j.verdict == Verdict::kInsufficientEvidence) return out;
  for (const SegmentInfo& s : j.segments) {
    if (!s.incomplete.empty()) out += "; " + printable(incomplete_text(s));
  }
  return out;
}

std::string collection_text(std::span<const SegmentInfo> segments) {
  std::string out;
  for (const SegmentInfo& s : segments) {
    const auto which = segments.size() == 1 ? "" : fmt::format("segment {}: ", s.segment);
    const auto packets = judge::packets_text(s.packets);
    if (!s.incomplete.empty()) {
      out += fmt::format("{}{}\n", which, printable(incomplete_text(s)));
    }
    if (!packets.empty()) out += fmt::format("{}{}\n", which, packets);
  }
  return out;
}

std::string preflights_text(std::span<const SegmentInfo> segments) {
  std::string out;
  for (const SegmentInfo& s : segments) {
    if (!s.preflight_exit_code) continue;
    const auto which = segments.size() == 1 ? "" : fmt::format(" of segment {}", s.segment);
    out += fmt::format("preflight{}: ended with exit code {} ({})\n", which, *s.preflight_exit_code,
                       meaning_of(*s.preflight_exit_code));
  }
  return out;
}

}  // namespace presum::cli
