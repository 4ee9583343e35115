// SPDX-License-Identifier: Apache-2.0
// What a part holds, as the page's data.
#include <algorithm>
#include <cmath>
#include <set>

#include "report/part.h"

namespace presum::report {
namespace {

constexpr int kTableDigits = 7;
constexpr const char* kMetricNames[] = {"loss", "grad_norm", "cosine"};

double ratio(double sum, std::uint64_t count) {
  return count == 0 ? kNaN : sum / static_cast<double>(count);
}

// The mean of a field over steps that have it.
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

const char* source_name(CosineSource source) {
  switch (source) {
    case CosineSource::kNone:
      return "none";
    case CosineSource::kSketch:
      return "sketch";
    case CosineSource::kTotalNorm:
      return "total-norm";
    case CosineSource::kRowSums:
      return "row-sums";
    case CosineSource::kExact:
      return "exact";
    case CosineSource::kGram:
      return "gram";
  }
  return "none";
}

}  // namespace

Json Part::series_json() const {
  Json out = Json::object();
  for (const auto& [name, column] : series_) out[name] = numbers(column.rows());
  return out;
}

Json Part::workers_json() const {
  Json out = Json::array();
  for (std::size_t replica = 0; replica < workers_.size(); ++replica) {
    const Worker& w = workers_[replica];
    Json one = {{"replica", replica},
                {"rank", w.seen ? Json(w.rank) : Json(nullptr)},
                {"steps", w.steps},
                {"tokens", w.tokens},
                {"nonfinite_steps", w.nonfinite_steps},
                {"zero_steps", w.zero_steps},
                {"dropped", w.dropped}};
    for (std::size_t m = 0; m < kMetrics; ++m) {
      one["mean"][kMetricNames[m]] = number(ratio(w.sums[m], w.counts[m]), kTableDigits);
      one["furthest"][kMetricNames[m]] = number(w.counts[m] == 0 ? kNaN : w.furthest[m]);
      one["lines"][kMetricNames[m]] = numbers(w.lines[m].rows());
      one["heat"][kMetricNames[m]] = w.heat[m];
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json Part::groups_json() const {
  Json out = Json::array();
  for (const Group& g : groups_) {
    out.push_back({{"name", g.info.name},
                   {"elements", g.info.elements},
                   {"norm", number(ratio(g.norm_sum, g.count), kTableDigits)},
                   {"cv", number(ratio(g.cv_sum, g.cv_count), kTableDigits)},
                   {"nonfinite", g.nonfinite},
                   {"norms", numbers(g.lines[0].rows())},
                   {"stds", numbers(g.lines[1].rows())}});
  }
  return out;
}

// The columns of `presum summary`.
Json Part::summary_json() const {
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

Json Part::coverage_json() const {
  std::set<std::string> sources;
  std::uint32_t distinct_min = steps_.front().distinct_gradients;
  std::uint32_t distinct_max = distinct_min;
  std::uint64_t incomplete = 0;
  std::uint64_t disagrees = 0;
  for (const StepRecord& s : steps_) {
    sources.insert(source_name(s.cosine_source));
    distinct_min = std::min(distinct_min, s.distinct_gradients);
    distinct_max = std::max(distinct_max, s.distinct_gradients);
    incomplete += s.workers_seen < s.workers_expected;
    disagrees += s.reduced_disagrees;
  }
  const auto seen =
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.seen; });
  return {{"steps", steps_.size()},
          {"first_step", steps_.front().step},
          {"last_step", steps_.back().step},
          {"workers_expected", workers_expected_},
          {"workers_seen", seen},
          {"incomplete_steps", incomplete},
          {"loss_steps", measured_[0]},
          {"cosine_steps", steps_with(steps_, &StepRecord::cosine_mean)},
          {"reduced_steps", steps_with(steps_, &StepRecord::reduced_norm)},
          {"reduced_disagrees_steps", disagrees},
          {"sketch_size", steps_.back().sketch_size},
          {"cosine_sources", sources},
          {"distinct_min", distinct_min},
          {"distinct_max", distinct_max}};
}

Json Part::json() const {
  const StepRecord& first = steps_.front();
  return {{"segment", first.model.segment},
          {"module", first.model.module},
          {"shard", first.model.shard},
          {"decimated", axis_.decimated()},
          {"x", axis_.rows()},
          {"heat_x", axis_.starts()},
          {"missing", missing_},
          {"coverage", coverage_json()},
          {"summary", summary_json()},
          {"series", series_json()},
          {"workers", workers_json()},
          {"groups", groups_json()},
          {"matrices", matrices_}};
}

}  // namespace presum::report
