// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/output_file.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "compare/document.h"
#include "compare/wording.h"
#include "presum/run_log.h"
#include "report/report.h"

namespace presum::cli {
namespace {

using compare::Comparison;
using compare::Difference;
using compare::Evidence;
using compare::FactDifference;
using compare::ModelComparison;
using compare::Outcome;
using compare::RecordedSteps;
using compare::Stage;
using compare::StageSummary;

constexpr const char* kCompareHelp =
    "Where two runs begin to differ: the first step, and the first stage of it, at which\n"
    "something that both recorded is not the same, bit for bit.\n\n"
    "  configuration      settings of sampler, dataset, modes, optimizer, dtypes\n"
    "  data               which samples each rank was given\n"
    "  random generators  states before the step\n"
    "  parameters         and buffers, before the step (a 25th of them, all at step 0)\n"
    "  token weight       what one target weighs in each rank's loss\n"
    "  loss               of each rank and micro-batch\n"
    "  local gradient     of each rank and layer, before the reduction\n"
    "  reduction          the gradient after it (every 25th step: see reduced_every)\n"
    "  final parameters   after the last step\n\n"
    "A parameter is hashed at every 25th recorded step: where it differs, the steps between\n"
    "which it began are shown. Steps are aligned by their number, a restart where it continued.\n"
    "With different numbers of ranks the samples of all, the reduced gradient and parameters are\n"
    "compared; where all of these are equal, the runs are identical. What could not be compared\n"
    "is listed. Samples compare under one salt only (one user's, or PRESUM_SALT).\n"
    "Machine, versions, times and random generators that were not used are shown and do not\n"
    "make runs different.\n\n"
    "Exit code: 0 identical in all that was compared, 1 different, 2 could not be compared (no\n"
    "such run, damaged, nothing in common), 3 internal error.\n\n"
    "Example: presum compare runs/monday runs/tuesday -o difference.html";

struct CompareOptions {
  std::string a;
  std::string b;
  std::string format = "text";
  std::string output;
};

struct ComparedRuns {
  std::vector<RunLog> runs;
  compare::Comparison comparison;
};

Result<ComparedRuns> read(const CompareOptions& options) {
  PRESUM_ASSIGN(auto runs, open_runs({options.a, options.b}));
  PRESUM_ASSIGN(auto comparison, compare::compare(runs[0], runs[1]));
  return ComparedRuns{std::move(runs), std::move(comparison)};
}

std::string words(Stage stage) {
  std::string out(compare::to_string(stage));
  std::ranges::replace(out, '-', ' ');
  return out;
}

std::string who(const Difference& d) {
  if (d.ranks.empty()) return "";
  return d.all_ranks && d.ranks.size() > 1 ? "all ranks: " : ranks(d.ranks) + ": ";
}

// "step 42", "after the last step, 99".
std::string when(Stage stage, const Difference& d) {
  return stage == Stage::kFinal ? fmt::format("after the last step, {}", d.step)
                                : fmt::format("step {}", d.step);
}

// " (last seen equal at step 38)".
std::string last_seen(Stage stage, const Difference& d) {
  const std::uint64_t before = d.step - (stage == Stage::kFinal ? 0 : 1);
  if (!d.last_seen || *d.last_seen >= before) return "";
  return fmt::format(" (last seen equal at step {})", *d.last_seen);
}

std::string part(const Comparison& c, const ModelComparison& m) {
  return c.models.size() == 1 ? "" : compare::model_name(m.model_index, m.dp_group) + ": ";
}

std::string identical_until(const ModelComparison& m) {
  const Difference& d = *m.at(*m.first).first;
  if (!m.last_identical) return "";
  const bool parameters = *m.first == Stage::kParameters || *m.first == Stage::kFinal;
  const bool in_turn = parameters && d.last_seen == m.last_identical;
  return in_turn || *m.last_identical + 1 >= d.step
             ? fmt::format("identical up to step {}; ", *m.last_identical)
             : fmt::format("identical at the common steps up to {}; ", *m.last_identical);
}

std::string headline(const Comparison& c) {
  if (c.outcome == Outcome::kNotComparable)
    return "not comparable: " + compare::obstacle_text(c) + "\n";
  const ModelComparison* m = c.first();
  if (m == nullptr) return compare::agreement_text(c) + "\n";
  const Difference& d = *m->at(*m->first).first;
  const auto* const found = m->bracket ? "first difference seen" : "first difference";
  const auto* const at = *m->first == Stage::kFinal ? "" : "at ";
  return fmt::format("different: {}{}{} {}{}, {}, {}{}{}\n", part(c, *m), identical_until(*m),
                     found, at, when(*m->first, d), words(*m->first), who(d),
                     printable(compare::what_text(d)),
                     m->bracket ? " (" + compare::bracket_text(*m) + ")" : "");
}

std::string evidence_lines(const Difference& d, std::size_t most, const char* indent) {
  std::string out;
  for (const Evidence& e : d.evidence) {
    if (most-- == 0) break;
    const bool same = e.ranks.empty() || e.ranks == d.ranks;
    out += fmt::format("{}{}{}\n", indent, same ? "" : ranks(e.ranks) + ": ",
                       printable(compare::evidence_text(e)));
  }
  return out;
}

std::string unseen_line(const ModelComparison& m) {
  std::string names;
  for (const Stage stage : m.unseen) names += (names.empty() ? "" : ", ") + words(stage);
  return names.empty() ? "" : fmt::format("    not compared at that step: {}\n", names);
}

std::string number_line(const ModelComparison& m) {
  if (!m.first_number || m.first == m.first_number) return "";
  const Difference& d = *m.at(*m.first_number).first;
  constexpr std::size_t kShown = 2;
  return fmt::format("    first in numbers: {}{}, {}, {}{}\n{}", when(*m.first_number, d),
                     last_seen(*m.first_number, d), words(*m.first_number), who(d),
                     printable(compare::what_text(d)), evidence_lines(d, kShown, "        "));
}

std::string first_text(const ModelComparison& m) {
  const Difference& first = *m.at(*m.first).first;
  const auto between = compare::between_text(m);
  return evidence_lines(first, first.evidence.size(), "    ") + unseen_line(m) + number_line(m) +
         (between.empty() ? "" : fmt::format("    between: {}\n", between));
}

std::string side_text(const char* name, const std::string& run, const RecordedSteps& s) {
  return fmt::format("{}: {}, {} ({} to {}), {}\n", name, printable(run), count(s.steps, "step"),
                     s.first_step, s.last_step, count(s.workers, "rank"));
}

std::string stage_line(const ModelComparison& m, std::size_t index, std::size_t width) {
  const auto stage = static_cast<Stage>(index);
  const StageSummary& s = m.stages[index];
  std::string first = s.compared == 0 ? "not compared" : "equal";
  if (s.first) {
    first = fmt::format("{}{}: {}{}", when(stage, *s.first), last_seen(stage, *s.first),
                        who(*s.first), printable(compare::what_text(*s.first)));
  }
  const auto* const mark = m.first == stage ? " <- first" : "";
  return fmt::format("{:<{}}  {:>8}  {:>9}  {}{}\n", words(stage), width, s.compared, s.differing,
                     first, mark);
}

std::string stages_table(const ModelComparison& m) {
  std::size_t width = 0;
  for (std::size_t s = 0; s < compare::kStages; ++s) {
    width = std::max(width, words(static_cast<Stage>(s)).size());
  }
  std::string out = fmt::format("{:<{}}  {:>8}  {:>9}  {}\n", "stage", width, "compared",
                                "differing", "first difference");
  for (std::size_t s = 0; s < compare::kStages; ++s) out += stage_line(m, s, width);
  return out;
}

std::string listed(const char* title, const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += fmt::format("    {}\n", printable(line));
  return out.empty() ? "" : fmt::format("{}\n{}", title, out);
}

std::string value(const std::vector<std::string>& values) {
  constexpr std::size_t kShown = 80;
  const auto text = compare::fact_text(values);
  if (text.empty()) return "unset";
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

std::string facts_text(const Comparison& c, FactDifference::Weight weight, const char* title) {
  std::vector<std::string> lines;
  for (const FactDifference& f : c.facts) {
    if (f.weight != weight) continue;
    const auto on = f.ranks.empty() || f.all_ranks ? "" : " (" + ranks(f.ranks) + ")";
    lines.push_back(fmt::format("{}: {} in A, {} in B{}", f.key, value(f.a), value(f.b), on));
  }
  return listed(title, lines);
}

std::vector<std::string> time_row(const char* name, const compare::TimeDifference& d) {
  constexpr double kMilliseconds = 1e3;
  const auto interval = std::isnan(d.low) ? std::string("-")
                                          : fmt::format("{:+.2f} to {:+.2f}", kMilliseconds * d.low,
                                                        kMilliseconds * d.high);
  return {name, fmt::format("{:.2f}", kMilliseconds * d.a),
          fmt::format("{:.2f}", kMilliseconds * d.b),
          fmt::format("{:+.2f}", kMilliseconds * (d.b - d.a)), interval};
}

std::string times_table(const ModelComparison& m) {
  if (!m.times) return "";
  std::vector<std::vector<std::string>> rows = {{"ms a step", "A", "B", "B - A", "95% interval"},
                                                time_row("own time", m.times->own)};
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    rows.push_back(
        time_row(phase == Phase::kReduction ? "waiting" : to_string(phase), m.times->phases[p]));
  }
  return fmt::format("time, at {} (makes no runs different): {}\n{}",
                     count(m.times->steps, "common step"), compare::times_text(m), table(rows));
}

std::string model_text(const Comparison& c, const ModelComparison& m) {
  const auto title =
      c.models.size() == 1 ? "" : compare::model_name(m.model_index, m.dp_group) + "\n";
  return title + side_text("A", c.a, m.a) + side_text("B", c.b, m.b) + stages_table(m) +
         times_table(m) + (c.models.size() > 1 && m.first ? first_text(m) : "") +
         listed("also to know:", compare::remark_texts(m)) +
         listed("not compared:", compare::not_compared_texts(m)) + '\n';
}

std::string comparison_text(const Comparison& c) {
  std::string out = headline(c);
  if (c.models.size() == 1 && c.models.front().first) out += first_text(c.models.front());
  out += '\n';
  for (const ModelComparison& m : c.models) out += model_text(c, m);
  using Weight = FactDifference::Weight;
  out += facts_text(c, Weight::kDefining, "settings that differ:");
  out += facts_text(c, Weight::kEnvironment, "environments differ (a possible cause):");
  out += facts_text(c, Weight::kRecording, "recorded in another way:");
  return out + listed("in one run only:", compare::not_compared_texts(c));
}

Status write_page(const ComparedRuns& compared, const std::string& file) {
  const auto html = report::page(compared.runs, compare::document(compared.comparison));
  return html ? replace_file(file, *html, kPageStart) : html.error();
}

int code_of(compare::Outcome outcome) {
  constexpr std::array kCodes = {kOk, kFindings, kNoVerdict};
  return kCodes[static_cast<std::size_t>(outcome)];
}

int run(const CompareOptions& options, const Streams& io) {
  const auto compared = read(options);
  auto done = compared ? Status{} : compared.error();
  if (done && !options.output.empty()) done = write_page(*compared, options.output);
  if (!done) return complain(io, "compare", done.error());
  const auto& comparison = compared->comparison;
  io.out << (options.format == "json" ? json_text(compare::document(comparison))
                                      : comparison_text(comparison));
  return code_of(comparison.outcome);
}

}  // namespace

void add_compare(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<CompareOptions>(
      program, chosen, "compare", "where two runs begin to differ", kCompareHelp, run);
  command->add_option("RUN_A", options->a, "run folder or presum.db file")->required();
  command->add_option("RUN_B", options->b, "likewise")->required();
  add_format(command, options->format, "text or json", {"text", "json"});
  command->add_option("-o,--output", options->output, "also write one HTML page about both");
}

}  // namespace presum::cli
