// SPDX-License-Identifier: Apache-2.0
#include "report/part.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace presum::report {
namespace {

constexpr std::size_t kBucketsMin = 16;
constexpr std::size_t kBucketsMax = 600;
constexpr std::size_t kColumnsPerWorker = 9;  // three metrics: two rows of a line, one heat cell
constexpr std::size_t kMatrixCells = 60'000;
constexpr std::size_t kMatrixStepsMin = 6;
constexpr std::size_t kMatrixStepsMax = 64;
constexpr std::size_t kMatrixWorkersMax = 256;

// The page's marks in a heat map, above every deviation in tenths.
constexpr int kDeviationMax = 9'999;
constexpr int kMarkNone = 30'000;       // no packet of this worker in this bucket
constexpr int kMarkUndefined = 30'001;  // a packet, but no such value
constexpr int kMarkNonfinite = 30'002;

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
  const std::size_t columns =
      2 * std::size(kStepColumns) + kColumnsPerWorker * workers + 4 * groups;
  return std::clamp(cells_max / columns, kBucketsMin, kBucketsMax);
}

// The index of the smallest and of the largest finite value of a field, if there is one.
void add_extremes(std::span<const StepRecord> steps, double StepRecord::*field,
                  std::set<std::size_t>& out) {
  std::size_t low = steps.size();
  std::size_t high = steps.size();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double value = steps[i].*field;
    if (!std::isfinite(value)) continue;
    if (low == steps.size() || value < steps[low].*field) low = i;
    if (high == steps.size() || value > steps[high].*field) high = i;
  }
  for (const std::size_t i : {low, high}) {
    if (i < steps.size()) out.insert(i);
  }
}

// NaN and NaN where no value is finite.
std::pair<double, double> finite_extremes(std::span<const double> values) {
  std::pair<double, double> out{kNaN, kNaN};
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    out.first = std::fmin(out.first, v);
    out.second = std::fmax(out.second, v);
  }
  return out;
}

int tenths(double deviation) {
  const double limit = kDeviationMax;
  return static_cast<int>(std::lround(std::clamp(deviation * 10, -limit, limit)));
}

// The one of two heat cells that a bucket shows.
int stronger(int a, int b) {
  const auto strength = [](int v) {
    if (v == kMarkNone) return -2;
    if (v == kMarkUndefined) return -1;
    return std::abs(v);
  };
  return strength(b) > strength(a) ? b : a;
}

}  // namespace

Part::Part(std::span<const StepRecord> steps, std::vector<GroupInfo> groups, std::size_t cells_max)
    : steps_(steps),
      workers_expected_(count_workers(steps)),
      axis_(step_numbers(steps),
            buckets_for(std::min(workers_expected_, kWorkersDrawn), groups.size(), cells_max)),
      workers_(std::min(workers_expected_, kWorkersDrawn)),
      missing_(axis_.buckets()) {
  for (Worker& w : workers_) {
    w.lines.assign(kMetrics, Column(axis_));
    w.heat.assign(kMetrics, std::vector<int>(axis_.buckets(), kMarkNone));
  }
  for (GroupInfo& info : groups) {
    group_at_.emplace(info.id, groups_.size());
    groups_.push_back({.info = std::move(info), .lines = {Column(axis_), Column(axis_)}});
  }
  add_steps();
  for (const StepKey& key : matrix_steps()) present_[key.step] = {};
}

