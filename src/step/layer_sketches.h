// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "packet/packet.h"
#include "presum/dtype.h"
#include "step/layout.h"

namespace presum::step {

// A rank's part of one parameter's gradient.
struct GradientPart {
  std::uint64_t first = 0;  // its first element within the parameter
  std::uint32_t shard = 0;  // its number, as in StateHash::shard
  // Turns the reduced values into the mean; the program may divide by another number.
  double scale = 1;
  bool reduced = false;
  // The values were added to those of earlier reductions, so their norm is not the gradient's.
  bool added = false;
};

// Sketches of a step's own and reduced gradients, group by group, with one seed per parameter, so
// that the output of a reduction can be compared with its input (docs/metrics.md, "Layer by
// layer"). A group is reported only if all its own gradients that were read were read exactly once,
// by `read`, and were also reduced. Not synchronized.
class LayerSketches {
 public:
  // `layout` must outlive this object.
  explicit LayerSketches(const Layout& layout)
      : layout_(&layout), times_(layout.parameters().size()) {}

  // A step that is not due keeps nothing.
  void begin(bool due);
  bool due() const { return due_; }
  // REQUIRES: a known id; memory as observe::gradient_pass requires it.
  void read(ParameterId id, const void* data, std::size_t count, Dtype dtype, std::uint64_t seed,
            bool reduced);
  // Adds this rank's part of the reduced gradient or, if not `reduced`, of its own gradient, which
  // `read` has received in full. REQUIRES: as for `read`.
  void read_part(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                 std::uint64_t seed, const GradientPart& part);
  // Excludes the parameter's group: the own or reduced gradient was read elsewhere, or cannot be
  // read.
  void read_elsewhere(ParameterId id);
  std::vector<packet::Layer> told() const;

 private:
  struct Times {
    std::uint8_t own = 0;  // saturates at 2
    std::uint8_t reduced = 0;
    bool elsewhere = false;

    bool told() const { return !elsewhere && own <= 1 && reduced <= 1 && own <= reduced; }
  };

  using Sketch = std::array<float, packet::kLayerSketch>;

  // Adds the sums of a reduced gradient, or of a part of it, whose sketch was already added.
  void add_reduced(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                   const GradientPart& part);

  const Layout::Tensor& parameter(ParameterId id) const { return layout_->parameters()[id]; }

  const Layout* layout_;
  bool due_ = false;
  std::vector<Times> times_;
  std::vector<packet::Layer> layers_;  // empty until the first step that is due
  // Sketches of the own gradient within this rank's part, by group; empty if there are no parts.
  std::vector<Sketch> own_parts_;
};

}  // namespace presum::step
