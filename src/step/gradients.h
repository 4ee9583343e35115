// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "observe/gradient_pass.h"
#include "packet/packet.h"
#include "step/layer_sketches.h"
#include "step/layout.h"

namespace presum::step {

// docs/packet_format.md, "Sketch".
std::uint64_t sketch_seed(std::uint64_t parameter, const StepNumber& step);

// What was read of one step's gradients. Nothing allocates per gradient.
class Gradients {
 public:
  // `layout` must outlive this object.
  Gradients(const Layout& layout, std::uint32_t sketch_size);

  // `layers`: compare own and reduced gradients group by group.
  void begin(const StepNumber& step, bool layers);
  // Reads a gradient in host memory. A second report replaces the first. Errors (kInvalidArgument):
  // an unknown id, no data.
  Status read(ParameterId id, const void* data, std::size_t count, Dtype dtype, bool reduced);
  // Takes the sums of a gradient that was read elsewhere.
  Status take(ParameterId id, const GradientSums& sums, std::uint64_t elements, bool reduced);
  // Reads a part of a sharded model's gradient. Has an effect only if layers_due().
  Status read_part(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                   const GradientPart& part);
  bool layers_due() const { return layers_.due(); }
  void layer_unknown(ParameterId id) { layers_.read_elsewhere(id); }
  void add_sketch(std::span<const float> values);
  // Drops this step's sketch, because a later report replaced a gradient in it.
  void forget_sketch() { sketch_valid_ = false; }
  // Counts the gradient as seen without sums: it was read elsewhere, or cannot be read.
  void mark_seen(ParameterId id);
  bool seen(ParameterId id) const { return slots_[id].seen || slots_[id].marked; }
  std::vector<ParameterId> unseen() const;
  // REQUIRES: a known id.
  std::uint64_t seed(ParameterId id) const { return sketch_seed(parameter(id).id, step_); }

  // Writes sums by group and in total, the element count, the sketch, the reduced gradient, and the
  // own and reduced sketches by group. All values still include the loss scale.
  void put(packet::Step& out);
  // The share of zeros among the elements that were examined; NaN if none were.
  double zero_share() const;

 private:
  struct Slot {
    bool seen = false;
    bool marked = false;
    bool reduced_seen = false;
    GradientSums sums;
    GradientSums reduced;
    // Used only by parameters that were once reported twice in a step.
    std::vector<float> own_sketch;
  };
  const Layout::Tensor& parameter(ParameterId id) const { return layout_->parameters()[id]; }
  void arrives(ParameterId id) const;
  Status check(ParameterId id, bool has_data) const;
  void keep(ParameterId id, const GradientSums& sums, std::uint64_t elements, bool reduced);
  observe::SketchSpan sketch_of(ParameterId id);
  std::vector<float> finished_sketch();

  const Layout* layout_;
  StepNumber step_;
  std::vector<Slot> slots_;
  std::uint64_t elements_ = 0;
  std::uint64_t looked_at_ = 0;  // how many of `elements_` were examined for zeros
  std::vector<float> sketch_;
  bool sketch_valid_ = true;
  LayerSketches layers_;
};

}  // namespace presum::step
