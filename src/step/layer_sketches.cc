// SPDX-License-Identifier: Apache-2.0
#include "step/layer_sketches.h"

#include <algorithm>

#include "base/hash.h"
#include "observe/gradient_pass.h"

namespace presum::step {
namespace {

void count(std::uint8_t& times) { times = static_cast<std::uint8_t>(std::min(times + 1, 2)); }

}  // namespace

LayerSketches::LayerSketches(const Layout& layout) : times_(layout.parameters().size()) {
  for (const Layout::Tensor& p : layout.parameters()) {
    group_.push_back(p.group);
    parameters_.push_back(p.id);
  }
  for (std::size_t g = 0; g < layout.gradient_groups(); ++g) ids_.push_back(layout.groups()[g].id);
}

void LayerSketches::begin(bool due) {
  due_ = due && ids_.size() <= packet::kLayersMax;
  if (!due_) return;
  layers_.assign(ids_.size(), {});
  for (std::size_t g = 0; g < ids_.size(); ++g) layers_[g].id = ids_[g];
  std::fill(times_.begin(), times_.end(), Times{});
}

void LayerSketches::read(ParameterId id, const void* data, std::size_t elements, Dtype dtype,
                         std::uint64_t seed, bool reduced) {
  if (!due_) return;
  packet::Layer& layer = layers_[group_[id]];
  auto& sketch = reduced ? layer.reduced : layer.own;
  const GradientSums sums = observe::gradient_pass(
      data, elements, dtype, {.values = sketch.data(), .size = packet::kLayerSketch, .seed = seed});
  if (reduced) layer.fingerprint += mix64(sums.fingerprint ^ parameters_[id]);
  count(reduced ? times_[id].reduced : times_[id].own);
}

void LayerSketches::read_elsewhere(ParameterId id) {
  if (due_) times_[id].elsewhere = true;
}

void LayerSketches::put(std::vector<packet::Layer>& out) const {
  if (!due_) return;
  std::vector<bool> told(layers_.size(), true);
  std::vector<bool> reduced(layers_.size(), false);
  for (std::size_t id = 0; id < times_.size(); ++id) {
    if (!times_[id].told()) told[group_[id]] = false;
    if (times_[id].reduced > 0) reduced[group_[id]] = true;
  }
  for (std::size_t g = 0; g < layers_.size(); ++g) {
    if (told[g] && reduced[g]) out.push_back(layers_[g]);
  }
}

}  // namespace presum::step
