// SPDX-License-Identifier: Apache-2.0
#include "report/cosine_matrices.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace presum::report {
namespace {

constexpr std::size_t kMatrixCells = 60'000;
constexpr std::size_t kMatrixStepsMin = 6;
constexpr std::size_t kMatrixStepsMax = 64;
constexpr std::size_t kMatrixWorkersMax = 256;

// Adds the indices of a field's smallest and largest finite values, if there are any.
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

// The index of the first recorded step that is not below `step`; the last index if there is none.
std::size_t index_of(std::span<const StepRecord> steps, std::uint64_t step) {
  const auto found = std::ranges::lower_bound(steps, step, {}, &StepRecord::step);
  return found == steps.end() ? steps.size() - 1 : static_cast<std::size_t>(found - steps.begin());
}

std::vector<StepKey> chosen_steps(std::span<const StepRecord> steps, std::size_t workers,
                                  std::span<const std::uint64_t> findings) {
  if (workers < 2 || workers > kMatrixWorkersMax) return {};
  const std::size_t pairs = workers * (workers - 1) / 2;
  const std::size_t count = std::clamp(kMatrixCells / pairs, kMatrixStepsMin, kMatrixStepsMax);
  std::set<std::size_t> chosen = {0, steps.size() - 1};
  for (const std::uint64_t first : findings) {
    if (chosen.size() <= count / 2) chosen.insert(index_of(steps, first));
  }
  for (const auto field :
       {&StepRecord::cosine_mean, &StepRecord::loss_std, &StepRecord::grad_norm_std}) {
    if (steps.size() > count) add_extremes(steps, field, chosen);
  }
  const std::size_t left = count > chosen.size() ? count - chosen.size() : 0;
  const std::size_t even = steps.size() > count ? left : steps.size();
  for (std::size_t i = 0; i < even; ++i) chosen.insert(i * steps.size() / even);
  std::vector<StepKey> out;
  for (const std::size_t i : chosen) {
    const StepRecord& s = steps[i];
    out.push_back({s.model, s.step});
  }
  return out;
}

}  // namespace

CosineMatrices::CosineMatrices(std::span<const StepRecord> steps, std::size_t workers,
                               std::span<const std::uint64_t> findings)
    : steps_(chosen_steps(steps, workers, findings)) {
  for (const StepKey& key : steps_) replicas_[key.step] = {};
}

void CosineMatrices::add_workers(std::uint64_t step, std::span<const WorkerRecord> workers) {
  const auto found = replicas_.find(step);
  if (found == replicas_.end()) return;
  for (const WorkerRecord& w : workers) found->second.push_back(w.replica);
}

void CosineMatrices::add(const StepKey& key, std::span<const float> pairs) {
  const auto& replicas = replicas_.at(key.step);
  if (replicas.size() < 2 || pairs.size() != replicas.size() * (replicas.size() - 1) / 2) return;
  Json cosines = Json::array();
  for (const float c : pairs) {
    cosines.push_back(std::isfinite(c) ? Json(std::lround(c * 1000)) : Json(nullptr));
  }
  matrices_.push_back({{"step", key.step}, {"replicas", replicas}, {"cosines", cosines}});
}

}  // namespace presum::report
