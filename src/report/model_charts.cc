// SPDX-License-Identifier: Apache-2.0
#include "report/model_charts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace presum::report {
namespace {

constexpr std::size_t kBucketsMin = 16;
constexpr std::size_t kBucketsMax = 600;

struct StepColumn {
  const char* name;
  double StepRecord::*field;
};
constexpr StepColumn kStepColumns[] = {
    {"loss_mean", &StepRecord::loss_mean},           {"loss_std", &StepRecord::loss_std},
    {"grad_norm_mean", &StepRecord::grad_norm_mean}, {"grad_norm_std", &StepRecord::grad_norm_std},
    {"cosine_mean", &StepRecord::cosine_mean},       {"cosine_low", &StepRecord::cosine_low},
    {"cosine_high", &StepRecord::cosine_high},
};

std::size_t count_workers(std::span<const StepRecord> steps) {
  std::uint32_t most = 0;
  for (const StepRecord& s : steps) most = std::max(most, s.workers_expected);
  return most;
}

std::vector<std::uint64_t> step_numbers(std::span<const StepRecord> steps) {
  std::vector<std::uint64_t> out;
  for (const StepRecord& s : steps) out.push_back(s.step);
  return out;
}

std::size_t buckets_for(std::size_t workers, std::size_t groups, std::size_t cells_max) {
  const std::size_t columns = 2 * std::size(kStepColumns) +
                              (WorkerCharts::kColumns + TimeCharts::kColumns) * workers +
                              4 * groups;
  return std::clamp(cells_max / columns, kBucketsMin, kBucketsMax);
}

// The smallest and the largest finite loss; both NaN if there is none.
std::pair<double, double> loss_extremes(std::span<const WorkerRecord> workers) {
  std::pair<double, double> out{kNaN, kNaN};
  for (const WorkerRecord& w : workers) {
    if (!std::isfinite(w.loss)) continue;
    out.first = std::fmin(out.first, w.loss);
    out.second = std::fmax(out.second, w.loss);
  }
  return out;
}

// The mean of a field over the steps that have it.
double mean_of(std::span<const StepRecord> steps, double StepRecord::*field) {
  double sum = 0;
  std::uint64_t count = 0;
  for (const StepRecord& s : steps) {
    if (std::isnan(s.*field)) continue;
    sum += s.*field;
    ++count;
  }
  return ratio(sum, count);
}

std::uint64_t steps_with(std::span<const StepRecord> steps, double StepRecord::*field) {
  return static_cast<std::uint64_t>(std::count_if(
      steps.begin(), steps.end(), [&](const StepRecord& s) { return std::isfinite(s.*field); }));
}

}  // namespace

ModelCharts::ModelCharts(std::span<const StepRecord> steps, std::vector<GroupInfo> groups,
                         std::span<const std::uint64_t> findings, std::size_t cells_max)
    : steps_(steps),
      workers_expected_(count_workers(steps)),
      axis_(step_numbers(steps),
            buckets_for(std::min(workers_expected_, kWorkersDrawn), groups.size(), cells_max)),
      missing_(axis_.buckets()),
      workers_(axis_, std::min(workers_expected_, kWorkersDrawn)),
      times_(axis_, std::min(workers_expected_, kWorkersDrawn)),
      groups_(axis_, std::move(groups)),
      matrices_(steps, workers_expected_, findings) {
  for (const char* name : {"loss_min", "loss_max"}) series_.emplace(name, axis_);
  for (const auto& [name, field] : kStepColumns) {
    Column& column = series_.emplace(name, axis_).first->second;
    for (const StepRecord& s : steps_) column.add(*axis_.bucket(s.step), s.*field);
  }
  for (const StepRecord& s : steps_) {
    std::uint64_t& most = missing_[*axis_.bucket(s.step)];
    most = std::max<std::uint64_t>(most, s.missing_replicas.size());
  }
}

bool ModelCharts::holds(const StepKey& key) const {
  return key.model == steps_.front().model && axis_.bucket(key.step).has_value();
}

void ModelCharts::add_workers(const StepKey& key, std::span<const WorkerRecord> workers) {
  const std::size_t bucket = *axis_.bucket(key.step);
  const auto [low, high] = loss_extremes(workers);
  series_.at("loss_min").add(bucket, low);
  series_.at("loss_max").add(bucket, high);
  workers_.add(bucket, workers);
  times_.add(bucket, workers);
  matrices_.add_workers(key.step, workers);
}

void ModelCharts::add_groups(const StepKey& key, std::span<const GroupRecord> groups) {
  groups_.add(*axis_.bucket(key.step), groups);
}

Json ModelCharts::series_json() const {
  Json out = Json::object();
  for (const auto& [name, column] : series_) out[name] = numbers(column.rows());
  return out;
}

// The columns of `presum summary`.
Json ModelCharts::summary_json() const {
  constexpr std::size_t kLast = 20;
  const auto last = steps_.last(std::min(kLast, steps_.size()));
  const auto mean = [&](double StepRecord::*field) {
    return number(mean_of(steps_, field), kTableDigits);
  };
  return {{"loss", number(mean_of(last, &StepRecord::loss_mean), kTableDigits)},
          {"loss_std", mean(&StepRecord::loss_std)},
          {"loss_range", mean(&StepRecord::loss_range)},
          {"grad_norm_std", mean(&StepRecord::grad_norm_std)},
          {"grad_norm_cv", mean(&StepRecord::grad_norm_cv)},
          {"cosine_mean", mean(&StepRecord::cosine_mean)},
          {"effective_workers", mean(&StepRecord::effective_workers)},
          {"noise_scale", number(steps_.back().noise_scale, kTableDigits)}};
}

Json ModelCharts::coverage_json() const {
  std::uint64_t incomplete = 0;
  std::uint64_t disagrees = 0;
  for (const StepRecord& s : steps_) {
    incomplete += s.workers_seen < s.workers_expected;
    disagrees += s.reduced_disagrees;
  }
  return {{"steps", steps_.size()},
          {"first_step", steps_.front().step},
          {"last_step", steps_.back().step},
          {"workers_expected", workers_expected_},
          {"workers_seen", workers_.seen()},
          {"incomplete_steps", incomplete},
          {"loss_steps", workers_.loss_steps()},
          {"cosine_steps", steps_with(steps_, &StepRecord::cosine_mean)},
          {"reduced_steps", steps_with(steps_, &StepRecord::reduced_norm)},
          {"reduced_disagrees_steps", disagrees}};
}

Json ModelCharts::json() const {
  const StepRecord& first = steps_.front();
  return {{"segment", first.model.segment},
          {"model_index", first.model.model_index},
          {"dp_group", first.model.dp_group},
          {"decimated", axis_.decimated()},
          {"x", axis_.rows()},
          {"heat_x", axis_.starts()},
          {"missing", missing_},
          {"coverage", coverage_json()},
          {"summary", summary_json()},
          {"series", series_json()},
          {"workers", workers_.json()},
          {"time", times_.json()},
          {"groups", groups_.json()},
          {"matrices", matrices_.json()}};
}

}  // namespace presum::report
