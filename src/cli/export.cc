// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rows.h"
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
         "Example: presum export demo/sharded-S1-1 --table workers --format csv > workers.csv";
}

struct ExportArguments {
  std::string run;
  std::string table = "steps";
  std::string format = "csv";
};

// A call without cells returns the header.
std::string line(bool csv, std::span<const std::string> columns,
                 std::span<const RunLog::Cell> cells) {
  if (cells.empty()) return csv ? csv_header(columns) : "";
  return csv ? csv_row(cells) : json_row(columns, cells);
}

int export_run(const ExportArguments& arguments, const Streams& io) {
  const auto log = RunLog::open(arguments.run);
  if (!log) return complain(io, "export", log.error());
  const bool csv = arguments.format == "csv";
  const auto done = log->visit_table(
      arguments.table, [&](auto columns, auto cells) { io.out << line(csv, columns, cells); });
  return done ? kOk : complain(io, "export", done.error());
}

}  // namespace

void add_export(CLI::App& program, Command& chosen) {
  const auto [command, arguments] = add_verb<ExportArguments>(
      program, chosen, "export", "a run's tables as CSV or JSON lines", help(), export_run);
  command->add_option("RUN", arguments->run, "run folder or presum.db file")->required();
  command->add_option("--table", arguments->table, "what to write")
      ->check(CLI::IsMember(table_names()))
      ->capture_default_str();
  add_format(command, arguments->format, "csv or jsonl", {"csv", "jsonl"});
}

}  // namespace presum::cli
