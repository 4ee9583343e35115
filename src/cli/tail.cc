// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/tail_table.h"
#include "cli/tail_view.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

using Steady = std::chrono::steady_clock;

constexpr const char* kTailHelp =
    "Follows a run while it is recorded: a line for each step, each finding and each time that "
    "the\n"
    "job stands still, until the run is closed. It only reads the RUN folder, so it works from "
    "any\n"
    "process, over ssh, and on a disk that the machine of the training shares.\n\n"
    "  step         reductions before it\n"
    "  ranks        that are in it, of those expected\n"
    "  loss +- std  mean and standard deviation over ranks\n"
    "  |g|  cv      mean of the ranks' own gradient norms, and their deviation over it\n"
    "  cosine       mean over pairs of ranks\n"
    "  W_eff        effective workers\n"
    "  slow 3 x1.42 rank 3 took 1.42 times as long as the others' median, without what it waited;\n"
    "               told from 1.04 times and a millisecond on\n"
    "  own ms       what a rank took without what it waited, mean over ranks (--table)\n"
    "  last line    where nothing has come for a minute, or how the run ended\n\n"
    "Example: presum tail runs/a            Ctrl-C ends it; the training is not concerned\n"
    "         presum tail runs/a --table    one table, drawn again in its place";

constexpr Steady::duration kQuiet = std::chrono::minutes(1);
constexpr std::uint64_t kLinesMax = 1'000'000;

struct TailArguments {
  std::string run;
  std::uint64_t lines = 10;
  double interval = 1;
  bool once = false;
  bool table = false;
};

class Tail {
 public:
  Tail(const std::string& run, TailView& view) : run_(run), view_(view) {}

  // What is new; whether the run is closed.
  Result<bool> look() {
    PRESUM_ASSIGN(const RunLog log, RunLog::open(run_));
    PRESUM_ASSIGN(const auto segments, log.segments());
    PRESUM_TRY(take_steps(log));
    view_.end_steps();
    PRESUM_ASSIGN(const auto findings, log.findings());
    if (view_.show(findings)) hear();
    PRESUM_ASSIGN(const auto stalls, log.stalls());
    if (view_.show(stalls)) hear();
    if (!segments.empty()) say_how_it_stands(segments.back());
    say_if_quiet();
    view_.end_look();
    return !segments.empty() && segments.back().closed;
  }

 private:
  Status take_steps(const RunLog& log) {
    PRESUM_ASSIGN(const auto models, log.modules());
    for (const ModuleInfo& model : models) {
      PRESUM_TRY(take_steps(log, model.model, models.size() > 1));
    }
    return {};
  }

  Status take_steps(const RunLog& log, const ModelKey& model, bool several) {
    std::uint64_t& next = next_[model];
    PRESUM_ASSIGN(auto cursor, log.cursor(model, next));
    while (true) {
      PRESUM_ASSIGN(const StepRecord* step, cursor.next());
      if (step == nullptr) return {};
      next = step->step + 1;
      view_.add(*step, several);
      hear();
    }
  }

  void say_how_it_stands(const SegmentInfo& segment) {
    if (!segment.incomplete.empty() && !std::exchange(incomplete_said_, true)) {
      hear();
      view_.say(incomplete_text(segment));
    }
    if (!segment.closed) return;
    hear();
    view_.say("closed");
  }

  void say_if_quiet() {
    if (quiet_said_ || Steady::now() - heard_ < kQuiet) return;
    quiet_said_ = true;
    view_.say_quiet("nothing new for a minute: the training is slow, stuck or gone");
  }

  void hear() {
    heard_ = Steady::now();
    quiet_said_ = false;
  }

  const std::string& run_;
  TailView& view_;
  bool quiet_said_ = false;
  bool incomplete_said_ = false;
  Steady::time_point heard_ = Steady::now();
  std::map<ModelKey, std::uint64_t> next_;
};

bool on_terminal(const std::ostream& out) {
  const char* kind = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  const bool draws = kind == nullptr || std::string_view(kind) != "dumb";
  return draws && &out == &std::cout && isatty(STDOUT_FILENO) == 1;
}

TerminalSize terminal_size() {
  winsize size = {};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg): the only way to ask
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {.columns = size.ws_col, .lines = size.ws_row};
}

std::unique_ptr<TailView> view_of(const TailArguments& arguments, const Streams& io) {
  const bool terminal = on_terminal(io.out);
  if (!arguments.table) return line_view(arguments.lines, io.out, terminal);
  if (!terminal) return nullptr;
  return std::make_unique<TailTable>(arguments.run, arguments.lines, io.out, terminal_size);
}

int tail(const TailArguments& arguments, const Streams& io) {
  const auto view = view_of(arguments, io);
  if (view == nullptr) {
    return complain(io, "tail", fail(ErrorCode::kUnsupported, "--table needs a terminal"));
  }
  Tail tail(arguments.run, *view);
  while (true) {
    const auto closed = tail.look();
    if (!closed) return complain(io, "tail", closed.error());
    if (*closed || arguments.once || !io.out.good()) return kOk;
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval));
  }
}

}  // namespace

void add_tail(CLI::App& program, Command& chosen) {
  auto arguments = std::make_shared<TailArguments>();
  auto* command = program.add_subcommand("tail", "follow a run: a line a step, and what is found");
  command->footer(kTailHelp);
  command->add_option("RUN", arguments->run, "a run folder or presum.db file")->required();
  command->add_option("-n,--lines", arguments->lines, "steps to begin with, or in the table")
      ->check(CLI::Range(std::uint64_t{0}, kLinesMax))
      ->capture_default_str();
  command->add_option("--interval", arguments->interval, "seconds between looks")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", arguments->once, "show what is there, and stop");
  command->add_flag("--table", arguments->table,
                    "one table, drawn again in its place (a terminal)");
  choose(command, chosen, arguments, tail);
}

}  // namespace presum::cli
