// SPDX-License-Identifier: Apache-2.0
#include "step/gradients.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/try.h"
#include "observe/zeros.h"
#include "step/activity.h"

namespace presum::step {
namespace {

constexpr std::uint64_t kSketchSeed = 0x70726573756D736BULL;

void add(GradientSums& into, const GradientSums& sums, std::uint64_t id) {
  into.sum_squares += sums.sum_squares;
  into.max_abs = std::max(into.max_abs, sums.max_abs);
  into.nonfinite += sums.nonfinite;
  into.fingerprint += mix64(sums.fingerprint ^ id);
}

}  // namespace

std::uint64_t sketch_seed(std::uint64_t parameter, const StepNumber& step) {
  std::uint64_t seed = splitmix64(kSketchSeed ^ step.reductions);
  if (!step.is_reduced()) seed = splitmix64(seed + step.window + 1);
  return splitmix64(seed ^ parameter);
}

Gradients::Gradients(const Layout& layout, std::uint32_t sketch_size)
    : layout_(&layout), slots_(layout.parameters().size()), sketch_(sketch_size), layers_(layout) {}

void Gradients::arrives(ParameterId id) const {
  activity().gradient(layout_->group_id(parameter(id)));
}

void Gradients::begin(const StepNumber& step, bool layers) {
  step_ = step;
  layers_.begin(layers);
  elements_ = 0;
  looked_at_ = 0;
  sketch_valid_ = true;
  std::fill(sketch_.begin(), sketch_.end(), 0.0F);
  for (Slot& slot : slots_) {
    slot.seen = slot.marked = slot.reduced_seen = false;
    slot.sums = slot.reduced = {};
  }
}

observe::SketchSpan Gradients::sketch_of(ParameterId id) {
  if (sketch_.empty()) return {};
  Slot& slot = slots_[id];
  if (slot.seen && slot.own_sketch.empty()) {
    slot.own_sketch.resize(sketch_.size());
    sketch_valid_ = false;
  }
  auto& target = slot.own_sketch.empty() ? sketch_ : slot.own_sketch;
  if (!slot.own_sketch.empty()) std::fill(target.begin(), target.end(), 0.0F);
  return {
      .values = target.data(), .size = static_cast<std::uint32_t>(target.size()), .seed = seed(id)};
}

Status Gradients::check(ParameterId id, bool has_data) const {
  if (id < slots_.size() && has_data) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("gradient of unknown parameter {} or without data", id));
}

Status Gradients::read(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                       bool reduced) {
  PRESUM_TRY(check(id, data != nullptr || count == 0));
  if (!reduced) arrives(id);
  const auto sketch = reduced ? observe::SketchSpan{} : sketch_of(id);
  keep(id, observe::gradient_pass(data, count, dtype, sketch), count, reduced);
  layers_.read(id, data, count, dtype, seed(id), reduced);
  return {};
}

Status Gradients::read_part(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                            const GradientPart& part) {
  PRESUM_TRY(check(id, data != nullptr || count == 0));
  layers_.read_part(id, data, count, dtype, seed(id), part);
  return {};
}

Status Gradients::take(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                       bool reduced) {
  PRESUM_TRY(check(id, true));
  keep(id, sums, elements, reduced);
  layers_.read_elsewhere(id);
  return {};
}

void Gradients::mark_seen(ParameterId id) {
  slots_[id].marked = true;
  arrives(id);
  layers_.read_elsewhere(id);
}

void Gradients::keep(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                     bool reduced) {
  Slot& slot = slots_[id];
  if (!reduced && !slot.seen) {
    elements_ += elements;
    looked_at_ += observe::elements_looked_at(elements);
  }
  (reduced ? slot.reduced : slot.sums) = sums;
  (reduced ? slot.reduced_seen : slot.seen) = true;
}

void Gradients::add_sketch(std::span<const float> values) {
  const std::size_t count = std::min(values.size(), sketch_.size());
  for (std::size_t i = 0; i < count; ++i) sketch_[i] += values[i];
}

std::vector<ParameterId> Gradients::unseen() const {
  std::vector<ParameterId> out;
  for (ParameterId id = 0; id < slots_.size(); ++id) {
    if (!seen(id)) out.push_back(id);
  }
  return out;
}

std::vector<float> Gradients::finished_sketch() {
  if (!sketch_valid_) return {};
  for (const Slot& slot : slots_) {
    if (!slot.seen || slot.own_sketch.empty()) continue;
    for (std::size_t i = 0; i < sketch_.size(); ++i) sketch_[i] += slot.own_sketch[i];
  }
  return sketch_;
}

void Gradients::put(packet::Step& out) {
  out.elements = elements_;
  out.sketch = finished_sketch();
  for (ParameterId id = 0; id < slots_.size(); ++id) {
    const Slot& slot = slots_[id];
    const Layout::Tensor& of = parameter(id);
    if (slot.seen) {
      add(out.total, slot.sums, of.id);
      add(out.groups[of.group].sums, slot.sums, of.id);
    }
    if (slot.reduced_seen) {
      if (!out.reduced) out.reduced.emplace();
      add(*out.reduced, slot.reduced, of.id);
    }
  }
  out.layers = layers_.told();
}

double Gradients::zero_share() const {
  std::uint64_t zeros = 0;
  for (const Slot& slot : slots_) zeros += slot.seen ? slot.sums.zeros : 0;
  return looked_at_ == 0 ? kNaN : static_cast<double>(zeros) / static_cast<double>(looked_at_);
}

}  // namespace presum::step
