// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

#include "presum/dtype.h"
#include "step/steps.h"

namespace presum::python {

struct Block {
  const void* data;
  std::size_t count;
  Dtype dtype;
};

// The elements of a tensor of torch's own classes that is contiguous in host memory, as nearly
// every gradient is; valid while the tensor is. Of no other one: presum.devices.readable decides
// about those.
std::optional<Block> plain_block(nanobind::handle tensor);

// Looks up what the others need of torch: before threads that hold the interpreter's lock could
// wait for each other's look.
void know_torch();

// A gradient, this worker's own or the reduced one. Raises ValueError for an unknown id.
void read_block(step::Steps& steps, ParameterId id, const Block& block, bool reduced);

// What `.grad` holds. Raises what asking for it does.
nanobind::object grad_of(nanobind::handle parameter);

}  // namespace presum::python
