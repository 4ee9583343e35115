// SPDX-License-Identifier: Apache-2.0
// What `presum check` writes, for people and for the systems that run it. All text from a run is
// made printable.
#pragma once

#include <string>
#include <vector>

#include "cli/baseline.h"
#include "judge/judgment.h"

namespace presum::cli {

struct Ignored {
  Finding finding;
  const BaselineEntry* entry;  // of the baseline, which outlives this
};

struct CheckedRun {
  std::string path;
  std::string name;
  std::string error{};  // why it could not be read; empty if it was
  judge::Judgment judgment{};
  std::vector<Ignored> ignored{};  // not in the judgment
  std::size_t failing = 0;         // findings at the asked level or above
  int code = 0;                    // the exit code of this run alone
};

struct CheckedRuns {
  std::vector<CheckedRun> runs;
  Severity level = Severity::kWarning;
  int code = 0;
};

// One line a finding and one line a run.
std::string text_report(const CheckedRuns& checked);
// One object, with the object of `presum findings --format json` for each run.
std::string json_report(const CheckedRuns& checked);
// Workflow commands of GitHub Actions, which become annotations, then the line of the run. Source:
// docs.github.com, "Workflow commands for GitHub Actions".
std::string github_report(const CheckedRuns& checked);
// XML in the form of JUnit as its readers agree on it: a suite for each run, a case for each check
// and one for the verdict. Source: github.com/testmoapp/junitxml.
std::string junit_report(const CheckedRuns& checked);

}  // namespace presum::cli
