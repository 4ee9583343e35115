// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

using Steady = std::chrono::steady_clock;

constexpr const char* kTailHelp =
    "Follows a run while it is recorded: a line for each step and each finding, until the run is\n"
    "closed. It only reads the RUN folder, so it works from any process, over ssh, and on a disk\n"
    "that the machine of the training shares.\n\n"
    "  step         reductions before it\n"
    "  ranks        that are in it, of those expected\n"
    "  loss +- std  mean and standard deviation over ranks\n"
    "  |g|  cv      mean of the ranks' own gradient norms, and their deviation over it\n"
    "  cosine       mean over pairs of ranks\n"
    "  W_eff        effective workers\n"
    "  last line    where nothing has come for a minute, or how the run ended\n\n"
    "Example: presum tail runs/a          Ctrl-C ends it; the training is not concerned";

constexpr Steady::duration kQuiet = std::chrono::minutes(1);
constexpr std::uint64_t kLinesMax = 1'000'000;

struct TailArguments {
  std::string run;
  std::uint64_t lines = 10;
  double interval = 1;
  bool once = false;
};

class Tail {
 public:
  Tail(const TailArguments& arguments, const Streams& io)
      : arguments_(arguments),
        io_(io),
        colour_(&io.out == &std::cout && isatty(STDOUT_FILENO) == 1) {}

  // What is new; whether the run is closed.
  Result<bool> look() {
    PRESUM_ASSIGN(const RunLog log, RunLog::open(arguments_.run));
    PRESUM_ASSIGN(const auto segments, log.segments());
    PRESUM_TRY(take_steps(log));
    print_steps();
    PRESUM_ASSIGN(const auto findings, log.findings());
    for (const Finding& found : findings) print(found);
    if (segments.empty()) return false;
    say_how_it_stands(segments.back());
    io_.out.flush();
    return segments.back().closed;
  }

  void say_if_quiet() {
    if (quiet_said_ || Steady::now() - heard_ < kQuiet) return;
    quiet_said_ = true;
    say("nothing new for a minute: the training is slow, stuck or gone");
    io_.out.flush();
  }

 private:
  Status take_steps(const RunLog& log) {
    PRESUM_ASSIGN(const auto models, log.modules());
    several_ = models.size() > 1;
    for (const ModuleInfo& model : models) PRESUM_TRY(take_steps(log, model.model));
    return {};
  }

  Status take_steps(const RunLog& log, const ModelKey& model) {
    std::uint64_t& next = next_[model];
    PRESUM_ASSIGN(auto cursor, log.cursor(model, next));
    while (true) {
      PRESUM_ASSIGN(const StepRecord* step, cursor.next());
      if (step == nullptr) return {};
      next = step->step + 1;
      waiting_.push_back(line_of(*step));
      // Before the first print only the last lines count.
      if (!printed_ && waiting_.size() > arguments_.lines) waiting_.pop_front();
    }
  }

  std::string line_of(const StepRecord& step) const {
    const std::string ranks = fmt::format("{}/{}", step.workers.size(), step.workers_expected);
    const std::string model = several_ ? fmt::format("  model {}", step.model.module) : "";
    return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}{}", step.step, ranks,
                       number(step.loss_mean), number(step.loss_std), number(step.grad_norm_mean),
                       number(step.grad_norm_cv), number(step.cosine_mean),
                       number(step.effective_workers), model);
  }

  void print_steps() {
    if (!printed_) {
      io_.out << fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}\n", "step",
                             "ranks", "loss", "+- std", "|g|", "cv", "cosine", "W_eff");
    }
    printed_ = true;
    for (const std::string& line : waiting_) io_.out << line << '\n';
    if (!waiting_.empty()) hear();
    waiting_.clear();
  }

  void print(const Finding& found) {
    const auto is = std::tuple(found.model, found.check, found.ranks, found.first_step);
    if (!told_.insert(is).second) return;
    hear();
    const std::string text = fmt::format("{}: {} ({}, {}, from step {})", to_string(found.severity),
                                         printable(found.title), printable(found.check),
                                         location_text(found), found.first_step);
    io_.out << coloured(text, found.severity) << '\n';
  }

  std::string coloured(const std::string& text, Severity severity) const {
    if (!colour_ || severity == Severity::kInfo) return text;
    return fmt::format("\x1b[{}m{}\x1b[0m", severity == Severity::kCritical ? 31 : 33, text);
  }

  void say_how_it_stands(const SegmentInfo& segment) {
    if (!segment.incomplete.empty() && !std::exchange(incomplete_said_, true)) {
      hear();
      say(incomplete_text(segment));
    }
    if (segment.closed) say("closed");
  }

  void say(const std::string& text) { io_.out << "-- " << printable(text) << '\n'; }

  void hear() {
    heard_ = Steady::now();
    quiet_said_ = false;
  }

  const TailArguments& arguments_;
  const Streams& io_;
  bool colour_;
  bool several_ = false;
  bool printed_ = false;
  bool quiet_said_ = false;
  bool incomplete_said_ = false;
  Steady::time_point heard_ = Steady::now();
  std::map<ModelKey, std::uint64_t> next_;
  std::deque<std::string> waiting_;
  std::set<std::tuple<ModelKey, std::string, std::vector<std::uint32_t>, std::uint64_t>> told_;
};

int tail(const TailArguments& arguments, const Streams& io) {
  Tail tail(arguments, io);
  while (true) {
    const auto closed = tail.look();
    if (!closed) return complain(io, "tail", closed.error());
    if (*closed || arguments.once || !io.out.good()) return kOk;
    tail.say_if_quiet();
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval));
  }
}

}  // namespace

void add_tail(CLI::App& program, Command& chosen) {
  auto arguments = std::make_shared<TailArguments>();
  auto* command = program.add_subcommand("tail", "follow a run: a line a step, and what is found");
  command->footer(kTailHelp);
  command->add_option("RUN", arguments->run, "a run folder or presum.db file")->required();
  command->add_option("-n,--lines", arguments->lines, "steps to begin with")
      ->check(CLI::Range(std::uint64_t{0}, kLinesMax))
      ->capture_default_str();
  command->add_option("--interval", arguments->interval, "seconds between looks")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", arguments->once, "show what is there, and stop");
  choose(command, chosen, arguments, tail);
}

}  // namespace presum::cli
