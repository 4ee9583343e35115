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

// Of a parameter's gradient, one worker's part.
struct GradientPart {
  std::uint64_t first = 0;  // its first element within the parameter
  std::uint32_t shard = 0;  // its number, as StateHash::shard
  double scale = 1;  // makes what was reduced the mean: a program may divide by another number
  bool reduced = false;
  bool added = false;  // to what earlier reductions left: its norm is not that of the gradient
};

// Sketches of a step's own and of its reduced gradient by group, of one seed each parameter, so
// that what the reduction made of a group can be held against what went in
// (docs/metrics.md, "Layer by layer"). A group is told where all of it that was read of its own
// gradient was read once, by `read`, and reduced too. Not synchronized.
class LayerSketches {
 public:
  // The layout outlives it.
  explicit LayerSketches(const Layout& layout)
      : layout_(&layout), times_(layout.parameters().size()) {}

  // Of steps that are not due nothing is kept.
  void begin(bool due);
  bool due() const { return due_; }
  // REQUIRES: a known id; memory as of observe::gradient_pass.
  void read(ParameterId id, const void* data, std::size_t count, Dtype dtype, std::uint64_t seed,
            bool reduced);
  // This worker's part of what was reduced, or (not `reduced`) of its own gradient, all of which
  // `read` has had. REQUIRES: as read.
  void read_part(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                 std::uint64_t seed, const GradientPart& part);
  // Its own or its reduced gradient was read elsewhere, or cannot be read: its group is not told.
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

  // Adds what came out, of which `sketch` was made.
  void add_reduced(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                   const GradientPart& part);

  const Layout::Tensor& parameter(ParameterId id) const { return layout_->parameters()[id]; }

  const Layout* layout_;
  bool due_ = false;
  std::vector<Times> times_;
  std::vector<packet::Layer> layers_;  // empty until a first step is due
  std::vector<Sketch> own_parts_;      // of what this worker put in for its part; or empty
};

}  // namespace presum::step
