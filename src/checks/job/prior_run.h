// SPDX-License-Identifier: Apache-2.0
// What the earlier segments of a run left, and how far apart two states of a model are.
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
  bool left_out = false;                  // some of them: they were too large
  std::map<std::uint32_t, double> begun;  // by segment: at how many optimizer steps it began
  std::uint32_t workers = 0;              // of the last segment; 0: not known
  std::vector<double> rates;              // learning rates of the steps before what was saved last
  LastPass draws;                         // of the pass that was interrupted, in the last one
};

// With which parameters a run that continues began.
struct BeganWith {
  enum class Parameters : std::uint8_t {
    kUnknown,  // not all ranks have told, or nothing was saved of this model
    kOthers,   // none of those that were saved
    kSaved,    // those that were saved in this segment, before this step
  };
  Parameters parameters = Parameters::kUnknown;
  std::uint32_t segment = 0;
  std::uint64_t step = 0;
};

// Of all workers at one step, by replica.
using Snapshots = std::map<std::uint32_t, const TrainingSnapshot*>;

// Parameters of one group, of all workers that told them: shards add up.
struct Whole {
  std::uint64_t elements = 0;
  double squares = 0;
  std::uint64_t parameters = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t shards = 0;  // which ones
  std::uint16_t formats = 0;
  std::vector<double> sketch;
  bool sketched = true;
};
using Model = std::map<std::uint64_t, Whole>;  // by group

struct Apart {
  std::vector<std::uint64_t> groups;
  std::size_t of = 0;  // groups that could be compared
  double squares = 0;  // of the distances
  double all = 0;      // of the parameters that differ
  bool known = true;   // the distances
};

Model model_of(const Snapshots& workers);
Apart parameters_apart(const Model& then, const Model& now);
// Groups whose optimizer state differs.
std::vector<std::uint64_t> states_apart(const Model& then, const Model& now);
// Whether the optimizer has a state of anything.
bool has_state(const Model& model);
bool same_format(const Model& then, const Model& now);
// Replicas whose own part of the parameters is another than it was; none where parts are not what
// some replica had.
std::set<std::uint32_t> replicas_apart(const Snapshots& then, const Snapshots& now);
// Replicas with other generators than they had. A program need not restore them: only where some go
// on with what they left the others ought to as well.
std::vector<std::uint32_t> other_generators(const Snapshots& then, const Snapshots& now);

// Of each snapshot that was saved one worker's, the last first.
std::vector<const SnapshotRecord*> snapshots_of(const PriorRun& prior);
// All workers' of the same snapshot.
Snapshots saved_with(const PriorRun& prior, const SnapshotRecord& one);
bool has_weights(const PriorRun& prior, const SnapshotRecord& one, const Model& is);
// The last that was saved with these weights; null where none was.
const SnapshotRecord* with_weights(const PriorRun& prior, const Model& is);
BeganWith began_with_which(const PriorRun& prior, const Model& is);
// In words; empty where nothing did. `workers`: before, 0 where that is not known.
std::string settings_changed(const TrainingSnapshot& was, const TrainingSnapshot& is,
                             std::uint32_t workers, std::size_t workers_now);
double largest_change(const std::vector<double>& rates);
// Whether a later segment came by the snapshot's optimizer step again: its own state there may not
// have been told.
bool replayed_since(const PriorRun& prior, const SnapshotRecord& one);

}  // namespace presum::checks
