// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "detect/replay.h"
#include "detect/simulate.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

using detect::Delays;
using detect::FalseAlarms;
using detect::Fault;
using detect::Null;
using detect::Rate;
using detect::SimulatedRun;
using Json = nlohmann::ordered_json;

constexpr const char* kSimulateHelp =
    "Runs the detectors over made-up steps, without torch, and prints two tables.\n\n"
    "False alarms: healthy workers, --steps steps for each kind of noise and world size.\n"
    "  normal      independent normal values\n"
    "  heavy       Student's t with 3 degrees of freedom\n"
    "  common      levels and spreads that wander, in common for all workers\n"
    "  persistent  each worker's own deviations last: what a fault looks like, so no target\n"
    "The detectors promise at most 1 alarm per 1e6 steps on average for the first three. Events\n"
    "(one worker, one step, far outside everything seen) are counted apart and promise nothing.\n\n"
    "Delays: worker 0 is at fault in --trials runs; median steps until the first alarm, and the\n"
    "share of alarms that name exactly the right workers. Shifts are in standard deviations over\n"
    "healthy workers.\n\n"
    "--recorded plays the steps of healthy runs instead, over and over, with their workers in\n"
    "another order: what recorders really send, and no worker unlike the others. With an order\n"
    "for each step workers are exchangeable, as the promise has it; with one for 20 steps what\n"
    "lasts in a worker lasts as long. Give many steps: each is played --steps / recorded times.\n\n"
    "Results depend on --seed alone, not on the machine. 1e6 steps of 8 workers take about 35\n"
    "seconds of processor time, of 64 workers ten times as long.\n\n"
    "Example: presum simulate --steps 1e6 --workers 2,4,8 --null all";

constexpr double kStepsMax = 1e12;
constexpr int kTrialsMax = 1'000'000;

// CLI11 would write out the zeros and the decimals of its bounds, and let NaN through.
const CLI::Validator kSteps(
    [](std::string& given) {
      double steps = 0;
      const bool fits = CLI::detail::lexical_cast(given, steps) && steps >= 1 && steps <= kStepsMax;
      return fits ? "" : given + " is not a number from 1 to 1e12";
    },
    "1 to 1e12");

struct SimulateArguments {
  double steps = 1e6;
  std::uint32_t trials = 200;
  std::vector<std::uint32_t> workers = {8};
  std::string null = "all";
  std::vector<std::string> recorded;
  double level = 1e6;
  std::uint64_t seed = 1;
  std::string format = "text";
};

