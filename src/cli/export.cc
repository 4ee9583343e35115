// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/page_file.h"
#include "cli/rows.h"
#include "cli/trace.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

std::vector<std::string> table_names() {
  std::vector<std::string> out;
  for (const TableInfo& table : shown_tables()) out.emplace_back(table.name);
  return out;
}

std::string help() {
  std::string out = "Writes a table of a run to standard output, all its steps and columns.\n\n";
  for (const TableInfo& t : shown_tables()) out += fmt::format("  {:13} {}\n", t.name, t.meaning);
  return out +
         "\nLists and evidence are JSON. docs/runlog_format.md has every column.\n\n"
         "--trace writes where the time of all ranks went instead, as a trace that\n"
         "https://ui.perfetto.dev and chrome://tracing open: a process per rank, a bar per phase "
         "of\n"
         "each step, loss and gradient norm, findings. Every step begins at one common time on "
         "all\n"
         "ranks, since their clocks are never compared (docs/trace.md).\n\n"
         "Example: presum export demo/sharded-S1-1 --table workers --format csv > workers.csv\n"
         "         presum export runs/a --trace -o trace.json";
}

struct ExportArguments {
  std::string run;
  std::string table = "steps";
  std::string format = "csv";
  const CLI::Option* format_option = nullptr;
  bool trace = false;
  std::string output;  // of a trace; empty: standard output
};

// The call without cells is the one for the head.
std::string line(bool csv, std::span<const std::string> columns,
                 std::span<const RunLog::Cell> cells) {
  if (cells.empty()) return csv ? csv_header(columns) : "";
  return csv ? csv_row(cells) : json_row(columns, cells);
}

Status export_table(const RunLog& log, const ExportArguments& arguments, std::ostream& out) {
  const bool csv = arguments.format == "csv";
  return log.visit_table(arguments.table,
                         [&](auto columns, auto cells) { out << line(csv, columns, cells); });
}

Status export_trace(const RunLog& log, const ExportArguments& arguments, std::ostream& out) {
  if (arguments.output.empty()) return write_trace(log, out);
  return write_json_file(arguments.output,
                         [&](std::ostream& file) { return write_trace(log, file); });
}

int export_run(const ExportArguments& arguments, const Streams& io) {
  // By hand: a second excludes() would be listed in help in the order of addresses.
  if (arguments.trace && arguments.format_option->count() > 0) {
    return complain(io, "export",
                    fail(ErrorCode::kInvalidArgument, "a trace is JSON: leave --format out"));
  }
  const auto log = RunLog::open(arguments.run);
  const auto write = arguments.trace ? export_trace : export_table;
  const auto done = log ? write(*log, arguments, io.out) : log.error();
  if (!done) return complain(io, "export", done.error());
  return kOk;
}

}  // namespace

void add_export(CLI::App& program, Command& chosen) {
  const auto [command, arguments] = add_verb<ExportArguments>(
      program, chosen, "export", "a run's tables as CSV or JSON lines, or a trace", help(),
      export_run);
  command->add_option("RUN", arguments->run, "run folder or presum.db file")->required();
  auto* table = command->add_option("--table", arguments->table, "what to write");
  table->check(CLI::IsMember(table_names()))->capture_default_str();
  add_format(command, arguments->format, "csv or jsonl", {"csv", "jsonl"});
  auto* trace = command->add_flag("--trace", arguments->trace, "the time of all ranks, as a trace");
  trace->excludes(table);
  arguments->format_option = command->get_option("--format");
  command->add_option("-o,--output", arguments->output, "write the trace to this file")
      ->needs(trace);
}

}  // namespace presum::cli
