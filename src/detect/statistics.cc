// SPDX-License-Identifier: Apache-2.0
#include "detect/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "detect/partition.h"

namespace presum::detect {
namespace {

struct Line {
  double x = 0;
  double y = 0;
  double slope = 0;
};

// Least squares; the slope is 0 if x does not vary.
Line fit(std::span<const double> x, std::span<const double> y) {
  Line line;
  const double n = double(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    line.x += x[i] / n;
    line.y += y[i] / n;
  }
  double xx = 0;
  double xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - line.x) * (x[i] - line.x);
    xy += (x[i] - line.x) * (y[i] - line.y);
  }
  line.slope = xx > 0 ? xy / xx : 0;
  return line;
}

// Whether the losses are the rank's share of a loss over all targets, not means over its own.
bool are_shares(const WorkerRecord& w) {
  return w.targets_sum != 1 &&
         std::ranges::all_of(w.micro, [](const MicroBatch& m) { return m.differentiated; });
}

double mean_over_own(const WorkerRecord& w, const MicroBatch& m) {
  const double sum = m.token_weight * static_cast<double>(m.targets);
  return are_shares(w) ? m.loss / sum : m.loss;
}

// Whether passes of the step may be parts of one loss: a backward pass inside the model's forward
// and one after it, or several of one forward.
bool is_of_parts(const WorkerRecord& w) {
  return w.fingerprint_of(FingerprintKind::kBackwardOrder) != nullptr;
}

double log_weight(const WorkerRecord& w) {
  const std::uint64_t* bits = w.fingerprint_of(FingerprintKind::kGradientWeight);
  const double weight = bits == nullptr ? w.targets_sum : std::bit_cast<double>(*bits);
  return weight > 0 && std::isfinite(weight) ? std::log(weight) : 0;
}

}  // namespace

double log_norm(const WorkerRecord& worker, double norm) {
  return std::log(norm) - log_weight(worker);
}

void Statistics::fill(const StepRecord& record, std::size_t workers, const std::vector<bool>& odd) {
  for (auto* values : {&loss, &norm, &direction, &peak, &residual, &tokens, &closest}) {
    values->assign(workers, kNaN);
  }
  micro.resize(workers);
  for (auto& losses : micro) losses.clear();
  for (const WorkerRecord& worker : record.workers) fill_worker(worker);
  if (record.workers.size() < 3) std::ranges::fill(direction, kNaN);
  const auto count = [](const WorkerRecord& w) { return w.micro_batches; };
  if (!record.workers.empty() && std::ranges::any_of(record.workers, [&](const WorkerRecord& w) {
        return count(w) != count(record.workers.front());
      })) {  // each rank may divide its losses by its own number
    std::ranges::fill(loss, kNaN);
    for (auto& losses : micro) losses.clear();
  }
  if (std::ranges::any_of(record.workers, is_of_parts)) {
    for (auto& losses : micro) losses.clear();
  }
  fill_residual(odd);
  fill_closest();
}

void Statistics::fill_worker(const WorkerRecord& w) {
  const std::size_t i = w.replica;
  loss[i] = are_shares(w) ? w.loss / w.targets_sum : w.loss;
  norm[i] = log_norm(w, w.grad_norm);
  direction[i] = w.cosine_to_others;
  if (w.grad_norm > 0) peak[i] = std::log(w.grad_max / w.grad_norm);
  if (w.tokens > 0) tokens[i] = std::log(double(w.tokens));
  const auto has_targets = [](const MicroBatch& m) { return m.targets > 0; };
  const bool some_have = std::ranges::any_of(w.micro, has_targets);
  for (const MicroBatch& m : w.micro) {
    if (some_have && !has_targets(m)) continue;  // a penalty with a backward pass of its own
    const double loss_of_own = mean_over_own(w, m);
    if (m.weight > 0 && std::isfinite(loss_of_own)) micro[i].push_back(loss_of_own);
  }
}

void Statistics::fill_residual(const std::vector<bool>& odd) {
  std::vector<double> x;
  std::vector<double> y;
  const auto counts = [&](std::size_t i) {
    return !odd[i] && std::isfinite(loss[i]) && std::isfinite(norm[i]);
  };
  for (std::size_t i = 0; i < loss.size(); ++i) {
    if (!counts(i)) continue;
    x.push_back(loss[i]);
    y.push_back(norm[i]);
  }
  const Line line = fit(x, y);
  if (x.size() < 4 || line.slope == 0) return;
  for (std::size_t i = 0; i < loss.size(); ++i) {
    if (counts(i)) residual[i] = std::abs(norm[i] - line.y - line.slope * (loss[i] - line.x));
  }
}

// Comparable only between ranks with equally many losses.
void Statistics::fill_closest() {
  std::size_t count = 0;
  for (const auto& losses : micro) {
    if (losses.empty()) continue;
    if (count != 0 && losses.size() != count) return;
    count = losses.size();
  }
  for (std::size_t i = 0; i < micro.size(); ++i) {
    closest[i] = detect::closest(micro[i], scratch_);
  }
}

bool weigh_alike(const StepRecord& record) {
  const std::uint64_t rows = record.workers.empty() ? 0 : record.workers.front().samples.rows;
  return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
    const auto told = [](const MicroBatch& m) { return m.weight != 1; };
    const auto other_size = [&](const MicroBatch& m) { return m.tokens != w.micro.front().tokens; };
    const bool even_rows = w.samples.rows == rows && rows % std::max(w.micro_batches, 1U) == 0;
    return std::ranges::all_of(w.micro, told) ||
           (even_rows && std::ranges::none_of(w.micro, other_size));
  });
}

bool practically_zero(const StepRecord& record, const GroupRecord& group) {
  constexpr double kRounding = 1e-6;  // relative to the norm of the whole gradient
  const std::size_t n = std::min(record.workers.size(), group.norms.size());
  for (std::size_t k = 0; k < n; ++k) {
    if (!(double{group.norms[k]} <= kRounding * record.workers[k].grad_norm)) return false;
  }
  return true;
}

void fill_group(const StepRecord& record, const GroupRecord& group, std::span<double> out) {
  std::ranges::fill(out, kNaN);
  const std::size_t n = std::min(record.workers.size(), group.norms.size());
  for (std::size_t k = 0; k < n; ++k) {
    const WorkerRecord& worker = record.workers[k];
    out[worker.replica] = log_norm(worker, double{group.norms[k]});
  }
}

}  // namespace presum::detect
