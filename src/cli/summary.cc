// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/times.h"
#include "cli/verb.h"
#include "judge/continuations.h"
#include "judge/documents.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kSummaryHelp =
    "One line per run (and per model in it): means over its recorded steps.\n\n"
    "  steps        recorded ones; those that a restart did again count once\n"
    "  loss         mean over ranks, averaged over the last 20 steps\n"
    "  loss std     loss dispersion: standard deviation over ranks\n"
    "  loss range   largest minus smallest rank loss\n"
    "  |g| std      gradient-norm dispersion; |g| cv is std / mean, free of scale\n"
    "  cosine       gradient-direction consistency: mean cosine over pairs of ranks\n"
    "  W_eff        effective ranks: 1 if all gradients are equal, W if orthogonal\n"
    "  noise scale  gradient noise scale in rank batches, at the end of the run\n"
    "A dash: undefined (one rank has no cosine) or not measured.\n\n"
    "Then, of each model whose times are known, where they went: a line a rank with its mean\n"
    "milliseconds a step.\n\n"
    "  data ... rest  what the rank did; rest is whatever lies between the others\n"
    "  waiting        in reductions and other collectives\n"
    "  own            all but waiting: the rank where it is longest makes the others wait\n"
    "  on processor   share of its own time that its thread ran; less: it slept, or had none free\n"
    "  last line      what ranks waited longer than the one that waited least, all steps "
    "together\n\n"
    "A line for each segment after the first: whether it continues the previous one, and whether\n"
    "detectors do.\n\n"
    "A line for what presum itself took of a step on the rank where that was most, once 60 steps\n"
    "were recorded; and one for each stall of the job, unless that may well have "
    "been\n"
    "meant.\n\n"
    "Example: presum summary demo/*-S1-*       --format json for all ranks, in seconds";

using Steps = std::vector<StepRecord>;

// Over the steps that have the field.
double mean_of(std::span<const StepRecord> steps, double StepRecord::*field) {
  double sum = 0;
  int count = 0;
  for (const StepRecord& s : steps) {
    if (std::isnan(s.*field)) continue;
    sum += s.*field;
    ++count;
  }
  return count == 0 ? kNaN : sum / count;
}

double last_loss(std::span<const StepRecord> steps) {
  constexpr std::size_t kLast = 20;
  return mean_of(steps.last(std::min(kLast, steps.size())), &StepRecord::loss_mean);
}

struct Column {
  const char* name;    // for programs
  const char* header;  // for people
};

constexpr Column kColumns[] = {{"run", "run"},
                               {"steps", "steps"},
                               {"workers", "workers"},
                               {"loss", "loss"},
                               {"loss_std", "loss std"},
                               {"loss_range", "loss range"},
                               {"grad_norm_std", "|g| std"},
                               {"grad_norm_cv", "|g| cv"},
                               {"cosine_mean", "cosine"},
                               {"effective_workers", "W_eff"},
                               {"noise_scale", "noise scale"}};

using Cells = std::vector<RunLog::Cell>;

// One model of a run.
struct Row {
  Cells cells;
  std::optional<TimeTable> times;    // empty: not known
  std::optional<Overhead> overhead;  // presum's own; empty: not known
};

// Everything to print about one run.
struct RunRows {
  std::string name;
  std::vector<Row> rows;
  std::vector<Continuation> continuations;
  std::vector<StallRecord> stalls;  // without the harmless ones
};

RunLog::Cell measured(double value) {
  if (std::isnan(value)) return std::monostate{};
  return value;
}

// For one model.
std::uint64_t count_steps(const Steps& steps, std::span<const Continuation> continuations) {
  std::vector<StepCount> counts;
  for (const auto& part : judge::cut(steps)) {
    counts.push_back({.model = part.front().model, .steps = part.size()});
  }
  return judge::training_steps(counts, continuations);
}

