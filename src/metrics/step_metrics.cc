// SPDX-License-Identifier: Apache-2.0
#include "metrics/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "metrics/exact_cosines.h"
#include "metrics/layer_reductions.h"
#include "metrics/noise.h"
#include "metrics/norm_sums.h"
#include "metrics/reduced_gradient.h"
#include "metrics/sketch_cosines.h"
#include "metrics/snapshots.h"

namespace presum::metrics {
namespace {

constexpr double kSameWeight = 1e-3;  // gradients are rounded to 32 bits

void fill_targets_sums(std::vector<WorkerRecord>& workers) {
  const double first = workers.front().token_weight;
  const auto equal = [&](const WorkerRecord& w) {
    return std::abs(w.token_weight - first) <= kSameWeight * first;
  };
  if (!(first > 0) || !std::ranges::all_of(workers, equal)) return;
  for (WorkerRecord& w : workers) w.targets_sum = w.token_weight * static_cast<double>(w.targets);
}

StepRecord record_of(const StepInput& input) {
  StepRecord record;
  record.workers_expected = input.workers_expected;
  record.workers_left_out = input.left_out;
  record.workers_seen = static_cast<std::uint32_t>(input.workers.size());
  record.missing_replicas = input.missing;
  if (input.workers.empty()) return record;
  const packet::Header& h = input.workers.front()->header;
  record.model = {h.segment, h.identity.model_index, h.identity.dp_group};
  record.step = h.step;
  for (const packet::Step* step : input.workers) record.workers.push_back(worker_record(*step));
  fill_targets_sums(record.workers);
  record.groups = group_records(input.workers);
  if (record.workers_seen == record.workers_expected) {
    record.layers = layer_reductions(input.workers);
    join_shards(input.workers, record.workers);
  }
  record.distinct_gradients = distinct_gradients(record.workers);
  return record;
}

void fill_dispersion(StepRecord& record) {
  const auto loss = snapshots(record.workers, [](const WorkerRecord& w) { return w.loss; });
  record.loss_mean = loss.mean;
  record.loss_std = loss.std;
  record.loss_range = loss.range;
  const auto norm = snapshots(record.workers, [](const WorkerRecord& w) { return w.grad_norm; });
  record.grad_norm_mean = norm.mean;
  record.grad_norm_std = norm.std;
  if (norm.mean > 0) record.grad_norm_cv = norm.std / norm.mean;
  const auto tokens = snapshots(record.workers, [](const WorkerRecord& w) {
    return w.tokens == 0 ? kNaN : static_cast<double>(w.tokens);
  });
  if (tokens.count == record.workers.size() && tokens.count > 0) {
    record.tokens_cv = tokens.std / tokens.mean;
  }
}

// Sum over i != j of <g_i, g_j>.
struct CrossSum {
  std::optional<double> exact;
  std::optional<double> estimated;
};

// Fills in the cosines and the norm of the mean gradient from the most exact source available.
CrossSum fill_directions(const StepInput& input, const NormSums& norms, ReducedGradient& reduced,
                         StepRecord& record) {
  const Directions directed = directed_workers(input.workers, record.workers);
  record.sketch_size = directed.sketch_size;
  const auto products = fill_gram_cosines(input.workers, input.pairwise, norms, reduced, record);
  if (products && !norms.complete) return {};
  if (products) return {products, std::nullopt};
  SketchCosines sketched(directed, norms, record);
  sketched.fill_mean_norm();
  if (!fill_exact_pair(input.workers, directed, input.pairwise, reduced, record)) {
    sketched.fill_cosines(input.pairwise, reduced);
  }
  return {reduced.cross_sum(), sketched.cross_sum()};
}

}  // namespace

StepRecord compute(const StepInput& input) {
  StepRecord record = record_of(input);
  fill_dispersion(record);
  const NormSums norms = sum_norms(record);
  ReducedGradient reduced(record.workers, norms);
  const CrossSum cross = fill_directions(input, norms, reduced, record);
  record.reduced_norm = reduced.norm();
  record.reduced_disagrees = reduced.contradicted();
  if (cross.exact && norms.workers > 1 && norms.pair_weight() > 0) {
    record.consistency = *cross.exact / norms.pair_weight();
  }
  const auto known = cross.exact ? cross.exact : cross.estimated;
  if (known) fill_noise(*known, norms, record);
  if (input.noise_scale != nullptr && !record.unused()) {
    record.noise_scale = input.noise_scale->update(record.signal, record.noise);
  }
  return record;
}

}  // namespace presum::metrics
