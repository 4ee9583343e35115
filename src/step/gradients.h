// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/gradient_pass.h"
#include "packet/packet.h"
#include "presum/observer.h"

namespace presum::step {

// The parameters and buffers of one model by their numbers, and their groups. Not changed once it
// is made: threads may share it.
class Layout {
 public:
  struct Tensor {
    std::uint64_t id = 0;     // name hash of its name
    std::uint32_t group = 0;  // its place in groups()
  };

  // Error (kInvalidArgument): two parameters of one canonical name.
  static Result<Layout> of(const std::vector<Parameter>& parameters,
                           const std::vector<Parameter>& buffers);

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<GroupName>& groups() const { return groups_; }  // those with gradients first
  std::size_t gradient_groups() const { return gradient_groups_; }
  // Null for an index or kind that is not known.
  const Tensor* hashed(StateHash::Kind kind, std::uint32_t index) const;
  std::uint64_t group_id(const Tensor& tensor) const { return groups_[tensor.group].id; }

 private:
  // The group's position; a group that is new is added.
  std::uint32_t group_of(const Parameter& p, const std::string& name);

  std::vector<Tensor> parameters_;
  std::vector<Tensor> buffers_;
  std::vector<GroupName> groups_;
  std::size_t gradient_groups_ = 0;
  std::unordered_map<std::string, std::uint32_t> group_index_;
};

// docs/packet_format.md, "Sketch".
std::uint64_t sketch_seed(std::uint64_t parameter, const StepNumber& step);

// What was read of the gradients of one step. Nothing allocates per gradient.
class Gradients {
 public:
  Gradients(const Layout& layout, std::uint32_t sketch_size);

  void begin(const StepNumber& step);
  // A second report replaces the first. Errors (kInvalidArgument): an unknown id, no data.
  Status read(ParameterId id, const void* data, std::size_t count, Dtype dtype);
  Status read_reduced(ParameterId id, const void* data, std::size_t count, Dtype dtype);
  // Of a pass that was computed elsewhere.
  Status take(ParameterId id, const GradientSums& sums, std::uint64_t elements, bool reduced);
  void add_sketch(std::span<const float> values);
  // It was read elsewhere, or cannot be read.
  void mark_seen(ParameterId id) { slots_[id].marked = true; }
  bool seen(ParameterId id) const { return slots_[id].seen || slots_[id].marked; }
  std::vector<ParameterId> unseen() const;
  // REQUIRES: a known id.
  std::uint64_t seed(ParameterId id) const { return seed(id, step_); }
  std::uint64_t seed(ParameterId id, const StepNumber& step) const {
    return sketch_seed(ids_[id], step);
  }

  // Sums by group and in total, elements, sketch and reduced gradient; nothing is unscaled.
  void put_own(const Layout& layout, packet::Step& out);
  void put_reduced(packet::Step& out) const;
  // Of the elements that were looked at the share that was zero; NaN where none was.
  double zero_share() const;

 private:
  struct Slot {
    bool seen = false;
    bool marked = false;
    bool reduced_seen = false;
    GradientSums sums;
    GradientSums reduced;
    std::vector<float> own_sketch;  // only of parameters that were once reported twice in a step
  };
  Status check(ParameterId id, bool has_data) const;
  void put(ParameterId id, const GradientSums& sums, std::uint64_t elements, bool reduced);
  observe::SketchSpan sketch_of(ParameterId id);
  std::vector<float> finished_sketch();

  StepNumber step_;
  std::vector<std::uint64_t> ids_;
  std::vector<Slot> slots_;
  std::uint64_t elements_ = 0;
  std::uint64_t looked_at_ = 0;  // of them, for zeros
  std::vector<float> sketch_;
  bool sketch_valid_ = true;
};

}  // namespace presum::step
