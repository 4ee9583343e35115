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

// A snapshot of one rank's training state: the model and the optimizer state, group by group
// (presum::TrainingSnapshot). Not synchronized; memory is borrowed for the call.
class Snapshots {
 public:
  // `steps` belongs to the same rank and must outlive this object.
  explicit Snapshots(const Steps& steps) : steps_(&steps) {}

  // Starts a snapshot; drops what was reported for the previous one.
  void begin(TrainingSnapshot::Kind kind, double optimizer_steps, double learning_rate);
  void generator(std::uint32_t kind, std::uint64_t value);
  // Adds this rank's elements of a parameter: those from `first` on, in shard number `shard`. If
  // not `in_order`, the elements are not in the parameter's order, and its group gets no sketch.
  // Errors (kInvalidArgument): an unknown parameter, no data.
  Status parameter(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                   std::uint64_t first, std::uint32_t shard, bool in_order);
  // The same for elements outside host memory; `formats` as in SnapshotGroup::formats.
  Status parameter_sums(ParameterId id, std::uint64_t fingerprint, double squares,
                        std::uint64_t elements, std::uint16_t formats, std::uint32_t shard);
  // Adds a tensor that the optimizer keeps for a parameter: its fingerprint, or its elements of 2,
  // 4 or 8 bytes in host memory (kInvalidArgument for other widths).
  Status state(ParameterId id, std::uint64_t fingerprint);
  Status state(ParameterId id, const void* data, std::size_t count, std::uint32_t element_bytes);
  // Returns the groups that have any data, as the state before the next step.
  Packet packet();

 private:
  struct Group {
    SnapshotGroup of;
    std::uint64_t states = 0;  // number of state tensors so far of the parameter `last`
    ParameterId last = 0;
    bool told = false;
    bool whole = true;  // its sketch covers the whole group
  };
  const Layout& layout() const { return steps_->layout(); }
  Result<Group*> group_of(ParameterId id, bool has_data);

  const Steps* steps_;
  TrainingSnapshot snapshot_;
  std::vector<Group> groups_;
};

}  // namespace presum::step
