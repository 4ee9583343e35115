// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/try.h"
#include "checks/engine/wording.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "judge/judgment.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kCheckHelp =
    "Findings as an exit code, for scripts: one line a finding and one line a run.\n\n"
    "A run that was not closed (still written, or killed) is judged on what it holds, and its\n"
    "line says so.\n\n"
    "Exit code: 0 no finding at the level or above, 1 findings in any of the runs, 2 no such\n"
    "finding, but a run could not be judged (no such run, damaged, no step, one rank, too\n"
    "little evidence), 3 internal error.\n\n"
    "Example: presum check runs/* --fail-on critical";

const std::map<std::string, Severity> kLevels = {
    {"info", Severity::kInfo}, {"warning", Severity::kWarning}, {"critical", Severity::kCritical}};

// CLI11 would show the levels of an enumeration of bytes as characters.
const CLI::Validator kLevel(
    [](std::string& given) {
      return kLevels.contains(given) ? "" : given + " is not info, warning or critical";
    },
    "LEVEL");

struct CheckOptions {
  std::vector<std::string> runs;
  std::string fail_on = "warning";
  std::string require = "facts";
};

struct CheckedRun {
  std::string name;
  judge::Judgment judgment;
};

Result<CheckedRun> read(const std::string& run) {
  PRESUM_ASSIGN(const auto log, RunLog::open(run));
  PRESUM_ASSIGN(const auto steps, log.steps());
  PRESUM_ASSIGN(auto judgment, judge::judge(log, steps));
  return CheckedRun{printable(log.name()), std::move(judgment)};
}

std::string what_lacks(const judge::Judgment& j) {
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

void print(const CheckedRun& run, std::size_t failing, Severity level, std::ostream& out) {
  const judge::Judgment& j = run.judgment;
  for (const Finding& f : j.findings) {
    out << fmt::format("{}: {}: {}: {} ({})\n", run.name, to_string(f.severity), printable(f.check),
                       printable(checks::wording(f).sentence), location_text(f));
  }
  out << fmt::format("{}: {}; {}; {}, {} at or above {}{}\n", run.name, verdict_text(j),
                     coverage_text(j.coverage), count(j.findings.size(), "finding"), failing,
                     to_string(level), what_lacks(j));
}

int judge(const CheckedRun& run, const CheckOptions& options, std::ostream& out) {
  const Severity level = kLevels.at(options.fail_on);
  const auto failing = static_cast<std::size_t>(std::ranges::count_if(
      run.judgment.findings, [&](const Finding& f) { return f.severity >= level; }));
  print(run, failing, level, out);
  if (failing > 0) return kFindings;
  if (options.require == "statistics" && !run.judgment.coverage.statistics_judged()) {
    return kNoVerdict;
  }
  return run.judgment.verdict == Verdict::kConsistent ||
                 run.judgment.verdict == Verdict::kInconsistent
             ? kOk
             : kNoVerdict;
}

// Findings take precedence over a run that could not be judged, and that over a run without
// findings.
int check(const CheckOptions& options, const Streams& io) {
  bool findings = false;
  bool unjudged = false;
  for (const std::string& path : options.runs) {
    const auto run = read(path);
    const int code = run ? judge(*run, options, io.out) : complain(io, "check", run.error());
    findings = findings || code == kFindings;
    unjudged = unjudged || code == kNoVerdict;
  }
  return findings ? kFindings : unjudged ? kNoVerdict : kOk;
}

}  // namespace

void add_check(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<CheckOptions>(
      program, chosen, "check", "findings of runs, as an exit code", kCheckHelp, check);
  command->add_option("RUN", options->runs, "run folders or presum.db files")->required();
  command->add_option("--fail-on", options->fail_on, "info, warning (default) or critical")
      ->check(kLevel);
  command
      ->add_option(
          "--require", options->require,
          "facts (default), or statistics: exit with 2 where the run is too short for them")
      ->check(CLI::IsMember({"facts", "statistics"}));
}

}  // namespace presum::cli
