// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "presum/dtype.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/status.h"
#include "step/steps.h"

namespace presum::step {

// Where one worker's training stands: its model and what the optimizer keeps of it, group by group
// (presum::TrainingSnapshot). Not synchronized; memory is borrowed for the call.
class Snapshots {
 public:
  // Of the worker whose steps these are; they outlive it.
  explicit Snapshots(const Steps& steps) : steps_(&steps) {}

  // Forgets what was told of the one before.
  void begin(TrainingSnapshot::Kind kind, double optimizer_steps, double learning_rate);
  void generator(std::uint32_t kind, std::uint64_t value);
  // This worker's elements of a parameter, from `first` on, and which shard they are. Without
  // `in_order` they do not lie as in the parameter, and its group has no sketch.
  // Errors (kInvalidArgument): an unknown parameter, no data.
  Status parameter(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                   std::uint64_t first, std::uint32_t shard, bool in_order);
  // The same where they are not in host memory; `formats` as SnapshotGroup::formats.
  Status parameter_sums(ParameterId id, std::uint64_t fingerprint, double squares,
                        std::uint64_t elements, std::uint16_t formats, std::uint32_t shard);
  // A tensor that the optimizer keeps of a parameter: its fingerprint, or elements of 2, 4 or 8
  // bytes in host memory (kInvalidArgument for others).
  Status state(ParameterId id, std::uint64_t fingerprint);
  Status state(ParameterId id, const void* data, std::size_t count, std::uint32_t element_bytes);
  // The groups of which anything was told, before the step to come.
  Packet packet();

 private:
  struct Group {
    SnapshotGroup of;
    std::uint64_t states = 0;  // told of the parameter that was named last
    ParameterId last = 0;
    bool told = false;
    bool whole = true;  // its sketch holds all of it
  };
  const Layout& layout() const { return steps_->layout(); }
  Result<Group*> group_of(ParameterId id, bool has_data);

  const Steps* steps_;
  TrainingSnapshot snapshot_;
  std::vector<Group> groups_;
};

}  // namespace presum::step
