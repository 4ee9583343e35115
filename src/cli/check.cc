// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/baseline.h"
#include "cli/check_formats.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "judge/judgment.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckHelp =
    "Findings as an exit code, for scripts and CI: one line a finding and one line a run, JSON,\n"
    "annotations of GitHub Actions, or JUnit's XML. Of a folder of runs, every run in it.\n\n"
    "A run that was not closed (still written, or killed) is judged on what it holds, and its\n"
    "line says so.\n\n"
    "A baseline is a JSON file of findings that you know of. Each entry has a reason and a last\n"
    "day; \"ranks\" limits it to findings on those ranks:\n"
    "  {\"ignore\": [{\"check\": \"token-weight\", \"reason\": \"mean of means by design\",\n"
    "               \"expires\": \"2027-03-31\"}]}\n\n"
    "Exit code: 0 no finding at the level or above, 1 findings in any of the runs, 2 no such\n"
    "finding, but a run could not be judged (no such run, damaged, no step, one rank, too\n"
    "little evidence), or the baseline is wrong or expired, 3 internal error.\n\n"
    "Examples:\n"
    "  presum check runs --fail-on critical\n"
    "  presum check runs/nightly --format junit --baseline presum-baseline.json > presum.xml";

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
  std::string format = "text";
  std::string baseline;
};

struct Place {
  std::string path;
  std::string name;   // below the folder that was given; empty if the run itself was
  std::string error;  // why a folder could not be searched
};

// The runs that are named and those in folders, each once and by name. Follows links to folders.
class Search {
 public:
  std::vector<Place> runs_in(const std::string& path) {
    found_.clear();
    searched_.clear();
    has_run_ = false;
    std::error_code error;
    if (fs::is_directory(path, error) && !holds_run(path)) {
      look_into(path);
      for (Place& place : found_) {
        place.name = fs::path(place.path).lexically_relative(path).string();
      }
    }
    if (!has_run_) add(path);  // a run, or reading it says why it is none
    return std::move(found_);
  }

 private:
  // A link that leads nowhere, or a folder that cannot be searched, may be one.
  static bool holds_run(const fs::path& folder) {
    std::error_code error;
    return fs::symlink_status(folder / "presum.db", error).type() != fs::file_type::not_found;
  }

  static std::string true_path(const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    return error ? path.string() : real.string();
  }

  void add(const fs::path& run, const std::string& error = "") {
    has_run_ = true;
    const fs::path folder = run.filename() == "presum.db" ? run.parent_path() : run;
    if (added_.insert(true_path(folder.empty() ? "." : folder)).second) {
      found_.push_back({run.string(), "", error});
    }
  }

  void look_into(const fs::path& folder) {
    if (!searched_.insert(true_path(folder)).second) return;
    std::error_code error;
    std::vector<fs::path> inside;
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      inside.push_back(entry->path());
    }
    if (error) return add(folder, "cannot search " + folder.string() + ": " + error.message());
    std::ranges::sort(inside);
    for (const fs::path& path : inside) {
      if (!fs::is_directory(path, error)) continue;
      if (holds_run(path)) add(path);
      look_into(path);
    }
  }

  std::vector<Place> found_;
  bool has_run_ = false;            // in this path
  std::set<std::string> searched_;  // folders of this path
  std::set<std::string> added_;     // runs of all paths
};

Result<CheckedRun> read(const Place& place) {
  PRESUM_ASSIGN(const auto log, RunLog::open(place.path));
  PRESUM_ASSIGN(const auto steps, log.steps());
  PRESUM_ASSIGN(auto judgment, judge::judge(log, steps));
  const std::string name = place.name.empty() ? log.name() : place.name;
  return CheckedRun{.path = place.path, .name = printable(name), .judgment = std::move(judgment)};
}

int code_of(const CheckedRun& run, const CheckOptions& options) {
  if (run.failing > 0) return kFindings;
  if (options.require == "statistics" && !run.judgment.coverage.statistics_judged()) {
    return kNoVerdict;
  }
  return run.judgment.verdict == Verdict::kInsufficientEvidence ? kNoVerdict : kOk;
}