// One line that is written over, where a person watches; elsewhere a line for each row that is
// done.
class ProgressLine {
 public:
  ProgressLine(std::ostream& err, std::size_t rows)
      : err_(err), rows_(rows), watched_(&err == &std::cerr && isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (watched_) err_ << "\r\x1b[K" << std::flush;
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // The next row begins.
  detect::Progress of(const std::string& what) {
    const auto name = fmt::format("{}/{} {}", ++row_, rows_, what);
    show(name, 0);
    return [this, name](double done) { show(name, done); };
  }

 private:
  void show(const std::string& name, double done) {
    if (watched_) err_ << fmt::format("\r\x1b[K{} {:.0f}%", name, 100 * done) << std::flush;
    if (!watched_ && done >= 1) err_ << name << '\n' << std::flush;
  }

  std::ostream& err_;
  std::size_t rows_;
  std::size_t row_ = 0;
  bool watched_;
};

struct NullRow {
  std::string noise;
  std::size_t workers;
  FalseAlarms result;
};

struct DelayRow {
  std::string fault;
  SimulatedRun model;
  Delays result;
};

std::vector<Null> nulls_of(const std::string& name) {
  std::vector<Null> out;
  for (const Null null : {Null::kNormal, Null::kHeavy, Null::kCommon, Null::kPersistent}) {
    if (name == "all" || name == to_string(null)) out.push_back(null);
  }
  return out;
}

std::vector<NullRow> run_nulls(const SimulateArguments& arguments, ProgressLine& progress) {
  std::vector<NullRow> rows;
  for (const Null null : nulls_of(arguments.null)) {
    for (const std::uint32_t workers : arguments.workers) {
      const SimulatedRun model{workers, null};
      const auto what = fmt::format("healthy, {}, {} workers", to_string(null), workers);
      rows.push_back({to_string(null), workers,
                      false_alarms(model, static_cast<std::uint64_t>(arguments.steps),
                                   arguments.seed, progress.of(what))});
    }
  }
  return rows;
}

struct NamedFault {
  std::string name;
  Fault fault;
};

std::vector<NamedFault> faults() {
  std::vector<NamedFault> out;
  for (const double size : {0.5, 1.0, 2.0, 3.0, 6.0}) {
    out.push_back({fmt::format("loss +{} sd", size), {Fault::Kind::kLoss, size}});
  }
  for (const double size : {2.1, -0.77, -4.4}) {
    out.push_back({fmt::format("log norm {:+} sd", size), {Fault::Kind::kNorm, size}});
  }
  out.push_back({"direction -1.65 sd", {Fault::Kind::kDirection, -1.65}});
  out.push_back({"two share data", {Fault::Kind::kSharedData}});
  out.push_back({"repeated micro-batch", {Fault::Kind::kRepeated}});
  out.push_back({"the same on all workers", {Fault::Kind::kRepeatedByAll}});
  out.push_back({"all read one set", {Fault::Kind::kSameSet}});
  return out;
}

// Two workers have one cosine.
bool needs_three(const Fault& fault) {
  return fault.kind == Fault::Kind::kSharedData || fault.kind == Fault::Kind::kDirection;
}

struct DelayCase {
  NamedFault of;
  std::uint32_t workers;
};

std::vector<DelayCase> delay_cases(const SimulateArguments& arguments) {
  std::vector<DelayCase> out;
  for (const std::uint32_t workers : arguments.workers) {
    for (const NamedFault& of : faults()) {
      if (workers > 2 || !needs_three(of.fault)) out.push_back({of, workers});
    }
  }
  return out;
}

std::vector<DelayRow> run_delays(const SimulateArguments& arguments, ProgressLine& progress) {
  std::vector<DelayRow> rows;
  for (const auto& [of, workers] : delay_cases(arguments)) {
    const SimulatedRun model{workers, Null::kNormal};
    const auto what = fmt::format("{}, {} workers", of.name, workers);
    rows.push_back({of.name, model,
                    delays(model, of.fault, arguments.trials, arguments.seed, progress.of(what))});
  }
  return rows;
}

std::string interval(const Rate& rate) {
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", rate.per_million, rate.low, rate.high);
}

std::string text(const std::vector<NullRow>& nulls, const std::vector<DelayRow>& delays) {
  std::vector<std::vector<std::string>> alarms = {
      {"noise", "workers", "steps", "alarms", "per 1e6 [95%]", "events per 1e6 [95%]"}};
  for (const auto& [noise, workers, r] : nulls) {
    alarms.push_back({noise, std::to_string(workers), std::to_string(r.steps),
                      std::to_string(r.alarms.count), interval(r.alarms), interval(r.events)});
  }
  if (delays.empty()) return "False alarms, healthy workers\n" + table(alarms);
  std::vector<std::vector<std::string>> found = {
      {"fault", "workers", "found", "median delay", "right workers", "first step off by"}};
  for (const auto& [name, model, r] : delays) {
    found.push_back({name, std::to_string(model.workers), fmt::format("{}/{}", r.found, r.trials),
                     number(r.median), r.found > 0 ? fmt::format("{:.0f}%", 100 * r.right) : "-",
                     number(r.first_step_off)});
  }
  return "False alarms, healthy workers\n" + table(alarms) + "\nDelay in steps\n" + table(found);
}

Json real(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json rate_json(const Rate& rate) {
  return {{"count", rate.count},
          {"per_million", rate.per_million},
          {"low", rate.low},
          {"high", rate.high}};
}

Json json(const std::vector<NullRow>& nulls, const std::vector<DelayRow>& delays) {
  Json out = {{"schema_version", 1}, {"false_alarms", Json::array()}, {"delays", Json::array()}};
  for (const auto& [noise, workers, r] : nulls) {
    out["false_alarms"].push_back({{"noise", noise},
                                   {"workers", workers},
                                   {"steps", r.steps},
                                   {"alarms", rate_json(r.alarms)},
                                   {"events", rate_json(r.events)}});
  }
  for (const auto& [name, model, r] : delays) {
    out["delays"].push_back({{"fault", name},
                             {"workers", model.workers},
                             {"trials", r.trials},
                             {"found", r.found},
                             {"median", real(r.median)},
                             {"right", real(r.right)},
                             {"first_step_off", real(r.first_step_off)}});
  }
  return out;
}

// Adds the steps of the run's first model in which all its workers are, by their number.
using StepsByWorkers = std::map<std::size_t, std::vector<StepRecord>>;
Status add_whole_steps(const std::string& run, StepsByWorkers& to) {
  PRESUM_ASSIGN(const RunLog log, RunLog::open(run));
  PRESUM_ASSIGN(const auto all, log.steps());
  if (all.empty()) return {};
  PRESUM_ASSIGN(StepCursor cursor, log.cursor(all.front().model));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, cursor.next());
    if (step == nullptr) return {};
    const std::size_t workers = step->workers.size();
    if (workers < 2 || workers != step->workers_expected) continue;
    StepRecord& kept = to[workers].emplace_back(*step);
    PRESUM_ASSIGN(kept.cosines, log.cosines({step->model, step->step}));
  }
}

