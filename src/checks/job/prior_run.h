// SPDX-License-Identifier: Apache-2.0
// What the earlier segments of a run left, and the distance between two states of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checks/data/last_pass.h"
#include "presum/step_record.h"

namespace presum::checks {

// What the earlier segments of a run left of one model.
struct PriorRun {
  std::vector<SnapshotRecord> saved;      // by segment, step and number
  bool left_out = false;                  // some were too large
  std::map<std::uint32_t, double> begun;  // by segment: optimizer steps at its beginning
  std::uint32_t workers = 0;              // of the last segment; 0: unknown
  std::vector<double> rates;              // learning rates of the steps before the last save
  LastPass draws;                         // of the interrupted pass, in the last segment
};

// The parameters that a continued run began with.
struct BeganWith {
  enum class Parameters : std::uint8_t {
    kUnknown,  // some ranks are missing, or nothing was saved of this model
    kOthers,   // none of the saved parameters
    kSaved,    // those saved in this segment, before this step
  };
  Parameters parameters = Parameters::kUnknown;
  std::uint32_t segment = 0;
  std::uint64_t step = 0;
};

// Of all ranks at one step, by replica.
using Snapshots = std::map<std::uint32_t, const TrainingSnapshot*>;

// Parameters of one group, of all ranks that sent them: shards add up.
struct Whole {
  std::uint64_t elements = 0;
  double squares = 0;
  std::uint64_t parameters = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t shards = 0;  // identifies the shards
  std::uint16_t formats = 0;
  std::vector<double> sketch;
  bool sketched = true;
};
using Model = std::map<std::uint64_t, Whole>;  // by group

struct Apart {
  std::vector<std::uint64_t> groups;
  std::size_t of = 0;  // groups that could be compared
  double squares = 0;  // sum over the distances
  double all = 0;      // sum over the parameters that differ
  bool known = true;   // the distances are known
};

Model model_of(const Snapshots& workers);
Apart parameters_apart(const Model& then, const Model& now);
// Groups whose optimizer state differs.
std::vector<std::uint64_t> states_apart(const Model& then, const Model& now);
// Whether the optimizer has any state.
bool has_state(const Model& model);
bool same_format(const Model& then, const Model& now);
// Replicas whose own part of the parameters changed; none if the parts are not what some replica
// had.
std::set<std::uint32_t> replicas_apart(const Snapshots& then, const Snapshots& now);
// Replicas whose generators differ from before. A program need not restore them, so this is empty
// unless some replicas restored theirs.
std::vector<std::uint32_t> other_generators(const Snapshots& then, const Snapshots& now);

// One rank's record of each snapshot, latest first.
std::vector<const SnapshotRecord*> snapshots_of(const PriorRun& prior);
// The records of all ranks of the same snapshot.
Snapshots saved_with(const PriorRun& prior, const SnapshotRecord& one);
bool has_weights(const PriorRun& prior, const SnapshotRecord& one, const Model& is);
// The last snapshot with these weights; null if there is none.
const SnapshotRecord* with_weights(const PriorRun& prior, const Model& is);
BeganWith began_with_which(const PriorRun& prior, const Model& is);
// A description of the changes; empty if there are none. `workers`: the earlier number, 0 if
// unknown.
std::string settings_changed(const TrainingSnapshot& was, const TrainingSnapshot& is,
                             std::uint32_t workers, std::size_t workers_now);
double largest_change(const std::vector<double>& rates);
// Whether a later segment passed the snapshot's optimizer step again: its own state at that step
// may be unrecorded.
bool replayed_since(const PriorRun& prior, const SnapshotRecord& one);

}  // namespace presum::checks
