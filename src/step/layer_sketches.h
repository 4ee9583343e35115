// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packet/packet.h"
#include "presum/dtype.h"
#include "step/layout.h"

namespace presum::step {

// Sketches of a step's own and of its reduced gradient by group, of one seed each parameter, so
// that what the reduction made of a group can be held against what went in
// (docs/packet_format.md, "14 layers"). A group is told where all of it that was read of its own
// gradient was read once, by `read`, and reduced too. Not synchronised.
class LayerSketches {
 public:
  explicit LayerSketches(const Layout& layout);

  // Of steps that are not due nothing is kept.
  void begin(bool due);
  // REQUIRES: a known id; memory as of observe::gradient_pass.
  void read(ParameterId id, const void* data, std::size_t count, Dtype dtype, std::uint64_t seed,
            bool reduced);
  // Its own or its reduced gradient was read elsewhere, or cannot be read: its group is not told.
  void read_elsewhere(ParameterId id);
  void put(std::vector<packet::Layer>& out) const;

 private:
  struct Times {
    std::uint8_t own = 0;  // saturates at 2
    std::uint8_t reduced = 0;
    bool elsewhere = false;

    bool told() const { return !elsewhere && own <= 1 && reduced <= 1 && own <= reduced; }
  };

  std::vector<std::uint32_t> group_;       // of each parameter
  std::vector<std::uint64_t> parameters_;  // their ids
  std::vector<std::uint64_t> ids_;         // of the groups
  bool due_ = false;
  std::vector<Times> times_;
  std::vector<packet::Layer> layers_;  // empty until a first step is due
};

}  // namespace presum::step
