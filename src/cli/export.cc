// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <csignal>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/prometheus.h"
#include "cli/rows.h"
#include "cli/text.h"
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
  std::string out =
      "Writes a table of a run to standard output, all its steps and columns; or the last step for "
      "Prometheus.\n\n";
  for (const TableInfo& t : shown_tables()) out += fmt::format("  {:13} {}\n", t.name, t.meaning);
  return out +
         "\nLists and evidence are JSON. docs/runlog_format.md has every column.\n\n"
         "Example: presum export demo/sharded-S1-1 --table workers --format csv > workers.csv\n"
         "\nWith --prometheus: metrics of the last step, findings and stalls, in the form that the "
         "node\n"
         "exporter's textfile collector reads. With --follow the file is kept up to date and "
         "deleted\n"
         "when the run ends. Alert rules and a Grafana dashboard: docs/prometheus/.\n\n"
         "Example: presum export runs/a --prometheus /var/lib/node_exporter/presum.prom --follow";
}

struct ExportArguments {
  std::string run;
  std::string table = "steps";
  std::string format = "csv";
  std::string prometheus;
  bool follow = false;
};

volatile std::sig_atomic_t signal_number = 0;

extern "C" void note_signal(int number) { signal_number = number; }

// While this exists, a signal that asks the process to end is only noted.
class NotedSignals {
 public:
  NotedSignals() {
    signal_number = 0;
    for (const int number : kSignals) std::signal(number, note_signal);
  }
  ~NotedSignals() {
    for (const int number : kSignals) std::signal(number, SIG_DFL);
  }
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
};

void wait_for_signal(std::chrono::milliseconds longest) {
  constexpr std::chrono::milliseconds kPart{100};
  for (auto waited = kPart; signal_number == 0 && waited <= longest; waited += kPart) {
    std::this_thread::sleep_for(kPart);
  }
}

int follow(const ExportArguments& arguments, const Streams& io) {
  constexpr std::chrono::milliseconds kInterval{5000};  // a scrape is rarely more frequent
  const NotedSignals noted;
  PrometheusFile file(arguments.run, arguments.prometheus);
  bool waits = false;
  for (bool first = true; signal_number == 0; first = false) {
    const auto closed = file.update();
    const bool is_absent = !closed && closed.error().code == ErrorCode::kNotFound;
    if (!closed && !is_absent) {
      file.remove();
      return complain(io, "export", closed.error());
    }
    if (is_absent && !std::exchange(waits, true)) {
      io.err << "presum export: waiting for " << printable(arguments.run) << '\n' << std::flush;
    }
    if (closed && *closed) {
      if (first) io.err << "presum export: " << printable(arguments.run) << " has already ended\n";
      break;
    }
    wait_for_signal(kInterval);
  }
  file.remove();
  return kOk;
}

int export_metrics(const ExportArguments& arguments, const Streams& io) {
  if (arguments.follow) return follow(arguments, io);
  const auto done = PrometheusFile(arguments.run, arguments.prometheus).update();
  return done ? kOk : complain(io, "export", done.error());
}

// A call without cells returns the header.
std::string line(bool csv, std::span<const std::string> columns,
                 std::span<const RunLog::Cell> cells) {
  if (cells.empty()) return csv ? csv_header(columns) : "";
  return csv ? csv_row(cells) : json_row(columns, cells);
}

int export_run(const ExportArguments& arguments, const Streams& io) {
  if (!arguments.prometheus.empty()) return export_metrics(arguments, io);
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
      program, chosen, "export", "a run's tables as CSV or JSON lines; metrics for Prometheus",
      help(), export_run);
  command->add_option("RUN", arguments->run, "run folder or presum.db file")->required();
  auto* table = command->add_option("--table", arguments->table, "what to write")
                    ->check(CLI::IsMember(table_names()))
                    ->capture_default_str();
  add_format(command, arguments->format, "csv or jsonl", {"csv", "jsonl"});
  auto* prometheus =
      command->add_option("--prometheus", arguments->prometheus, "write metrics to this .prom file")
          ->excludes(table);
  command->add_flag("--follow", arguments->follow, "until the run ends")->needs(prometheus);
}

}  // namespace presum::cli
