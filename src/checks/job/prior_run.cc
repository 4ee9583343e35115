// SPDX-License-Identifier: Apache-2.0
#include "checks/job/prior_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/hash.h"
#include "checks/engine/text.h"
#include "presum/dtype.h"

namespace presum::checks {
namespace {

// Relative to the norm: float sums of the same values in a different order, and by the root of
// their number.
constexpr double kSame = 1e-6;
constexpr double kSameEach = 2e-9;
constexpr std::uint16_t kBf16 = 1U << static_cast<unsigned>(Dtype::kBF16);
constexpr double kRoundedBf16 = 0x1p-8;  // of the norm, at most, if formats differ
constexpr double kRounded = 0x1p-10;
constexpr std::uint32_t kAtLoader = 1 << 16;  // added to a generator's kind

void join(Whole& whole, const SnapshotGroup& group) {
  const auto of_shard = [&](std::uint64_t hash) {
    return group.shard == 0 ? hash : mix64(hash ^ group.shard);
  };
  whole.elements += group.elements;
  whole.squares += group.squares;
  whole.parameters += of_shard(group.parameters);
  whole.optimizer += of_shard(group.optimizer);
  whole.shards += mix64(group.shard);
  whole.formats |= group.formats;
  whole.sketched = whole.sketched && !group.sketch.empty();
  if (whole.sketch.empty()) whole.sketch.resize(group.sketch.size());
  for (std::size_t i = 0; i < std::min(whole.sketch.size(), group.sketch.size()); ++i) {
    whole.sketch[i] += static_cast<double>(group.sketch[i]);
  }
}

// Distance relative to the norm; NaN if unknown.
double distance(const Whole& a, const Whole& b) {
  if (!a.sketched || !b.sketched || a.sketch.size() != b.sketch.size()) return kNaN;
  double squares = 0;
  for (std::size_t i = 0; i < a.sketch.size(); ++i) {
    squares += (a.sketch[i] - b.sketch[i]) * (a.sketch[i] - b.sketch[i]);
  }
  return std::sqrt(squares);
}

// 0: unknown
bool other_format(std::uint16_t a, std::uint16_t b) { return a != 0 && b != 0 && a != b; }

// The largest distance of equal parameters, relative to the norm.
double tolerance(const Whole& a, const Whole& b) {
  if (other_format(a.formats, b.formats)) {
    return ((a.formats | b.formats) & kBf16) != 0 ? kRoundedBf16 : kRounded;
  }
  return kSame + kSameEach * std::sqrt(static_cast<double>(a.elements));
}

// None if some shards are missing, or if the sharding differs and there is no sketch.
std::optional<bool> same_parameters(const Whole& a, const Whole& b) {
  if (a.elements != b.elements) return std::nullopt;
  if (a.shards == b.shards && !other_format(a.formats, b.formats))
    return a.parameters == b.parameters;
  const double apart = distance(a, b);
  if (std::isnan(apart)) return std::nullopt;
  return apart <= tolerance(a, b) * std::sqrt(a.squares);
}

// Compares with the state before the first forward pass, or at the start of the first loader.
bool same_generators(const TrainingSnapshot& saved, const TrainingSnapshot& begun) {
  return std::ranges::all_of(saved.generators, [&](const FingerprintValue& g) {
    const std::uint64_t* value = find_value(begun.generators, g.kind);
    const std::uint64_t* earlier = find_value(begun.generators, kAtLoader + g.kind);
    return value == nullptr || *value == g.value || (earlier != nullptr && *earlier == g.value);
  });
}

}  // namespace

Model model_of(const Snapshots& workers) {
  Model out;
  std::set<std::pair<std::uint64_t, std::uint32_t>> seen;  // replicas of a shard count once
  for (const auto& [replica, snapshot] : workers) {
    for (const SnapshotGroup& group : snapshot->groups) {
      if (seen.emplace(group.id, group.shard).second) join(out[group.id], group);
    }
  }
  return out;
}

Apart parameters_apart(const Model& then, const Model& now) {
  Apart out;
  for (const auto& [id, was] : then) {
    const auto is = now.find(id);
    const auto same = is == now.end() ? std::nullopt : same_parameters(was, is->second);
    if (!same) continue;
    ++out.of;
    if (*same) continue;
    out.groups.push_back(id);
    const double d = distance(was, is->second);
    out.known = out.known && std::isfinite(d);
    out.squares += d * d;
    out.all += was.squares;
  }
  return out;
}

std::vector<std::uint64_t> states_apart(const Model& then, const Model& now) {
  std::vector<std::uint64_t> out;
  for (const auto& [id, was] : then) {
    const auto is = now.find(id);
    if (is == now.end() || was.optimizer == 0 || was.shards != is->second.shards ||
        was.elements != is->second.elements || other_format(was.formats, is->second.formats)) {
      continue;
    }
    if (was.optimizer != is->second.optimizer) out.push_back(id);
  }
  return out;
}

bool has_state(const Model& model) {
  return std::ranges::any_of(model, [](const auto& group) { return group.second.optimizer != 0; });
}

bool same_format(const Model& then, const Model& now) {
  return std::ranges::all_of(then, [&](const auto& group) {
    const auto is = now.find(group.first);
    return is == now.end() || !other_format(is->second.formats, group.second.formats);
  });
}

std::set<std::uint32_t> replicas_apart(const Snapshots& then, const Snapshots& now) {
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t> was;
  for (const auto& [replica, snapshot] : then) {
    for (const SnapshotGroup& g : snapshot->groups) was[{g.id, g.shard}] = g.parameters;
  }
  std::set<std::uint32_t> out;
  for (const auto& [replica, snapshot] : now) {
    for (const SnapshotGroup& g : snapshot->groups) {
      const auto part = was.find({g.id, g.shard});
      if (part == was.end() || g.shard == 0) return {};
      if (part->second != g.parameters) out.insert(replica);
    }
  }
  return out;
}

std::vector<std::uint32_t> other_generators(const Snapshots& then, const Snapshots& now) {
  std::vector<std::uint32_t> others;
  for (const auto& [replica, snapshot] : now) {
    const auto was = then.find(replica);
    if (was == then.end() || was->second->generators.empty()) return {};
    if (!same_generators(*was->second, *snapshot)) others.push_back(replica);
  }
  return others.size() < now.size() ? others : std::vector<std::uint32_t>();
}

std::vector<const SnapshotRecord*> snapshots_of(const PriorRun& prior) {
  std::vector<const SnapshotRecord*> out;
  for (auto one = prior.saved.rbegin(); one != prior.saved.rend(); ++one) {
    const bool again = !out.empty() && out.back()->model == one->model &&
                       out.back()->step == one->step && out.back()->number == one->number;
    if (!again) out.push_back(&*one);
  }
  return out;
}

Snapshots saved_with(const PriorRun& prior, const SnapshotRecord& one) {
  Snapshots out;
  for (const SnapshotRecord& other : prior.saved) {
    if (other.model.segment == one.model.segment && other.step == one.step &&
        other.number == one.number) {
      out[other.replica] = &other;
    }
  }
  return out;
}

bool has_weights(const PriorRun& prior, const SnapshotRecord& one, const Model& is) {
  const Apart apart = parameters_apart(model_of(saved_with(prior, one)), is);
  return apart.of > 0 && apart.groups.empty();
}

const SnapshotRecord* with_weights(const PriorRun& prior, const Model& is) {
  const auto snapshots = snapshots_of(prior);
  const auto found = std::ranges::find_if(
      snapshots, [&](const SnapshotRecord* one) { return has_weights(prior, *one, is); });
  return found == snapshots.end() ? nullptr : *found;
}

BeganWith began_with_which(const PriorRun& prior, const Model& is) {
  using Parameters = BeganWith::Parameters;
  BeganWith out;
  for (const SnapshotRecord* one : snapshots_of(prior)) {
    const Apart apart = parameters_apart(model_of(saved_with(prior, *one)), is);
    if (apart.of == 0) continue;
    if (apart.groups.empty()) return {Parameters::kSaved, one->model.segment, one->step};
    if (!prior.left_out) out.parameters = Parameters::kOthers;
  }
  return out;
}

std::string settings_changed(const TrainingSnapshot& was, const TrainingSnapshot& is,
                             std::uint32_t workers, std::size_t workers_now) {
  std::string changed;
  if (workers != 0 && workers != workers_now) {
    changed = fmt::format("{} to {} ranks", workers, workers_now);
  }
  if (std::isfinite(was.learning_rate) && std::isfinite(is.learning_rate) &&
      was.learning_rate != is.learning_rate) {
    changed += fmt::format("{}learning rate {} to {}", changed.empty() ? "" : "; ",
                           number(was.learning_rate), number(is.learning_rate));
  }
  return changed;
}

double largest_change(const std::vector<double>& rates) {
  double most = 0;
  for (std::size_t i = 1; i < rates.size(); ++i) {
    most = std::max(most, std::abs(rates[i] - rates[i - 1]));
  }
  return most;
}

bool replayed_since(const PriorRun& prior, const SnapshotRecord& one) {
  return std::ranges::any_of(prior.begun, [&](const auto& segment) {
    return segment.first > one.model.segment && !(segment.second >= one.optimizer_steps);
  });
}

}  // namespace presum::checks
