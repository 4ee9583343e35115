// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/output_file.h"
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
         "exporter's textfile collector reads. With --follow the file is kept up to date,\n"
         "and deleted a minute after the run has ended. Runs of one machine need folders of "
         "different\n"
         "names. Alert rules and a Grafana dashboard: docs/prometheus/.\n\n"
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

// While this exists, a signal that asks the process to end is only noted. One that the process was
// told to ignore (nohup, a background job) stays ignored.
class NotedSignals {
 public:
  NotedSignals() {
    signal_number = 0;
    struct sigaction noted = {};
    noted.sa_handler = note_signal;  // NOLINT(cppcoreguidelines-pro-type-union-access)
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals.at(i), nullptr, &before_.at(i));
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-union-access)
      if (before_.at(i).sa_handler != SIG_IGN) sigaction(kSignals.at(i), &noted, nullptr);
    }
  }
  ~NotedSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals.at(i), &before_.at(i), nullptr);
    }
  }
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

void wait_for_signal(std::chrono::milliseconds longest) {
  constexpr std::chrono::milliseconds kPart{100};
  for (auto waited = kPart; signal_number == 0 && waited <= longest; waited += kPart) {
    std::this_thread::sleep_for(kPart);
  }
}

double unix_now() {
  using std::chrono::system_clock;
  return std::chrono::duration<double>(system_clock::now().time_since_epoch()).count();
}

// Keeps the file up to date until the run ends.
class Follower {
 public:
  Follower(const ExportArguments& arguments, std::ostream& err)
      : reader_(arguments.run), run_(arguments.run), file_(arguments.prometheus), err_(err) {}
  ~Follower() { remove(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Returns whether the run has ended. An error that may pass is said, and no error.
  Result<bool> look() {
    const auto read = reader_.read(unix_now());
    if (read) return show(*read);
    if (read.error().code == ErrorCode::kNotFound) {
      remove();
      waits_ = true;
      say(fmt::format("waiting for {}", run_));
      return false;
    }
    if (read.error().code != ErrorCode::kIo) return read.error();
    say(read.error().message);
    return false;
  }

 private:
  Result<bool> show(const PrometheusText& read) {
    if (!waits_ && read.closed) {
      if (!ended_) ended_ = read.segment;
      if (ended_ == read.segment) {
        say(fmt::format("{} has ended; waiting until it is continued", run_));
        return false;
      }
    }
    waits_ = true;
    const auto done = replace_file(file_, read.text, kPrometheusStart);
    if (!done && !written_) return done.error();
    if (!done) {
      say(done.error().message);
    } else {
      said_.clear();
    }
    written_ = true;
    return read.closed;
  }

  void remove() {
    std::error_code error;
    if (written_) std::filesystem::remove(file_, error);
    written_ = false;
  }

  void say(const std::string& text) {
    if (text == said_) return;
    err_ << "presum export: " << printable(text) << '\n' << std::flush;
    said_ = text;
  }

  PrometheusReader reader_;
  const std::string& run_;
  std::filesystem::path file_;
  std::ostream& err_;
  bool waits_ = false;                  // for the end of a recording that it saw begin, or go on
  std::optional<std::uint32_t> ended_;  // the segment that had ended at the first look
  bool written_ = false;
  std::string said_;
};

int follow(const ExportArguments& arguments, const Streams& io) {
  constexpr std::chrono::seconds kInterval{5};  // a scrape is rarely more frequent
  constexpr std::chrono::seconds kLastScrape{60};
  const NotedSignals noted;
  Follower follower(arguments, io.err);
  while (signal_number == 0) {
    const auto ended = follower.look();
    if (!ended) return complain(io, "export", ended.error());
    wait_for_signal(*ended ? kLastScrape : kInterval);
    if (*ended) break;
  }
  return kOk;
}

int export_metrics(const ExportArguments& arguments, const Streams& io) {
  if (arguments.follow) return follow(arguments, io);
  const auto read = PrometheusReader(arguments.run).read(unix_now());
  const auto done =
      read ? replace_file(arguments.prometheus, read->text, kPrometheusStart) : read.error();
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

// The textfile collector reads no others.
std::string is_prom_file(const std::string& file) {
  return file.ends_with(".prom") ? "" : "the file's name must end with .prom: " + file;
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
          ->check(is_prom_file)
          ->excludes(table)
          ->excludes(command->get_option("--format"));
  command->add_flag("--follow", arguments->follow, "until the run ends")->needs(prometheus);
}

}  // namespace presum::cli
