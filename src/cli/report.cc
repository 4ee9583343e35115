// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <fmt/format.h>

#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kReportHelp =
    "Writes one HTML file that any browser opens; it loads nothing from a network, so it can be\n"
    "sent to a colleague. Several runs are drawn side by side on a common scale.\n\n"
    "Exit code: 0 written, 2 not (no such run, damaged, cannot write); then FILE is left alone.\n\n"
    "Example: presum report demo/*-S1-* -o demo/report.html";

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output = "report.html";
};

Result<std::string> draw(const std::vector<std::string>& runs) {
  PRESUM_ASSIGN(const auto logs, open_runs(runs));
  return report::page(logs);
}

int report(const ReportOptions& options, const Streams& io) {
  const auto html = draw(options.runs);
  const auto done = html ? replace_file(options.output, *html, kPageStart) : html.error();
  if (!done) return complain(io, "report", done.error());
  io.out << fmt::format("{} ({:.0f} kB)\n", printable(options.output),
                        static_cast<double>(html->size()) / 1000);
  return kOk;
}

}  // namespace

void add_report(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<ReportOptions>(
      program, chosen, "report", "one HTML page about one run or several", kReportHelp, report);
  command->add_option("RUN", options->runs, "run folders or presum.db files")->required();
  command->add_option("-o,--output", options->output, "the file to write")->capture_default_str();
}

}  // namespace presum::cli
