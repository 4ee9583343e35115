// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kSummaryHelp =
    "One line per run (and per model in it): means over its recorded steps.\n\n"
    "  loss         mean over workers, averaged over the last 20 steps\n"
    "  loss std     loss dispersion: standard deviation over workers\n"
    "  loss range   largest minus smallest worker loss\n"
    "  |g| std      gradient-norm dispersion; |g| cv is std / mean, free of scale\n"
    "  cosine       gradient-direction consistency: mean cosine over pairs of workers\n"
    "  W_eff        effective workers: 1 if all gradients are equal, W if orthogonal\n"
    "  noise scale  gradient noise scale in worker batches, at the end of the run\n"
    "A dash: undefined (one worker has no cosine) or not measured.\n\n"
    "Example: presum summary demo/*-S1-*";

class Mean {
 public:
  void add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  double value() const { return count_ == 0 ? kNaN : sum_ / count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

using Steps = std::vector<StepRecord>;

double mean_of(const Steps& steps, double StepRecord::*field) {
  Mean mean;
  for (const StepRecord& s : steps) mean.add(s.*field);
  return mean.value();
}

double last_loss(const Steps& steps) {
  constexpr std::size_t kLast = 20;
  Mean mean;
  for (std::size_t i = steps.size() - std::min(kLast, steps.size()); i < steps.size(); ++i) {
    mean.add(steps[i].loss_mean);
  }
  return mean.value();
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

using Row = std::vector<RunLog::Cell>;

RunLog::Cell measured(double value) {
  if (std::isnan(value)) return std::monostate{};
  return value;
}

Row row(std::string name, const Steps& steps) {
  Row out = {std::move(name), static_cast<std::int64_t>(steps.size())};
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

std::string as_text(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& column : kColumns) cells.front().emplace_back(column.header);
  for (const Row& row : rows) {
    auto& line = cells.emplace_back();
    for (const RunLog::Cell& cell : row) line.push_back(std::visit(ToText{}, cell));
  }
  return table(cells);
}

std::string formatted(const std::vector<Row>& rows, const std::string& format) {
  if (format == "text") return as_text(rows);
  std::vector<std::string> columns;
  for (const Column& column : kColumns) columns.emplace_back(column.name);
  std::string out = format == "csv" ? csv_header(columns) : "[\n";
  for (const Row& row : rows) {
    if (format == "csv") {
      out += csv_row(row);
      continue;
    }
    out += json_row(columns, row);
    if (&row != &rows.back()) out.insert(out.size() - 1, ",");
  }
  return format == "csv" ? out : out + "]\n";
}

// The steps of one model, apart from those of the others.
std::vector<Steps> by_module(Steps steps) {
  std::vector<Steps> out;
  for (StepRecord& s : steps) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const Steps& other) {
      return other.front().model.module == s.model.module &&
             other.front().model.shard == s.model.shard;
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

void add_rows(const std::string& name, Steps steps, std::vector<Row>& rows) {
  const auto parts = by_module(std::move(steps));
  const bool models = std::ranges::any_of(parts, [&](const Steps& part) {
    return !part.empty() && part.front().model.module != parts.front().front().model.module;
  });
  const bool shards = std::ranges::any_of(
      parts, [](const Steps& part) { return !part.empty() && part.front().model.shard > 0; });
  for (const Steps& part : parts) {
    std::string of = name;
    if (models) of += fmt::format(" module {}", part.front().model.module);
    if (shards) of += fmt::format(" shard {}", part.front().model.shard);
    rows.push_back(row(std::move(of), part));
  }
}

void say_what_lacks(const std::string& name, std::span<const SegmentInfo> segments,
                    std::ostream& err) {
  for (const SegmentInfo& s : segments) {
    if (s.incomplete.empty()) continue;
    err << fmt::format("presum summary: {} is {}\n", printable(name),
                       printable(incomplete_text(s)));
  }
}

// A run that cannot be read is said and left out; the others are shown all the same.
int summarise(const SummaryArguments& arguments, const Streams& io) {
  std::vector<Row> rows;
  int code = kOk;
  for (const std::string& run : arguments.runs) {
    const auto log = RunLog::open(run);
    auto steps = log ? log->steps() : log.error();
    const auto segments = steps ? log->segments() : steps.error();
    if (segments) {
      add_rows(log->name(), std::move(*steps), rows);
      say_what_lacks(log->name(), *segments, io.err);
      continue;
    }
    code = complain(io, "summary", segments.error());
  }
  if (!rows.empty()) io.out << formatted(rows, arguments.format);
  return code;
}

}  // namespace

void add_summary(CLI::App& program, Command& chosen) {
  auto arguments = std::make_shared<SummaryArguments>();
  auto* command = program.add_subcommand("summary", "one line of metrics per run");
  command->footer(kSummaryHelp);
  command->add_option("RUN", arguments->runs, "run folders or presum.db files")->required();
  add_format(command, arguments->format, "text, json or csv", {"text", "json", "csv"});
  choose(command, chosen, arguments, summarise);
}

}  // namespace presum::cli