Cells cells_of(std::string name, const Steps& steps, std::span<const Continuation> continuations) {
  Cells out = {std::move(name), static_cast<std::int64_t>(count_steps(steps, continuations))};
  out.emplace_back(steps.empty() ? RunLog::Cell{}
                                 : static_cast<std::int64_t>(steps.back().workers_expected));
  for (const double value :
       {last_loss(steps), mean_of(steps, &StepRecord::loss_std),
        mean_of(steps, &StepRecord::loss_range), mean_of(steps, &StepRecord::grad_norm_std),
        mean_of(steps, &StepRecord::grad_norm_cv), mean_of(steps, &StepRecord::cosine_mean),
        mean_of(steps, &StepRecord::effective_workers),
        steps.empty() ? kNaN : steps.back().noise_scale}) {
    out.push_back(measured(value));
  }
  return out;
}

struct ToText {
  std::string operator()(std::monostate) const { return "-"; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return number(value); }
  std::string operator()(const std::string& value) const { return printable(value); }
};

std::string metrics_table(std::span<const RunRows> runs) {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : kColumns) cells.front().emplace_back(column.header);
  for (const RunRows& run : runs) {
    for (const Row& row : run.rows) {
      auto& line = cells.emplace_back();
      for (const RunLog::Cell& cell : row.cells) line.push_back(std::visit(ToText{}, cell));
    }
  }
  return table(cells);
}

std::string name_of(const Row& row) { return std::get<std::string>(row.cells.front()); }

std::string as_text(std::span<const RunRows> runs) {
  std::string out = metrics_table(runs);
  for (const RunRows& run : runs) {
    for (const std::string& text : judge::continuation_texts(run.continuations)) {
      out += fmt::format("\n{}: {}\n", printable(run.name), printable(text));
    }
    for (const Row& row : run.rows) {
      const std::string name = printable(name_of(row));
      if (row.times) {
        out += fmt::format("\n{}: mean milliseconds of {}\n{}", name,
                           count(row.times->steps, "step"), times_text(*row.times));
      }
      if (row.overhead) out += fmt::format("\n{}: {}\n", name, overhead_text(*row.overhead));
    }
    if (!run.stalls.empty()) out += '\n';
    for (const StallRecord& stall : run.stalls) {
      const auto where = stall.segment > 1 ? fmt::format(", segment {}", stall.segment) : "";
      out += fmt::format("{}{}: {}\n", printable(run.name), where, stall_text(stall));
    }
  }
  return out;
}

using Json = nlohmann::ordered_json;

Json stalls_json(std::span<const StallRecord> stalls) {
  Json out = Json::array();
  for (const StallRecord& s : stalls) {
    out.push_back({{"segment", s.segment},
                   {"step", s.step},
                   {"seconds", s.seconds},
                   {"over", s.over},
                   {"ranks", s.ranks},
                   {"sentence", s.sentence}});
  }
  return out;
}

std::vector<std::string> column_names() {
  std::vector<std::string> out;
  for (const Column& column : kColumns) out.emplace_back(column.name);
  return out;
}

std::string as_json(std::span<const RunRows> runs) {
  std::string out;
  for (const RunRows& run : runs) {
    for (const Row& row : run.rows) {
      Json line = row_json(column_names(), row.cells);
      line["times"] = row.times ? times_json(*row.times) : Json();
      line["overhead"] = row.overhead ? overhead_json(*row.overhead) : Json();
      line["stalls"] = stalls_json(run.stalls);
      line["continuations"] = judge::continuations_json(run.continuations);
      out += (out.empty() ? "[\n" : ",\n") + json_line(line);
    }
  }
  return out + "\n]\n";
}

std::string as_csv(std::span<const RunRows> runs) {
  std::string out = csv_header(column_names());
  for (const RunRows& run : runs) {
    for (const Row& row : run.rows) out += csv_row(row.cells);
  }
  return out;
}

std::string formatted(std::span<const RunRows> runs, const std::string& format) {
  if (format == "text") return as_text(runs);
  return format == "csv" ? as_csv(runs) : as_json(runs);
}

