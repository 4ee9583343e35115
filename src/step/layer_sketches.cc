// SPDX-License-Identifier: Apache-2.0
#include "step/layer_sketches.h"

#include <algorithm>

#include "base/hash.h"
#include "observe/gradient_pass.h"

namespace presum::step {
namespace {

using Sketch = std::array<float, packet::kLayerSketch>;

// Largest relative distance between the sketches of input and output at which the reduction counts
// as having returned its input.
constexpr double kSame = 1e-5;

bool same(const Sketch& a, const Sketch& b) {
  double distance = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]);
    distance += (x - static_cast<double>(b[i])) * (x - static_cast<double>(b[i]));
    size += x * x;
  }
  return size > 0 && distance <= kSame * kSame * size;
}

void count(std::uint8_t& times) { times = static_cast<std::uint8_t>(std::min(times + 1, 2)); }

}  // namespace

void LayerSketches::begin(bool due) {
  const std::size_t groups = layout_->gradient_groups();
  due_ = due && groups <= packet::kLayersMax;
  if (!due_) return;
  layers_.assign(groups, {});
  for (std::size_t g = 0; g < groups; ++g) layers_[g].id = layout_->groups()[g].id;
  own_parts_.clear();
  std::fill(times_.begin(), times_.end(), Times{});
}

void LayerSketches::read(ParameterId id, const void* data, std::size_t elements, Dtype dtype,
                         std::uint64_t seed, bool reduced) {
  if (!due_) return;
  packet::Layer& layer = layers_[parameter(id).group];
  auto& sketch = reduced ? layer.reduced : layer.own;
  const GradientSums sums = observe::gradient_pass(
      data, elements, dtype, {.values = sketch.data(), .size = packet::kLayerSketch, .seed = seed});
  if (reduced) return add_reduced(id, sums, elements, {});
  layer.elements += elements;
  count(times_[id].own);
}

void LayerSketches::read_part(ParameterId id, const void* data, std::size_t elements, Dtype dtype,
                              std::uint64_t seed, const GradientPart& part) {
  if (!due_) return;
  if (own_parts_.empty()) own_parts_.resize(layers_.size());
  Sketch sketch{};
  observe::sketch_part(data, elements, dtype, part.first,
                       {.values = sketch.data(), .size = packet::kLayerSketch, .seed = seed});
  const std::uint32_t group = parameter(id).group;
  Sketch& into = part.reduced ? layers_[group].reduced : own_parts_[group];
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] += static_cast<float>(static_cast<double>(sketch[i]) * part.scale);
  }
  if (part.reduced) {
    add_reduced(id, observe::gradient_pass(data, elements, dtype, {}), elements, part);
  }
}

void LayerSketches::add_reduced(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                                const GradientPart& part) {
  packet::Layer& layer = layers_[parameter(id).group];
  layer.shard = layer.fingerprint == 0 ? part.shard : joined_shards(layer.shard, part.shard);
  layer.fingerprint += mix64(sums.fingerprint ^ parameter(id).id);
  layer.part += elements;
  layer.squares += part.added ? kNaN : sums.sum_squares * part.scale * part.scale;
  count(times_[id].reduced);
}

void LayerSketches::read_elsewhere(ParameterId id) {
  if (due_) times_[id].elsewhere = true;
}

std::vector<packet::Layer> LayerSketches::told() const {
  if (!due_) return {};
  std::vector<packet::Layer> out;
  std::vector<bool> whole(layers_.size(), true);
  std::vector<bool> reduced(layers_.size(), false);
  for (ParameterId id = 0; id < times_.size(); ++id) {
    if (!times_[id].told()) whole[parameter(id).group] = false;
    if (times_[id].reduced > 0) reduced[parameter(id).group] = true;
  }
  for (std::size_t g = 0; g < layers_.size(); ++g) {
    if (!whole[g] || !reduced[g]) continue;
    out.push_back(layers_[g]);
    out.back().kept = same(own_parts_.empty() ? layers_[g].own : own_parts_[g], layers_[g].reduced);
  }
  return out;
}

}  // namespace presum::step
