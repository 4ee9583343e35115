// SPDX-License-Identifier: Apache-2.0
#include "step/snapshots.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/hash.h"
#include "base/try.h"
#include "observe/gradient_pass.h"
#include "packet/packet.h"

namespace presum::step {
namespace {

constexpr std::uint64_t kSnapshotSeed = 0x70726573756D6D6FULL;

}  // namespace

void Snapshots::begin(TrainingSnapshot::Kind kind, double optimizer_steps, double learning_rate) {
  snapshot_ = {.kind = kind, .optimizer_steps = optimizer_steps, .learning_rate = learning_rate};
  groups_.assign(layout().gradient_groups(), {});
}

void Snapshots::generator(std::uint32_t kind, std::uint64_t value) {
  snapshot_.generators.push_back({kind, value});
}

Result<Snapshots::Group*> Snapshots::group_of(ParameterId id, bool has_data) {
  if (id >= layout().parameters().size() || !has_data || groups_.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a snapshot of unknown parameter {} or without data", id));
  }
  Group& group = groups_[layout().parameters()[id].group];
  group.told = true;
  return &group;
}

Status Snapshots::parameter(ParameterId id, const void* data, std::size_t count, Dtype dtype,
                            std::uint64_t first, std::uint32_t shard, bool in_order) {
  PRESUM_ASSIGN(Group * group, group_of(id, data != nullptr || count == 0));
  std::array<float, packet::kLayerSketch> sketch{};
  const observe::SketchSpan into{.values = sketch.data(),
                                 .size = packet::kLayerSketch,
                                 .seed = splitmix64(kSnapshotSeed ^ layout().parameters()[id].id)};
  const bool whole = first == 0;
  const GradientSums sums =
      observe::gradient_pass(data, count, dtype, whole ? into : observe::SketchSpan{});
  if (!whole) observe::sketch_part(data, count, dtype, first, into);
  PRESUM_TRY(parameter_sums(id, sums.fingerprint, sums.sum_squares, count,
                            static_cast<std::uint16_t>(1U << static_cast<unsigned>(dtype)), shard));
  group->whole = group->whole && in_order;
  group->of.sketch.resize(sketch.size());
  for (std::size_t i = 0; i < sketch.size(); ++i) group->of.sketch[i] += sketch[i];
  return {};
}

Status Snapshots::parameter_sums(ParameterId id, std::uint64_t fingerprint, double squares,
                                 std::uint64_t elements, std::uint16_t formats,
                                 std::uint32_t shard) {
  PRESUM_ASSIGN(Group * group, group_of(id, true));
  SnapshotGroup& of = group->of;
  of.shard = of.parameters == 0 ? shard : joined_shards(of.shard, shard);
  of.parameters += mix64(fingerprint ^ layout().parameters()[id].id);
  of.formats |= formats;
  of.squares += squares;
  of.elements += elements;
  return {};
}

Status Snapshots::state(ParameterId id, std::uint64_t fingerprint) {
  PRESUM_ASSIGN(Group * group, group_of(id, true));
  if (std::exchange(group->last, id) != id) group->states = 0;
  group->of.optimizer +=
      mix64(fingerprint ^ layout().parameters()[id].id ^ splitmix64(group->states++));
  return {};
}

Status Snapshots::state(ParameterId id, const void* data, std::size_t count,
                        std::uint32_t element_bytes) {
  PRESUM_ASSIGN(const std::uint64_t fingerprint, hash_state(data, count, element_bytes));
  return state(id, fingerprint);
}

Packet Snapshots::packet() {
  TrainingSnapshot out = std::exchange(snapshot_, {});
  out.step = steps_->machine().next().reductions;
  for (std::size_t g = 0; g < groups_.size() && out.groups.size() < packet::kLayersMax; ++g) {
    Group& group = groups_[g];
    if (!group.told) continue;
    if (!group.whole) group.of.sketch.clear();
    group.of.id = layout().groups()[g].id;
    out.groups.push_back(std::move(group.of));
  }
  groups_.clear();
  return packet::encode(
      packet::SnapshotOf{.header = {.identity = steps_->identity()}, .snapshot = std::move(out)});
}

}  // namespace presum::step
