// SPDX-License-Identifier: Apache-2.0
// One step of both runs, side by side.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "presum/step_record.h"

namespace presum::compare {

// The names of groups and their positions in the model.
class GroupOrder {
 public:
  void add(const GroupInfo& group) { groups_.try_emplace(group.id, group.position, group.name); }
  // Names of the groups, the last one in the model first; a group without a name is shown by its
  // id.
  std::vector<std::string> names_backward(const std::vector<std::uint64_t>& ids) const {
    std::vector<std::pair<std::uint32_t, std::string>> known;
    for (const std::uint64_t id : ids) {
      const auto group = groups_.find(id);
      known.push_back(group != groups_.end() ? group->second
                                             : std::pair(0U, fmt::format("group {:016x}", id)));
    }
    std::ranges::sort(known, std::greater<>());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    std::vector<std::string> out;
    out.reserve(known.size());
    for (auto& [position, name] : known) out.push_back(std::move(name));
    return out;
  }

 private:
  std::map<std::uint64_t, std::pair<std::uint32_t, std::string>> groups_;
};

using WorkerPair = std::pair<const WorkerRecord*, const WorkerRecord*>;

// For different world sizes: pairs every rank of one run with the first rank of the other. What
// ranks have in common is equal if all pairs are. Skips ranks that `has` rejects.
template <class Has>
std::vector<WorkerPair> pairs_across_runs(const StepRecord& a, const StepRecord& b, Has&& has) {
  const auto first_of = [&](const StepRecord& s) { return std::ranges::find_if(s.workers, has); };
  const auto first_a = first_of(a);
  const auto first_b = first_of(b);
  std::vector<WorkerPair> out;
  if (first_a == a.workers.end() || first_b == b.workers.end()) return out;
  for (auto w = first_a; w != a.workers.end(); ++w) {
    if (has(*w)) out.emplace_back(&*w, &*first_b);
  }
  for (auto w = std::next(first_b); w != b.workers.end(); ++w) {
    if (has(*w)) out.emplace_back(&*first_a, &*w);
  }
  return out;
}

inline constexpr std::size_t kSlices = 25;  // of the parameters; one is hashed at each step

// Which of a model's parameters the hashes of a step cover.
struct HashCoverage {
  bool same_tensors = false;         // the same ones in both runs
  bool whole = false;                // all of them
  std::optional<std::size_t> slice;  // if not whole; empty: not known
};

struct StepPair {
  const StepRecord& a;
  const StepRecord& b;
  std::uint64_t step = 0;  // counted across restarts
  bool same_salt = false;  // hashes of samples can be compared
  HashCoverage coverage;   // which parameters have hashes
  const GroupOrder& groups;
  std::vector<WorkerPair> workers;  // pairs with equal replicas; empty if the world sizes differ

  // Per StateHash::Kind: whether tensors have the same numbers in both runs, so that slices contain
  // the same ones.
  bool same_parameters = true;
  bool same_buffers = true;

  bool same_world() const { return a.workers_expected == b.workers_expected; }
  // Whether no rank is missing in either run.
  bool complete() const {
    return a.workers.size() == a.workers_expected && b.workers.size() == b.workers_expected &&
           (!same_world() || workers.size() == a.workers.size());
  }
  std::size_t place_in_a(const WorkerPair& pair) const {
    return static_cast<std::size_t>(pair.first - a.workers.data());
  }
  std::size_t place_in_b(const WorkerPair& pair) const {
    return static_cast<std::size_t>(pair.second - b.workers.data());
  }
};

// The result of comparing one stage of one step.
struct StageResult {
  enum class State : std::uint8_t {
    kCompared,
    kNotInA,
    kNotInB,
    kNotInEither,
    kNotComparable,
    kOtherWorkerCounts
  };
  State state = State::kCompared;
  std::optional<Difference> difference = {};
  std::vector<std::uint32_t> equal = {};  // ranks that were compared and are equal
};

inline StageResult not_compared(bool in_a, bool in_b) {
  using State = StageResult::State;
  if (in_a && in_b) return {.state = State::kNotComparable};
  return {.state = in_a ? State::kNotInB : in_b ? State::kNotInA : State::kNotInEither};
}

// For a stage in which no pair could be compared: whether each run has any rank that `has` accepts.
template <class Has>
StageResult not_recorded(const StepPair& pair, Has&& has) {
  return not_compared(std::ranges::any_of(pair.a.workers, has),
                      std::ranges::any_of(pair.b.workers, has));
}

inline constexpr std::size_t kEvidenceMax = 8;

// Collects the ranks that differ.
class DifferenceBuilder {
 public:
  explicit DifferenceBuilder(const StepPair& pair) : pair_(pair) { difference_.step = pair.step; }

  // Compares the pairs of which `has` accepts both ranks; for each pair that is not `equal`, `add`
  // adds evidence. Returns whether any pair was compared. With different world sizes, names the
  // ranks that differ only if the first ranks of both runs are equal.
  template <class Has, class Equal, class Add>
  bool compare(const std::vector<WorkerPair>& pairs, Has&& has, Equal&& equal, Add&& add) {
    bool compared = false;
    for (const WorkerPair& w : pairs) {
      if (!has(*w.first) || !has(*w.second)) continue;
      compared = true;
      if (equal(w)) {
        equal_.push_back(w.first->rank);
        continue;
      }
      add_worker(w, pairs.front());
      add(w);
    }
    return compared;
  }
  void add_evidence(std::vector<std::uint32_t> ranks, Detail detail) {
    differs_ = true;
    if (difference_.evidence.size() < kEvidenceMax) {
      difference_.evidence.push_back({std::move(ranks), std::move(detail)});
    }
  }
  void set_layers(const std::vector<std::uint64_t>& ids) {
    difference_.layers = pair_.groups.names_backward(ids);
  }
  // Returns the result; if anything differs, it is `what`.
  StageResult finish(What what) && {
    if (!differs_) return {.equal = std::move(equal_)};
    auto& ranks = difference_.ranks;
    std::ranges::sort(ranks);
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    difference_.all_ranks = !ranks.empty() && ranks.size() == pair_.workers.size();
    difference_.what = std::move(what);
    return {.difference = std::move(difference_), .equal = std::move(equal_)};
  }

 private:
  void add_worker(const WorkerPair& workers, const WorkerPair& first) {
    differs_ = true;
    if (pair_.same_world()) {
      difference_.ranks.push_back(workers.first->rank);
      return;
    }
    first_differs_ = first_differs_ || workers == first;
    if (first_differs_) return;
    const bool of_a = workers.first != first.first;
    add_evidence({}, of_a ? DissentingWorker{workers.first->rank, Side::kA}
                          : DissentingWorker{workers.second->rank, Side::kB});
  }

  const StepPair& pair_;
  Difference difference_;
  std::vector<std::uint32_t> equal_;
  bool differs_ = false;
  bool first_differs_ = false;
};

}  // namespace presum::compare