CheckedRun checked(const Place& place, const CheckOptions& options,
                   std::span<const BaselineEntry> baseline) {
  auto result =
      place.error.empty() ? read(place) : Result<CheckedRun>(fail(ErrorCode::kIo, place.error));
  if (!result) {
    return {.path = place.path,
            .name = printable(place.name.empty() ? place.path : place.name),
            .error = result.error().message,
            .code = kNoVerdict};
  }
  CheckedRun run = *std::move(result);
  for (Finding& finding : judge::set_aside(
           run.judgment, [&](const Finding& f) { return entry_for(baseline, f) != nullptr; })) {
    const BaselineEntry* entry = entry_for(baseline, finding);
    run.ignored.push_back({std::move(finding), entry});
  }
  const Severity level = kLevels.at(options.fail_on);
  run.failing = static_cast<std::size_t>(std::ranges::count_if(
      run.judgment.findings, [&](const Finding& f) { return f.severity >= level; }));
  run.code = code_of(run, options);
  return run;
}

// Findings take precedence over a run that could not be judged, and that over a run without
// findings.
int code_of(std::span<const CheckedRun> runs) {
  const auto any = [&](int code) {
    return std::ranges::find(runs, code, &CheckedRun::code) != runs.end();
  };
  return any(kFindings) ? kFindings : any(kNoVerdict) ? kNoVerdict : kOk;
}

// Whether an entry of the baseline ignored nothing, although every run was judged.
bool is_idle(const BaselineEntry& entry, std::span<const CheckedRun> runs) {
  return std::ranges::all_of(runs, [&](const CheckedRun& run) {
    return run.code != kNoVerdict && std::ranges::none_of(run.ignored, [&](const Ignored& one) {
             return applies(entry, one.finding);
           });
  });
}

// Runs in different folders may have one name; then it is their path.
void tell_apart(std::vector<CheckedRun>& runs) {
  std::map<std::string, int> named;
  for (const CheckedRun& run : runs) ++named[run.name];
  for (CheckedRun& run : runs) {
    if (named[run.name] > 1) run.name = printable(run.path);
  }
}

std::string formatted(const CheckedRuns& runs, const std::string& format) {
  if (format == "json") return json_report(runs);
  if (format == "github") return github_report(runs);
  return format == "junit" ? junit_report(runs) : text_report(runs);
}

std::vector<CheckedRun> all_checked(const CheckOptions& options,
                                    std::span<const BaselineEntry> baseline) {
  Search search;
  std::vector<CheckedRun> out;
  for (const std::string& path : options.runs) {
    for (const Place& place : search.runs_in(path)) {
      out.push_back(checked(place, options, baseline));
    }
  }
  tell_apart(out);
  return out;
}

int check(const CheckOptions& options, const Streams& io) {
  CheckedRuns out{.runs = {}, .level = kLevels.at(options.fail_on)};
  const Result<std::vector<BaselineEntry>> baseline =
      options.baseline.empty() ? std::vector<BaselineEntry>() : read_baseline(options.baseline);
  if (baseline) {
    out.runs = all_checked(options, *baseline);
  } else {
    out.runs.push_back({.path = options.baseline,
                        .name = printable(options.baseline),
                        .error = baseline.error().message,
                        .code = kNoVerdict});
  }
  for (const CheckedRun& run : out.runs) {
    if (!run.error.empty()) complain(io, "check", {ErrorCode::kInvalidArgument, run.error});
  }
  for (std::size_t i = 0; baseline && i < baseline->size(); ++i) {
    if (!is_idle((*baseline)[i], out.runs)) continue;
    io.err << fmt::format("presum check: {}: entry {} ({}) ignored no finding\n",
                          printable(options.baseline), i + 1, (*baseline)[i].check);
  }
  out.code = code_of(out.runs);
  io.out << formatted(out, options.format);
  return out.code;
}

}  // namespace

void add_check(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<CheckOptions>(
      program, chosen, "check", "findings of runs, as an exit code", kCheckHelp, check);
  command->add_option("RUN", options->runs, "run folders, presum.db files, or folders of runs")
      ->required();
  command->add_option("--fail-on", options->fail_on, "info, warning (default) or critical")
      ->check(kLevel);
  command
      ->add_option(
          "--require", options->require,
          "facts (default), or statistics: exit with 2 where the run is too short for them")
      ->check(CLI::IsMember({"facts", "statistics"}));
  add_format(command, options->format, "text, json, github or junit",
             {"text", "json", "github", "junit"});
  command->add_option("--baseline", options->baseline, "a JSON file of findings to ignore");
}

}  // namespace presum::cli
