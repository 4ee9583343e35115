// SPDX-License-Identifier: Apache-2.0
#include "cli/prometheus.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/text.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr std::size_t kRanksMax = 64;

struct StepGauge {
  const char* name;
  const char* help;
  double StepRecord::*value;
};

constexpr std::array kOfStep = {
    StepGauge{"loss_mean", "Mean of the ranks' finite losses.", &StepRecord::loss_mean},
    StepGauge{"loss_std", "Standard deviation of the ranks' finite losses.", &StepRecord::loss_std},
    StepGauge{"grad_norm_mean", "Mean of the finite norms of the ranks' own gradients.",
              &StepRecord::grad_norm_mean},
    StepGauge{"grad_norm_std",
              "Standard deviation of the finite norms of the ranks' own gradients.",
              &StepRecord::grad_norm_std},
    StepGauge{"cosine_mean",
              "Mean cosine similarity of the ranks' own gradients that are finite, over pairs.",
              &StepRecord::cosine_mean},
    StepGauge{"cosine_low", "Lower end of the 95 % interval of presum_cosine_mean.",
              &StepRecord::cosine_low},
    StepGauge{"cosine_high", "Upper end of the 95 % interval of presum_cosine_mean.",
              &StepRecord::cosine_high},
    StepGauge{"effective_workers",
              "Number of ranks that the agreement of the gradients amounts to.",
              &StepRecord::effective_workers},
    StepGauge{"noise_scale", "Running gradient noise scale, in batches of one rank.",
              &StepRecord::noise_scale},
};

struct RankGauge {
  const char* name;
  const char* help;
  double (*value)(const WorkerRecord&);
};

