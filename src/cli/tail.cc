// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/text.h"
#include "cli/times.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

using Steady = std::chrono::steady_clock;

constexpr const char* kTailHelp =
    "Follows a run while it is recorded: a line for each step, each finding and each time that "
    "the\n"
    "job stalls, until the run is closed. It only reads the RUN folder, so it works from "
    "any\n"
    "process, over ssh, and on a disk that the machine of the training shares.\n\n"
    "  step         reductions before it\n"
    "  ranks        that are in it, of those expected\n"
    "  loss +- std  mean and standard deviation over ranks\n"
    "  |g|  cv      mean of the ranks' own gradient norms, and their deviation over it\n"
    "  cosine       mean over pairs of ranks\n"
    "  W_eff        effective ranks\n"
    "  slow 3 x1.42 rank 3 took 1.42 times as long as the others' median, without what it waited;\n"
    "               shown from 1.04 times and a millisecond on\n"
    "  last line    where nothing has come for a minute, or how the run ended\n\n"
    "Example: presum tail runs/a    Ctrl-C ends it; the training is not concerned";

constexpr Steady::duration kQuiet = std::chrono::minutes(1);
constexpr std::uint64_t kLinesMax = 1'000'000;

struct TailArguments {
  std::string run;
  std::uint64_t lines = 10;
  double interval = 1;
  bool once = false;
};

std::string header() {
  return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}", "step", "ranks", "loss",
                     "+- std", "|g|", "cv", "cosine", "W_eff");
}

std::string columns(const StepRecord& step) {
  const std::string ranks = fmt::format("{}/{}", step.workers.size(), step.workers_expected);
  return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}", step.step, ranks,
                     number(step.loss_mean), number(step.loss_std), number(step.grad_norm_mean),
                     number(step.grad_norm_cv), number(step.cosine_mean),
                     number(step.effective_workers));
}

std::string line_of(const Finding& found) {
  return fmt::format("{}: {} ({}, {}, from step {})", to_string(found.severity),
                     printable(found.title), printable(found.check), location_text(found),
                     found.first_step);
}

std::string line_of(const StallRecord& stall) {
  return fmt::format("{}: {}", stall.harmless ? "pause" : "stall", stall_text(stall));
}

Severity severity_of(const StallRecord& stall) {
  if (stall.harmless) return Severity::kInfo;
  return stall.over || stall.busy ? Severity::kWarning : Severity::kCritical;
}

class Tail {
 public:
  // `lines`: the number of last steps to print first.
  Tail(const std::string& run, std::uint64_t lines, std::ostream& out, bool color)
      : run_(run), lines_(lines), out_(out), color_(color) {}

  // Prints what is new. Returns whether the run is closed.
  Result<bool> look() {
    PRESUM_ASSIGN(const RunLog log, RunLog::open(run_));
    PRESUM_ASSIGN(const auto segments, log.segments());
    PRESUM_TRY(take_steps(log));
    print_steps();
    PRESUM_ASSIGN(const auto findings, log.findings());
    for (const Finding& f : findings) print(f);
    PRESUM_ASSIGN(const auto stalls, log.stalls());
    for (const StallRecord& s : stalls) print(s);
    if (!segments.empty()) say_how_it_stands(segments.back());
    say_if_quiet();
    out_.flush();
    return !segments.empty() && segments.back().closed;
  }

 private:
  Status take_steps(const RunLog& log) {
    PRESUM_ASSIGN(const auto models, log.modules());
    for (const ModelInfo& model : models) {
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
      take(*step, several);
      hear();
    }
  }

  void take(const StepRecord& step, bool several) {
    const auto slow = slow_rank(step.workers);
    const auto of_slow = slow ? fmt::format("  slow {} x{:.2f}", slow->rank, slow->factor) : "";
    const auto model = several ? fmt::format("  model {}", step.model.model_index) : "";
    new_.push_back(columns(step) + model +
                   colored(of_slow, slow ? Severity::kWarning : Severity::kInfo));
    if (!printed_ && new_.size() > lines_) new_.pop_front();
  }

  void print_steps() {
    if (!printed_) out_ << header() << '\n';
    printed_ = true;
    for (const std::string& line : new_) out_ << line << '\n';
    new_.clear();
  }

  void print(const Finding& f) {
    if (!findings_.emplace(f.model, f.check, f.ranks, f.first_step).second) return;
    out_ << colored(line_of(f), f.severity) << '\n';
    hear();
  }

  void print(const StallRecord& s) {
    if (!stalls_.emplace(s.segment, s.number, s.harmless, s.over).second) return;
    out_ << colored(line_of(s), severity_of(s)) << '\n';
    hear();
  }

  void say(const std::string& text) { out_ << "-- " << printable(text) << '\n'; }

  void say_how_it_stands(const SegmentInfo& segment) {
    if (!segment.incomplete.empty() && !std::exchange(incomplete_said_, true)) {
      hear();
      say(incomplete_text(segment));
    }
    if (!segment.closed) return;
    hear();
    say("closed");
  }

  void say_if_quiet() {
    if (quiet_said_ || Steady::now() - heard_ < kQuiet) return;
    quiet_said_ = true;
    say("nothing new for a minute: the training is slow, stuck or gone");
  }

  void hear() {
    heard_ = Steady::now();
    quiet_said_ = false;
  }

  std::string colored(const std::string& text, Severity severity) const {
    if (!color_ || severity == Severity::kInfo) return text;
    return fmt::format("\x1b[{}m{}\x1b[0m", severity == Severity::kCritical ? 31 : 33, text);
  }

  const std::string& run_;
  std::uint64_t lines_;
  std::ostream& out_;
  bool color_;
  bool printed_ = false;
  bool quiet_said_ = false;
  bool incomplete_said_ = false;
  Steady::time_point heard_ = Steady::now();
  std::map<ModelKey, std::uint64_t> next_;
  std::deque<std::string> new_;  // lines of steps
  // What was already printed, for things that the run log may repeat.
  std::set<std::tuple<ModelKey, std::string, std::vector<std::uint32_t>, std::uint64_t>> findings_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, bool, bool>> stalls_;
};

bool on_terminal(const std::ostream& out) {
  const char* kind = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): no thread sets it
  const bool draws = kind == nullptr || std::string_view(kind) != "dumb";
  return draws && &out == &std::cout && isatty(STDOUT_FILENO) == 1;
}

int tail(const TailArguments& arguments, const Streams& io) {
  Tail tail(arguments.run, arguments.lines, io.out, on_terminal(io.out));
  while (true) {
    const auto closed = tail.look();
    if (!closed) return complain(io, "tail", closed.error());
    if (*closed || arguments.once || !io.out.good()) return kOk;
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval));
  }
}

}  // namespace

void add_tail(CLI::App& program, Command& chosen) {
  const auto [command, arguments] = add_verb<TailArguments>(
      program, chosen, "tail", "follow a run: a line a step, and what is found", kTailHelp, tail);
  command->add_option("RUN", arguments->run, "a run folder or presum.db file")->required();
  command->add_option("-n,--lines", arguments->lines, "steps to begin with")
      ->check(CLI::Range(std::uint64_t{0}, kLinesMax))
      ->capture_default_str();
  command->add_option("--interval", arguments->interval, "seconds between looks")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", arguments->once, "show what is there, and stop");
}

}  // namespace presum::cli