void Part::add_steps() {
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

bool Part::holds(const StepKey& key) const {
  const StepRecord& s = steps_.front();
  return key.model.segment == s.model.segment && key.model.module == s.model.module &&
         key.model.shard == s.model.shard && axis_.bucket(key.step).has_value();
}

void Part::heat(Worker& worker, std::size_t metric, std::size_t bucket, double deviation,
                int mark) {
  if (std::isfinite(deviation) && std::abs(deviation) > std::abs(worker.furthest[metric])) {
    worker.furthest[metric] = deviation;
  }
  int& cell = worker.heat[metric][bucket];
  cell = stronger(cell, std::isfinite(deviation) ? tenths(deviation) : mark);
}

void Part::add_workers(const StepKey& key, std::span<const WorkerRecord> workers) {
  const std::size_t bucket = *axis_.bucket(key.step);
  const auto present = present_.find(key.step);
  std::array<std::vector<double>, kMetrics> values;
  for (const WorkerRecord& w : workers) {
    values[0].push_back(w.loss);
    values[1].push_back(w.grad_norm);
    values[2].push_back(w.cosine_to_others);
    if (present != present_.end()) present->second.push_back(w.replica);
  }
  const auto [low, high] = finite_extremes(values[0]);
  series_.at("loss_min").add(bucket, low);
  series_.at("loss_max").add(bucket, high);
  std::array<std::vector<double>, kMetrics> deviations;
  for (std::size_t m = 0; m < kMetrics; ++m) {
    deviations[m] = deviations_[m].step(values[m]);
    measured_[m] +=
        std::any_of(values[m].begin(), values[m].end(), [](double v) { return std::isfinite(v); });
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const WorkerRecord& record = workers[i];
    if (record.replica >= workers_.size()) continue;
    Worker& w = workers_[record.replica];
    w.seen = true;
    w.rank = record.rank;
    ++w.steps;
    w.tokens += record.tokens;
    w.dropped = record.dropped;
    w.nonfinite_steps += record.nonfinite > 0 || record.loss_nonfinite;
    w.zero_steps += record.grad_norm == 0;
    const std::array<bool, kMetrics> broken = {record.loss_nonfinite, record.nonfinite > 0, false};
    for (std::size_t m = 0; m < kMetrics; ++m) {
      const double value = values[m][i];
      w.lines[m].add(bucket, value);
      if (std::isfinite(value)) {
        w.sums[m] += value;
        ++w.counts[m];
      }
      heat(w, m, bucket, deviations[m][i], broken[m] ? kMarkNonfinite : kMarkUndefined);
    }
  }
}

void Part::add_groups(const StepKey& key, std::span<const GroupRecord> groups) {
  const std::size_t bucket = *axis_.bucket(key.step);
  for (const GroupRecord& record : groups) {
    const auto at = group_at_.find(record.id);
    if (at == group_at_.end()) continue;
    Group& g = groups_[at->second];
    g.nonfinite += record.nonfinite;
    g.lines[0].add(bucket, record.norm_mean);
    g.lines[1].add(bucket, record.norm_std);
    if (!std::isfinite(record.norm_mean)) continue;
    g.norm_sum += record.norm_mean;
    ++g.count;
    if (!(record.norm_mean > 0) || !std::isfinite(record.norm_std)) continue;
    g.cv_sum += record.norm_std / record.norm_mean;
    ++g.cv_count;
  }
}

std::vector<StepKey> Part::matrix_steps() const {
  if (workers_expected_ < 2 || workers_expected_ > kMatrixWorkersMax) return {};
  const std::size_t pairs = workers_expected_ * (workers_expected_ - 1) / 2;
  const std::size_t count = std::clamp(kMatrixCells / pairs, kMatrixStepsMin, kMatrixStepsMax);
  std::set<std::size_t> chosen = {0, steps_.size() - 1};
  for (const auto field :
       {&StepRecord::cosine_mean, &StepRecord::loss_std, &StepRecord::grad_norm_std}) {
    if (steps_.size() > count) add_extremes(steps_, field, chosen);
  }
  const std::size_t even = count > chosen.size() ? count - chosen.size() : 0;
  for (std::size_t i = 0; i < even; ++i) chosen.insert(i * steps_.size() / even);
  std::vector<StepKey> out;
  for (const std::size_t i : chosen) {
    const StepRecord& s = steps_[i];
    out.push_back({s.model.segment, s.model.module, s.model.shard, s.step});
  }
  return out;
}

void Part::add_matrix(const StepKey& key, std::span<const float> pairs) {
  const auto& present = present_.at(key.step);
  if (present.size() < 2 || pairs.size() != present.size() * (present.size() - 1) / 2) return;
  Json cosines = Json::array();
  for (const float c : pairs) {
    cosines.push_back(std::isfinite(c) ? Json(std::lround(c * 1000)) : Json(nullptr));
  }
  matrices_.push_back({{"step", key.step}, {"replicas", present}, {"cosines", cosines}});
}

}  // namespace presum::report
