// SPDX-License-Identifier: Apache-2.0
#include "step/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/hash.h"
#include "base/try.h"
#include "observe/zeros.h"

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

Result<Layout> Layout::of(const std::vector<Parameter>& parameters,
                          const std::vector<Parameter>& buffers) {
  Layout out;
  std::unordered_set<std::uint64_t> ids;
  for (const Parameter& p : parameters) {
    const std::string name = canonical_name(p.name);
    const std::uint64_t id = name_hash(name);
    if (!ids.insert(id).second) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("two parameters are called {}", name));
    }
    const std::uint32_t group = out.group_of(p, name);
    out.groups_[group].elements += p.elements;
    out.parameters_.push_back({.id = id, .group = group});
  }
  out.gradient_groups_ = out.groups_.size();
  for (const Parameter& b : buffers) {
    const std::string name = canonical_name(b.name);
    out.buffers_.push_back({.id = name_hash(name), .group = out.group_of(b, name)});
  }
  return out;
}

std::uint32_t Layout::group_of(const Parameter& p, const std::string& name) {
  const std::string group = p.group.empty() ? default_group(name) : p.group;
  const auto [at, fresh] = group_index_.emplace(group, static_cast<std::uint32_t>(groups_.size()));
  if (fresh) groups_.push_back({.id = name_hash(group), .elements = 0, .name = group});
  return at->second;
}

const Layout::Tensor* Layout::hashed(StateHash::Kind kind, std::uint32_t index) const {
  using Kind = StateHash::Kind;
  const bool buffers = kind == Kind::kBuffers || kind == Kind::kFrozen;
  if (!buffers && kind != Kind::kParameters && kind != Kind::kOptimizer) return nullptr;
  const auto& all = buffers ? buffers_ : parameters_;
  return index < all.size() ? &all[index] : nullptr;
}

std::uint64_t sketch_seed(std::uint64_t parameter, const StepNumber& step) {
  std::uint64_t seed = splitmix64(kSketchSeed ^ step.reductions);
  if (!step.is_reduced()) seed = splitmix64(seed + step.window + 1);
  return splitmix64(seed ^ parameter);
}

Gradients::Gradients(const Layout& layout, std::uint32_t sketch_size)
    : slots_(layout.parameters().size()), sketch_(sketch_size) {
  ids_.reserve(slots_.size());
  for (const Layout::Tensor& p : layout.parameters()) ids_.push_back(p.id);
}

void Gradients::begin(const StepNumber& step) {
  step_ = step;
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
  return {.values = target.data(),
          .size = static_cast<std::uint32_t>(target.size()),
          .seed = sketch_seed(ids_[id], step_)};
}

Status Gradients::check(ParameterId id, bool has_data) const {
  if (id < slots_.size() && has_data) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("gradient of unknown parameter {} or without data", id));
}

Status Gradients::read(ParameterId id, const void* data, std::size_t count, Dtype dtype) {
  PRESUM_TRY(check(id, data != nullptr || count == 0));
  put(id, observe::gradient_pass(data, count, dtype, sketch_of(id)), count, false);
  return {};
}

Status Gradients::read_reduced(ParameterId id, const void* data, std::size_t count, Dtype dtype) {
  PRESUM_TRY(check(id, data != nullptr || count == 0));
  put(id, observe::gradient_pass(data, count, dtype, {}), count, true);
  return {};
}

Status Gradients::take(ParameterId id, const GradientSums& sums, std::uint64_t elements,
                       bool reduced) {
  PRESUM_TRY(check(id, true));
  put(id, sums, elements, reduced);
  return {};
}

void Gradients::put(ParameterId id, const GradientSums& sums, std::uint64_t elements,
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
  for (std::size_t id = 0; id < slots_.size(); ++id) {
    if (!seen(static_cast<ParameterId>(id))) out.push_back(static_cast<ParameterId>(id));
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

void Gradients::put_own(const Layout& layout, packet::Step& out) {
  out.elements = elements_;
  out.sketch = finished_sketch();
  for (std::size_t id = 0; id < slots_.size(); ++id) {
    const Slot& slot = slots_[id];
    if (!slot.seen) continue;
    add(out.total, slot.sums, ids_[id]);
    add(out.groups[layout.parameters()[id].group].sums, slot.sums, ids_[id]);
  }
}

double Gradients::zero_share() const {
  std::uint64_t zeros = 0;
  for (const Slot& slot : slots_) zeros += slot.seen ? slot.sums.zeros : 0;
  return looked_at_ == 0 ? kNaN : static_cast<double>(zeros) / static_cast<double>(looked_at_);
}

void Gradients::put_reduced(packet::Step& out) const {
  for (std::size_t id = 0; id < slots_.size(); ++id) {
    if (!slots_[id].reduced_seen) continue;
    if (!out.reduced) out.reduced.emplace();
    add(*out.reduced, slots_[id].reduced, ids_[id]);
  }
}

}  // namespace presum::step