// Splits the steps by model.
std::vector<Steps> by_module(Steps steps) {
  std::vector<Steps> out;
  for (StepRecord& s : steps) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const Steps& other) {
      return other.front().model.model_index == s.model.model_index &&
             other.front().model.dp_group == s.model.dp_group;
    });
    if (same == out.end()) {
      out.push_back({std::move(s)});
    } else {
      same->push_back(std::move(s));
    }
  }
  if (out.empty()) out.emplace_back();
  return out;
}

struct SummaryArguments {
  std::vector<std::string> runs;
  std::string format = "text";
};

// `overheads` by model_index.
std::vector<Row> rows_of(const std::string& name, Steps steps,
                         const std::map<ModelPart, TimeTable>& times,
                         std::map<std::uint32_t, Overhead> overheads,
                         std::span<const Continuation> continuations) {
  std::vector<Row> out;
  const auto parts = by_module(std::move(steps));
  const bool models = std::ranges::any_of(parts, [&](const Steps& part) {
    return !part.empty() &&
           part.front().model.model_index != parts.front().front().model.model_index;
  });
  const bool shards = std::ranges::any_of(
      parts, [](const Steps& part) { return !part.empty() && part.front().model.dp_group > 0; });
  for (const Steps& part : parts) {
    std::string of = name;
    if (models) of += fmt::format(" model {}", part.front().model.model_index);
    if (shards) of += fmt::format(" data-parallel group {}", part.front().model.dp_group);
    Row& row = out.emplace_back();
    row.cells = cells_of(of, part, continuations);
    if (part.empty()) continue;
    const ModelKey& model = part.front().model;
    const auto table = times.find({model.model_index, model.dp_group});
    if (table != times.end()) row.times = table->second;
    // Shown in the model's first row only, because the ranks' facts do not name a group.
    if (auto overhead = overheads.extract(model.model_index)) row.overhead = overhead.mapped();
  }
  return out;
}

Result<RunRows> read(const RunLog& log) {
  RunRows out{.name = log.name(), .rows = {}, .continuations = {}, .stalls = {}};
  PRESUM_ASSIGN(auto steps, log.steps());
  PRESUM_ASSIGN(const auto facts, log.facts());
  PRESUM_ASSIGN(const auto times, time_tables(log));
  PRESUM_ASSIGN(out.stalls, log.stalls());
  std::erase_if(out.stalls, [](const StallRecord& stall) { return stall.harmless; });
  PRESUM_ASSIGN(out.continuations, log.continuations());
  out.rows = rows_of(out.name, std::move(steps), times, overheads(facts), out.continuations);
  return out;
}

void say_what_lacks(const std::string& name, std::span<const SegmentInfo> segments,
                    std::ostream& err) {
  for (const SegmentInfo& s : segments) {
    if (s.incomplete.empty()) continue;
    err << fmt::format("presum summary: {} is {}\n", printable(name),
                       printable(incomplete_text(s)));
  }
}

// Adds the run to `rows` and prints what its record lacks.
Status summarize_run(const std::string& run, std::vector<RunRows>& rows, std::ostream& err) {
  PRESUM_ASSIGN(const auto log, RunLog::open(run));
  PRESUM_ASSIGN(auto found, read(log));
  PRESUM_ASSIGN(const auto segments, log.segments());
  rows.push_back(std::move(found));
  say_what_lacks(log.name(), segments, err);
  return {};
}

// A run that cannot be read is reported and skipped; the others are still shown.
int summarize(const SummaryArguments& arguments, const Streams& io) {
  std::vector<RunRows> rows;
  int code = kOk;
  for (const std::string& run : arguments.runs) {
    const auto done = summarize_run(run, rows, io.err);
    if (!done) code = complain(io, "summary", done.error());
  }
  if (!rows.empty()) io.out << formatted(rows, arguments.format);
  return code;
}

}  // namespace

void add_summary(CLI::App& program, Command& chosen) {
  const auto [command, arguments] = add_verb<SummaryArguments>(
      program, chosen, "summary", "one line of metrics per run, and where its time went",
      kSummaryHelp, summarize);
  command->add_option("RUN", arguments->runs, "run folders or presum.db files")->required();
  add_format(command, arguments->format, "text, json or csv", {"text", "json", "csv"});
}

}  // namespace presum::cli