Result<std::vector<NullRow>> replay(const SimulateArguments& arguments, std::ostream& err) {
  StepsByWorkers all;
  for (const std::string& run : arguments.recorded) PRESUM_TRY(add_whole_steps(run, all));
  if (all.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                arguments.recorded.front() + ": no step with all of several workers");
  }
  ProgressLine progress(err, 2 * all.size());
  std::vector<NullRow> rows;
  for (const auto& [workers, steps] : all) {
    for (const std::uint64_t block : {std::uint64_t{1}, std::uint64_t{20}}) {
      const auto what = fmt::format("{} recorded steps, orders of {}", steps.size(), block);
      const auto watched = progress.of(what);
      const auto count = static_cast<std::uint64_t>(arguments.steps);
      rows.push_back(
          {what, workers,
           detect::false_alarms(steps, block, arguments.level, count, arguments.seed, watched)});
    }
  }
  return rows;
}

int replay_recorded(const SimulateArguments& arguments, const Streams& io) {
  const auto rows = replay(arguments, io.err);
  if (!rows) {
    io.err << "presum simulate: " << rows.error().message << '\n';
    return kNoVerdict;
  }
  io.out << (arguments.format == "json" ? json(*rows, {}).dump(2) + '\n' : text(*rows, {}));
  return kOk;
}

int simulate(const SimulateArguments& arguments, const Streams& io) {
  if (!arguments.recorded.empty()) return replay_recorded(arguments, io);
  std::vector<NullRow> nulls;
  std::vector<DelayRow> delays;
  {
    const auto healthy = nulls_of(arguments.null).size() * arguments.workers.size();
    ProgressLine progress(io.err, healthy + delay_cases(arguments).size());
    nulls = run_nulls(arguments, progress);
    delays = run_delays(arguments, progress);
  }
  io.out << (arguments.format == "json" ? json(nulls, delays).dump(2) + '\n' : text(nulls, delays));
  return kOk;
}

}  // namespace

void add_simulate(CLI::App& program, Command& chosen) {
  auto arguments = std::make_shared<SimulateArguments>();
  auto* command = program.add_subcommand(
      "simulate",
      "how often detectors raise false alarms, and how fast: made-up steps, no training");
  command->footer(kSimulateHelp);
  command->add_option("--steps", arguments->steps, "healthy steps per kind of noise")
      ->check(kSteps)
      ->default_str("1e6");
  command->add_option("--trials", arguments->trials, "runs per fault")
      ->check(CLI::Range(1, kTrialsMax))
      ->capture_default_str();
  command->add_option("--workers", arguments->workers, "world sizes, such as 2,4,8")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  command->add_option("--null", arguments->null, "kind of noise")
      ->check(CLI::IsMember({"normal", "heavy", "common", "persistent", "all"}))
      ->capture_default_str();
  auto* recorded = command->add_option(
      "--recorded", arguments->recorded,
      "instead: healthy RUNs, their workers in orders drawn anew for each step and for each 20");
  command->add_option("--level", arguments->level, "of the detectors; with --recorded")
      ->check(CLI::Range(2.0, 1e12))
      ->needs(recorded)
      ->default_str("1e6");
  command->add_option("--seed", arguments->seed, "of everything random")->capture_default_str();
  add_format(command, arguments->format, "text or json", {"text", "json"});
  choose(command, chosen, arguments, simulate);
}

}  // namespace presum::cli
