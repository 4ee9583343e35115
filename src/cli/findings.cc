// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "judge/continuations.h"
#include "judge/documents.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kFindingsHelp =
    "What is wrong with a run: verdict, findings with the worst first, and the result of every "
    "check.\n\n"
    "  consistent             no finding above information, apart from warnings about time\n"
    "  inconsistent           any other warning, or a critical finding\n"
    "  insufficient-evidence  nothing to compare: one rank, too few steps\n"
    "A check passed (it looked, and its expectation held), was not triggered (armed, but what it\n"
    "looks at did not happen) or was not possible in this run. A finding is evidence, with a\n"
    "confidence, not a proof.\n\n"
    "Exit code: 0 shown, 2 not (no such run, damaged). `presum check` has exit codes for findings."
    "\n\nExample: presum findings runs/train-20260101T120000Z";

struct FindingsOptions {
  std::string run;
  std::string format = "text";
  std::optional<std::uint32_t> segment;
};

struct ReadRun {
  std::string path;  // as the user gave it
  std::string name;
  judge::Judgment judgment;
  std::vector<NoteRecord> notes;
};

Result<ReadRun> read(const FindingsOptions& options) {
  PRESUM_ASSIGN(const auto log, RunLog::open(options.run));
  PRESUM_ASSIGN(auto notes, log.notes());
  PRESUM_ASSIGN(const auto steps, log.steps());
  PRESUM_ASSIGN(auto judgment, judge::judge(log, steps, options.segment));
  if (options.segment && judgment.segments.empty()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} has no segment {}", log.name(), *options.segment));
  }
  std::erase_if(
      notes, [&](const NoteRecord& n) { return options.segment && n.segment != *options.segment; });
  return ReadRun{options.run, log.name(), std::move(judgment), std::move(notes)};
}

const char* noun_of(Severity severity) {
  if (severity == Severity::kCritical) return "critical finding";
  return severity == Severity::kWarning ? "warning" : "note";
}

// "1 critical finding, 2 notes".
std::string findings_summary(std::span<const Finding> findings) {
  std::string out;
  for (const auto severity : {Severity::kCritical, Severity::kWarning, Severity::kInfo}) {
    const auto times = std::ranges::count(findings, severity, &Finding::severity);
    if (times == 0) continue;
    out += out.empty() ? "" : ", ";
    out += count(static_cast<std::uint64_t>(times), noun_of(severity));
  }
  return out.empty() ? "no finding" : out;
}

std::string as_text(const ReadRun& run) {
  const judge::Judgment& j = run.judgment;
  std::string out = fmt::format("{}: {}, {}\n{}", printable(run.name), verdict_text(j),
                                findings_summary(j.findings), coverage_text(j.coverage));
  if (j.segments.size() > 1) out += fmt::format(", {} segments", j.segments.size());
  const auto open = unfinished_text(j);
  out += open.empty() ? "\n" : "; " + open + "\n";
  for (const std::string& text : judge::continuation_texts(j.continuations)) {
    out += printable(text) + '\n';
  }
  out += collection_text(j.segments);
  out += preflights_text(j.segments);
  for (const Finding& finding : j.findings) out += '\n' + finding_text(finding, run.path);
  if (!j.audits.empty()) out += '\n' + audits_text(j.audits);
  if (!j.checks.empty()) out += '\n' + checks_by_state(j.checks);
  if (!run.notes.empty()) out += "\nnotes of the collection:\n";
  for (const NoteRecord& note : run.notes) {
    out += fmt::format("    rank {}: {}\n", note.rank, printable(note.text));
  }
  return out;
}

int show(const FindingsOptions& options, const Streams& io) {
  const auto run = read(options);
  if (!run) return complain(io, "findings", run.error());
  io.out << (options.format == "json" ? json_text(judge::judgment_json(run->judgment))
                                      : as_text(*run));
  return kOk;
}

}  // namespace

void add_findings(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<FindingsOptions>(
      program, chosen, "findings", "what is wrong with a run, and what to do", kFindingsHelp, show);
  command->add_option("RUN", options->run, "run folder or presum.db file")->required();
  add_format(command, options->format, "text or json", {"text", "json"});
  command->add_option("--segment", options->segment, "one segment only: 1, 2, ... by restarts");
}

}  // namespace presum::cli
