// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/compare_text.h"
#include "cli/page_file.h"
#include "cli/verb.h"
#include "compare/document.h"
#include "presum/run_log.h"
#include "report/report.h"

namespace presum::cli {
namespace {

constexpr const char* kCompareHelp =
    "Where two runs begin to differ: the first step, and the first stage of it, at which\n"
    "something that both recorded is not the same, bit for bit.\n\n"
    "  configuration      settings of sampler, data set, modes, optimiser, dtypes\n"
    "  data               which samples each worker was given\n"
    "  random generators  states before the step\n"
    "  parameters         and buffers, before the step (a 25th of them, all at step 0)\n"
    "  loss               of each worker and micro-batch\n"
    "  local gradient     of each worker and layer, before the reduction\n"
    "  reduction          the gradient after it (every 25th step: see reduced_every)\n"
    "  final parameters   after the last step\n\n"
    "A parameter is hashed at every 25th recorded step: where it differs, the steps between\n"
    "which it began are told. Steps are aligned by their number, a restart where it went on.\n"
    "With other numbers of workers the samples of all, the reduced gradient and parameters are\n"
    "compared; where all of these are equal, the runs are identical. What could not be compared\n"
    "is listed. Samples compare under one salt only (one user's, or PRESUM_SALT).\n"
    "Machine, versions, times and random generators that nobody drew from are told and do not\n"
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
  ComparedRuns out;
  for (const std::string& run : {options.a, options.b}) {
    PRESUM_ASSIGN(auto log, RunLog::open(run));
    out.runs.push_back(std::move(log));
  }
  PRESUM_ASSIGN(auto comparison, compare::compare(out.runs[0], out.runs[1]));
  out.comparison = std::move(comparison);
  return out;
}

std::string as_json(const compare::Comparison& comparison) {
  constexpr int kIndent = 2;
  return compare::document(comparison)
             .dump(kIndent, ' ', false, nlohmann::json::error_handler_t::replace) +
         '\n';
}

Status write_page(const ComparedRuns& compared, const std::string& file) {
  const auto html = report::page(compared.runs, compare::document(compared.comparison));
  return html ? write_page_file(file, *html) : html.error();
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
  io.out << (options.format == "json" ? as_json(comparison) : comparison_text(comparison));
  return code_of(comparison.outcome);
}

}  // namespace

void add_compare(CLI::App& program, Command& chosen) {
  auto options = std::make_shared<CompareOptions>();
  auto* command = program.add_subcommand("compare", "where two runs begin to differ, and why");
  command->footer(kCompareHelp);
  command->add_option("RUN_A", options->a, "run folder or presum.db file")->required();
  command->add_option("RUN_B", options->b, "likewise")->required();
  add_format(command, options->format, "text or json", {"text", "json"});
  command->add_option("-o,--output", options->output, "also write one HTML page about both");
  choose(command, chosen, options, run);
}

}  // namespace presum::cli
