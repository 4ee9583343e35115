// SPDX-License-Identifier: Apache-2.0
#include "cli/check_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "checks/engine/wording.h"
#include "cli/cli.h"
#include "cli/findings_text.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "judge/documents.h"

namespace presum::cli {
namespace {

using State = CheckRecord::State;

std::string sentence_of(const Finding& finding) {
  return fmt::format("{} ({})", printable(checks::wording(finding).sentence),
                     location_text(finding));
}

std::string run_line(const CheckedRun& run, Severity level) {
  const judge::Judgment& j = run.judgment;
  const std::string ignored =
      run.ignored.empty() ? "" : " but for " + count(run.ignored.size(), "ignored finding");
  return fmt::format("{}: {}{}; {}; {}, {} at or above {}{}\n", run.name, verdict_text(j), ignored,
                     coverage_text(j.coverage), count(j.findings.size(), "finding"), run.failing,
                     to_string(level), shortcomings_text(j));
}

std::string until(const BaselineEntry& entry) {
  return fmt::format("ignored until {}: {}", entry.expires, printable(entry.reason));
}

// The checks that a finding explains: they have no finding of their own.
std::string effects_of(const Finding& finding) {
  if (finding.also.empty()) return "";
  return printable(fmt::format("; also {}", fmt::join(finding.also, ", ")));
}

// Why a run without a failing finding did not pass.
std::string why_not_judged(const CheckedRun& run) {
  if (!run.error.empty()) return printable(run.error);
  const auto short_of = judge::statistics_text(run.judgment.coverage);
  return run.judgment.reason.empty() ? short_of : printable(run.judgment.reason);
}

judge::Json run_json(const CheckedRun& run) {
  judge::Json out = {{"run", run.path},
                     {"exit_code", run.code},
                     {"error", run.error.empty() ? judge::Json(nullptr) : judge::Json(run.error)},
                     {"failing", run.failing},
                     {"ignored", judge::Json::array()},
                     {"judgment", nullptr}};
  if (!run.error.empty()) return out;
  for (const auto& [finding, entry] : run.ignored) {
    judge::Json one = judge::findings_json({&finding, 1})[0];
    one["reason"] = entry->reason;
    one["expires"] = entry->expires;
    out["ignored"].push_back(std::move(one));
  }
  out["judgment"] = judge::judgment_json(run.judgment);
  return out;
}

std::string replaced(std::string_view text,
                     std::initializer_list<std::pair<char, std::string_view>> pairs) {
  std::string out;
  for (const char c : text) {
    const auto pair = std::ranges::find(pairs, c, &std::pair<char, std::string_view>::first);
    out += pair == pairs.end() ? std::string_view(&c, 1) : pair->second;
  }
  return out;
}

// "##[" begins a command anywhere in a line, in its older form.
std::string no_command(std::string text) {
  for (auto at = text.find("##["); at != std::string::npos; at = text.find("##[", at)) {
    text.replace(at, 3, "# #[");
  }
  return text;
}

// A property of a workflow command ends at a comma or a colon.
std::string annotation(const char* kind, std::string_view title, std::string_view text) {
  return no_command(fmt::format("::{} title={}::{}\n", kind,
                                replaced(title, {{'%', "%25"}, {':', "%3A"}, {',', "%2C"}}),
                                replaced(text, {{'%', "%25"}})));
}

const char* annotation_kind(Severity severity, Severity level) {
  if (severity >= level) return "error";
  return severity == Severity::kInfo ? "notice" : "warning";
}

std::string xml(std::string_view text) {
  return replaced(
      text, {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&apos;"}});
}

struct Case {
  std::string name;
  std::string_view kind{};  // "failure", "error", "skipped"; empty: it passed
  std::string message{};
  std::string details{};
};

// Of a check over all models and segments.
Case case_of(const std::string& check, std::span<const RunLog::Check* const> records,
             const CheckedRun& run, Severity level) {
  Case out{.name = printable(check)};
  for (const Finding& f : run.judgment.findings) {
    if (f.check != check) continue;
    const bool fails = f.severity >= level;
    if (fails && out.kind.empty()) out.message = printable(f.title);
    if (fails) out.kind = "failure";
    out.details += fmt::format("{}: {}{}\n", to_string(f.severity), sentence_of(f), effects_of(f));
  }
  for (const auto& [finding, entry] : run.ignored) {
    if (finding.check != check) continue;
    if (out.kind.empty()) {
      out.kind = "skipped";
      out.message = until(*entry);
    }
    out.details += fmt::format("{}: {}{}: {}\n", to_string(finding.severity), sentence_of(finding),
                               effects_of(finding), until(*entry));
  }
  const auto state = [](const RunLog::Check* one) { return one->record.state; };
  if (out.details.empty() && std::ranges::find(records, State::kFound, state) != records.end()) {
    out.kind = "skipped";
    out.message = "violated: it is an effect of another check's finding";
    return out;
  }
  const bool looked = std::ranges::any_of(records, [&](const RunLog::Check* one) {
    return state(one) == State::kPassed || state(one) == State::kFound;
  });
  if (!out.kind.empty() || looked || records.empty()) return out;
  out.kind = "skipped";
  out.message = fmt::format("{}: {}", to_string(state(records.front())),
                            printable(records.front()->record.reason));
  return out;
}

Case verdict_case(const CheckedRun& run, Severity level) {
  Case out{.name = "verdict"};
  if (run.code == kNoVerdict) {
    out.kind = "error";
    out.message = why_not_judged(run);
  } else {
    out.details = run_line(run, level);
  }
  return out;
}

std::vector<Case> cases_of(const CheckedRun& run, Severity level) {
  std::map<std::string, std::vector<const RunLog::Check*>> checks;
  for (const RunLog::Check& c : run.judgment.checks) checks[c.record.check].push_back(&c);
  for (const Finding& f : run.judgment.findings) checks[f.check];
  for (const Ignored& one : run.ignored) checks[one.finding.check];
  std::vector<Case> out = {verdict_case(run, level)};
  for (const auto& [check, records] : checks) {
    out.push_back(case_of(check, records, run, level));
  }
  return out;
}

std::string case_xml(const Case& one, const std::string& run) {
  const auto head =
      fmt::format(R"(    <testcase classname="{}" name="{}")", xml(run), xml(one.name));
  if (one.kind.empty() && one.details.empty()) return head + "/>\n";
  if (one.kind.empty()) {
    return fmt::format("{}>\n      <system-out>{}</system-out>\n    </testcase>\n", head,
                       xml(one.details));
  }
  return fmt::format("{}>\n      <{} message=\"{}\">{}</{}>\n    </testcase>\n", head, one.kind,
                     xml(one.message), xml(one.details), one.kind);
}

std::string counts_xml(std::span<const Case> cases) {
  const auto of = [&](std::string_view kind) {
    return std::ranges::count(cases, kind, &Case::kind);
  };
  return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}")", cases.size(),
                     of("failure"), of("error"), of("skipped"));
}

}  // namespace

std::string text_report(const CheckedRuns& checked) {
  std::string out;
  for (const CheckedRun& run : checked.runs) {
    if (!run.error.empty()) continue;  // a line on standard error
    for (const Finding& f : run.judgment.findings) {
      out += fmt::format("{}: {}: {}: {}\n", run.name, to_string(f.severity), printable(f.check),
                         sentence_of(f));
    }
    for (const auto& [finding, entry] : run.ignored) {
      out += fmt::format("{}: {}: {}: {}{}\n", run.name, until(*entry), printable(finding.check),
                         sentence_of(finding), effects_of(finding));
    }
    out += run_line(run, checked.level);
  }
  return out;
}

std::string json_report(const CheckedRuns& checked) {
  judge::Json runs = judge::Json::array();
  for (const CheckedRun& run : checked.runs) runs.push_back(run_json(run));
  return json_text({{"exit_code", checked.code},
                    {"fail_on", to_string(checked.level)},
                    {"runs", std::move(runs)}});
}

std::string github_report(const CheckedRuns& checked) {
  std::string out;
  for (const CheckedRun& run : checked.runs) {
    for (const Finding& f : run.judgment.findings) {
      out += annotation(annotation_kind(f.severity, checked.level),
                        fmt::format("presum: {}", printable(f.check)),
                        fmt::format("{}: {} {}", run.name, sentence_of(f), printable(f.remedy)));
    }
    if (run.code == kNoVerdict) {
      out += annotation("error", "presum: not judged",
                        fmt::format("{}: {}", run.name, why_not_judged(run)));
    }
    const std::string open = unfinished_text(run.judgment);
    if (!open.empty()) {
      out += annotation("warning", "presum: not closed", fmt::format("{}: {}", run.name, open));
    }
    if (run.error.empty()) out += no_command("presum: " + run_line(run, checked.level));
  }
  return out;
}

std::string junit_report(const CheckedRuns& checked) {
  std::string suites;
  std::vector<Case> all;
  for (const CheckedRun& run : checked.runs) {
    const std::vector<Case> cases = cases_of(run, checked.level);
    suites += fmt::format("  <testsuite name=\"{}\" {}>\n", xml(run.name), counts_xml(cases));
    for (const Case& one : cases) suites += case_xml(one, run.name);
    suites += "  </testsuite>\n";
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"presum\" {}>\n{}"
      "</testsuites>\n",
      counts_xml(all), suites);
}

}  // namespace presum::cli
