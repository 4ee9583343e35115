// SPDX-License-Identifier: Apache-2.0
#include "cli/prometheus.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/output_file.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

constexpr std::size_t kRanksMax = 64;

struct StepGauge {
  const char* name;
  const char* help;
  double StepRecord::*value;
};

constexpr std::array kOfStep = {
    StepGauge{"loss_mean", "Mean of the ranks' losses.", &StepRecord::loss_mean},
    StepGauge{"loss_std", "Standard deviation of the ranks' losses.", &StepRecord::loss_std},
    StepGauge{"grad_norm_mean", "Mean norm of the ranks' own gradients.",
              &StepRecord::grad_norm_mean},
    StepGauge{"grad_norm_std", "Standard deviation of the norms of the ranks' own gradients.",
              &StepRecord::grad_norm_std},
    StepGauge{"cosine_mean", "Mean cosine similarity of the ranks' own gradients, over pairs.",
              &StepRecord::cosine_mean},
    StepGauge{"cosine_low", "Lower end of the 95 % interval of presum_cosine_mean.",
              &StepRecord::cosine_low},
    StepGauge{"cosine_high", "Upper end of the 95 % interval of presum_cosine_mean.",
              &StepRecord::cosine_high},
    StepGauge{"effective_workers",
              "Number of ranks that the agreement of the gradients amounts to.",
              &StepRecord::effective_workers},
    StepGauge{"noise_scale", "Gradient noise scale, in batches of one rank.",
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
  out.add(fmt::format("{}_lowest", gauge.name), gauge.help, labels, low);
  out.add(fmt::format("{}_highest", gauge.name), gauge.help, labels, high);
}

void add_step(Exposition& out, const StepRecord& step) {
  const auto labels = labels_of(step.model);
  out.add("step", "Number of the last step.", labels, static_cast<double>(step.step));
  out.add("ranks", "Ranks whose values arrived for the last step.", labels, step.workers_seen);
  out.add("ranks_expected", "Ranks that the last step is expected from.", labels,
          step.workers_expected);
  for (const StepGauge& gauge : kOfStep) out.add(gauge.name, gauge.help, labels, step.*gauge.value);
  const auto add = step.workers.size() <= kRanksMax ? add_ranks : add_extremes;
  for (const RankGauge& gauge : kOfRank) add(out, gauge, step);
}

Status add_last_steps(Exposition& out, const RunLog& log, std::uint32_t segment) {
  PRESUM_ASSIGN(const auto counts, log.step_counts());
  for (const StepCount& count : counts) {
    if (count.model.segment != segment) continue;
    PRESUM_ASSIGN(auto cursor, log.cursor(count.model, count.end - 1));
    PRESUM_ASSIGN(const StepRecord* step, cursor.next());
    if (step != nullptr) add_step(out, *step);
  }
  return {};
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

Status add_stalls(Exposition& out, const RunLog& log, std::uint32_t segment) {
  PRESUM_ASSIGN(const auto stalls, log.stalls());
  const bool stalled = std::ranges::any_of(
      stalls, [&](const StallRecord& s) { return s.segment == segment && !s.over && !s.harmless; });
  out.add("stalled", "1: a rank waits for another for long, or training stands still.", {},
          stalled ? 1 : 0);
  return {};
}

// Unix time of the last write to a run.
std::optional<double> written_at(const std::filesystem::path& run) {
  std::error_code error;
  const auto file = std::filesystem::is_directory(run, error) ? run / "presum.db" : run;
  std::optional<double> out;
  for (const char* suffix : {"", "-wal"}) {
    struct stat status = {};
    if (stat((file.string() + suffix).c_str(), &status) != 0) continue;
    out = std::max(out.value_or(0), static_cast<double>(status.st_mtime));
  }
  return out;
}

}  // namespace

Result<std::string> prometheus_text(const RunLog& log, std::optional<double> last_step) {
  PRESUM_ASSIGN(const auto segments, log.segments());
  Exposition out(log.name());
  const std::uint32_t segment = segments.empty() ? 0 : segments.back().segment;
  PRESUM_TRY(add_last_steps(out, log, segment));
  PRESUM_TRY(add_findings(out, log, segment));
  PRESUM_TRY(add_stalls(out, log, segment));
  out.add("last_step_timestamp_seconds", "Unix time at which the last step was recorded.", {},
          last_step.value_or(kNaN));
  const bool incomplete = !segments.empty() && !segments.back().incomplete.empty();
  out.add("recording_incomplete", "1: steps, or values of some ranks, were not recorded.", {},
          incomplete ? 1 : 0);
  return out.text();
}

PrometheusFile::PrometheusFile(std::string run, std::filesystem::path file)
    : run_(std::move(run)), file_(std::move(file)) {}

Result<bool> PrometheusFile::update() {
  PRESUM_ASSIGN(const RunLog log, RunLog::open(run_));
  PRESUM_ASSIGN(const auto steps, log.steps_written());
  if (steps != std::exchange(steps_, steps)) last_step_ = written_at(run_);
  PRESUM_ASSIGN(const auto segments, log.segments());
  PRESUM_ASSIGN(auto text, prometheus_text(log, last_step_));
  if (text != written_) PRESUM_TRY(replace_file(file_, text));
  written_ = std::move(text);
  return !segments.empty() && segments.back().closed;
}

void PrometheusFile::remove() const {
  std::error_code error;
  if (written_.empty()) return;
  std::filesystem::remove(file_, error);
}

}  // namespace presum::cli