constexpr std::array kOfRank = {
    RankGauge{"loss", "Loss of the rank.", [](const WorkerRecord& w) { return w.loss; }},
    RankGauge{"grad_norm", "Norm of the rank's own gradient.",
              [](const WorkerRecord& w) { return w.grad_norm; }},
    RankGauge{"own_seconds", "Time of the step without waiting for other ranks.",
              [](const WorkerRecord& w) { return w.times.own(); }},
    RankGauge{"wait_seconds", "Time of the step in reductions and other collectives.",
              [](const WorkerRecord& w) { return w.times.of(Phase::kReduction); }},
};

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : printable(value)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string shown(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

using Labels = std::vector<std::pair<std::string_view, std::string>>;

// Values by metric: the format wants those of one metric together.
class Exposition {
 public:
  explicit Exposition(const std::string& run) : run_(escaped(run)) {}

  void add(const std::string& name, std::string_view help, const Labels& labels, double value) {
    if (std::isnan(value)) return;
    std::string& metric = metrics_[name];
    if (metric.empty()) {
      metric = fmt::format("# HELP presum_{0} {1}\n# TYPE presum_{0} gauge\n", name, help);
    }
    metric += fmt::format("presum_{}{{run=\"{}\"", name, run_);
    for (const auto& [label, text] : labels) metric += fmt::format(",{}=\"{}\"", label, text);
    metric += fmt::format("}} {}\n", shown(value));
  }

  std::string text() const {
    std::string out;
    for (const auto& [name, metric] : metrics_) out += metric;
    return out;
  }

 private:
  std::string run_;
  std::map<std::string, std::string> metrics_;
};

Labels labels_of(const ModelKey& model) {
  return {{"model", fmt::format("{}", model.model_index)},
          {"group", fmt::format("{}", model.dp_group)}};
}

void add_ranks(Exposition& out, const RankGauge& gauge, const StepRecord& step) {
  Labels labels = labels_of(step.model);
  labels.emplace_back("rank", "");
  for (const WorkerRecord& w : step.workers) {
    labels.back().second = fmt::format("{}", w.rank);
    out.add(gauge.name, gauge.help, labels, gauge.value(w));
  }
}

void add_extremes(Exposition& out, const RankGauge& gauge, const StepRecord& step) {
  double low = kNaN;
  double high = kNaN;
  for (const WorkerRecord& w : step.workers) {
    low = std::fmin(low, gauge.value(w));
    high = std::fmax(high, gauge.value(w));
  }
  const auto labels = labels_of(step.model);
  out.add(fmt::format("{}_lowest", gauge.name), fmt::format("Lowest over ranks: {}", gauge.help),
          labels, low);
  out.add(fmt::format("{}_highest", gauge.name), fmt::format("Highest over ranks: {}", gauge.help),
          labels, high);
}

void add_step(Exposition& out, const StepRecord& step) {
  const auto labels = labels_of(step.model);
  const std::uint32_t present = step.workers_seen + step.workers_left_out;
  out.add("step", "Number of the last step.", labels, static_cast<double>(step.step));
  out.add("ranks", "Ranks whose values arrived for the last step.", labels, step.workers_seen);
  out.add("ranks_missing", "Ranks whose values did not arrive for the last step.", labels,
          step.workers_expected - std::min(present, step.workers_expected));
  for (const StepGauge& gauge : kOfStep) out.add(gauge.name, gauge.help, labels, step.*gauge.value);
  const auto add = step.workers_expected <= kRanksMax ? add_ranks : add_extremes;
  for (const RankGauge& gauge : kOfRank) add(out, gauge, step);
}

Status add_findings(Exposition& out, const RunLog& log, std::uint32_t segment) {
  PRESUM_ASSIGN(const auto findings, log.findings());
  std::map<std::pair<std::string, Severity>, double> counts;
  for (const Finding& f : findings) {
    if (f.model.segment == segment) ++counts[{f.check, f.severity}];
  }
  for (const auto& [key, count] : counts) {
    out.add("findings", "Findings of a check.",
            {{"check", escaped(key.first)}, {"severity", to_string(key.second)}}, count);
  }
  return {};
}

// Whether ranks report where they are: without that, no stall is noticed.
Result<bool> sees_stalls(const RunLog& log, std::uint32_t segment) {
  PRESUM_ASSIGN(const auto checks, log.checks());
  return std::ranges::any_of(checks, [&](const RunLog::Check& c) {
    return c.model.segment == segment && c.record.check == "stall" &&
           c.record.state != CheckRecord::State::kNotPossible;
  });
}

Status add_stalls(Exposition& out, const RunLog& log, const SegmentInfo& segment) {
  PRESUM_ASSIGN(const auto stalls, log.stalls());
  PRESUM_ASSIGN(const bool seen, sees_stalls(log, segment.segment));
  const bool stalled = !segment.closed && std::ranges::any_of(stalls, [&](const StallRecord& s) {
    return s.segment == segment.segment && !s.over && !s.harmless && !s.busy;
  });
  if (seen || stalled) {
    out.add("stalled",
            "1: no rank makes progress, or ranks wait for one that is not known to work.", {},
            stalled ? 1 : 0);
  }
  return {};
}

// Unix time of the last write to a run.
double written_at(const std::filesystem::path& run) {
  std::error_code error;
  const auto file = std::filesystem::is_directory(run, error) ? run / "presum.db" : run;
  double out = kNaN;
  for (const char* suffix : {"", "-wal"}) {
    struct stat status = {};
    if (stat((file.string() + suffix).c_str(), &status) != 0) continue;
    out = std::fmax(out, static_cast<double>(status.st_mtime));
  }
  return out;
}

double unix_time(const std::string& utc) {
  std::tm time = {};
  const char* end = strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  return end == nullptr ? kNaN : static_cast<double>(timegm(&time));
}

}  // namespace

PrometheusReader::PrometheusReader(std::string run) : run_(std::move(run)), last_step_(kNaN) {}

Result<PrometheusText> PrometheusReader::read(double now) {
  PRESUM_ASSIGN(const RunLog log, RunLog::open(run_));
  PRESUM_ASSIGN(const auto written, log.steps_written());
  const auto before = std::exchange(steps_, written);
  if (before != written) last_step_ = before ? now : written_at(run_);
  PRESUM_ASSIGN(const auto segments, log.segments());
  if (segments.empty()) return fail(ErrorCode::kNotFound, run_ + " has not begun");
  const SegmentInfo& segment = segments.back();
  PRESUM_ASSIGN(auto steps, log.last_steps());
  std::erase_if(steps, [&](const StepRecord& s) { return s.model.segment != segment.segment; });
  Exposition out(log.name());
  for (const StepRecord& step : steps) add_step(out, step);
  PRESUM_TRY(add_findings(out, log, segment.segment));
  PRESUM_TRY(add_stalls(out, log, segment));
  out.add("started_timestamp_seconds", "Unix time at which the recording began.", {},
          unix_time(segment.started_utc));
  out.add("last_step_timestamp_seconds",
          "Unix time at which presum export saw the last step; where it was there before, of the "
          "last write to the run.",
          {}, steps.empty() ? kNaN : last_step_);
  out.add("recording_incomplete", "1: steps, or values of some ranks, were not recorded.", {},
          segment.incomplete.empty() ? 0 : 1);
  return PrometheusText{out.text(), segment.segment, segment.closed};
}

}  // namespace presum::cli
