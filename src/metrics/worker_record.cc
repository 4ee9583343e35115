// SPDX-License-Identifier: Apache-2.0
#include "metrics/worker_record.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "metrics/snapshots.h"

namespace presum::metrics {
namespace {

void fill_loss(WorkerRecord& w, const packet::Step& step) {
  double weighted = 0;
  double targets_weight = 0;
  for (const MicroBatch& m : step.micro) {
    if (m.weight > 0) weighted += m.weight * m.loss;
    w.weight += m.weight;
    w.tokens += m.tokens;
    w.targets += m.targets;
    targets_weight += m.targets > 0 ? m.token_weight * static_cast<double>(m.targets) : 0;
  }
  if (w.targets > 0) w.token_weight = targets_weight / static_cast<double>(w.targets);
  if (w.weight > 0) w.loss = weighted / w.weight;
  w.loss_nonfinite = w.weight > 0 && !std::isfinite(w.loss);
}

const packet::Group* find_group(const packet::Step& step, std::size_t at, std::uint64_t id) {
  if (at < step.groups.size() && step.groups[at].id == id) return &step.groups[at];
  const auto found = std::ranges::find(step.groups, id, &packet::Group::id);
  return found == step.groups.end() ? nullptr : &*found;
}

void add_group(GroupRecord& g, const packet::Group* group) {
  g.norms.push_back(group ? static_cast<float>(std::sqrt(group->sums.sum_squares)) : NAN);
  g.maxima.push_back(group ? static_cast<float>(group->sums.max_abs) : NAN);
  g.fingerprints.push_back(group ? static_cast<std::uint32_t>(group->sums.fingerprint) : 0);
  g.nonfinite += group ? group->sums.nonfinite : 0;
}

}  // namespace

WorkerRecord worker_record(const packet::Step& step) {
  WorkerRecord w{step};
  w.rank = step.header.identity.rank;
  w.replica = step.header.identity.replica;
  fill_loss(w, step);
  // A rank without input under DDP's join() takes part with no micro-batch.
  const bool unread =
      step.elements == 0 && (step.skipped_parameters > 0 || step.micro_batches == 0);
  w.grad_norm = unread ? kNaN : std::sqrt(step.total.sum_squares);
  w.grad_max = step.total.max_abs;
  w.nonfinite = step.total.nonfinite;
  w.fingerprint = step.total.fingerprint;
  if (step.reduced) {
    w.reduced_norm = std::sqrt(step.reduced->sum_squares);
    w.reduced_fingerprint = step.reduced->fingerprint;
  }
  return w;
}

std::vector<GroupRecord> group_records(Steps steps) {
  std::vector<GroupRecord> records;
  if (steps.empty()) return records;
  for (const packet::Group& group : steps.front()->groups) {
    GroupRecord& g = records.emplace_back();
    g.id = group.id;
    g.norms.reserve(steps.size());
    g.maxima.reserve(steps.size());
    g.fingerprints.reserve(steps.size());
  }
  for (const packet::Step* step : steps) {  // in the order of memory
    for (std::size_t g = 0; g < records.size(); ++g) {
      add_group(records[g], find_group(*step, g, records[g].id));
    }
  }
  for (GroupRecord& g : records) {
    const Snapshots m = snapshots(g.norms, [](float x) { return static_cast<double>(x); });
    g.norm_mean = m.mean;
    g.norm_std = m.std;
  }
  return records;
}

std::uint32_t distinct_gradients(std::span<const WorkerRecord> workers) {
  std::unordered_set<std::uint64_t> seen;
  for (const WorkerRecord& w : workers) {
    if (w.grad_norm > 0 || w.nonfinite > 0) seen.insert(w.fingerprint);
  }
  return static_cast<std::uint32_t>(seen.size());
}

}  // namespace presum::metrics
