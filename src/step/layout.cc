// SPDX-License-Identifier: Apache-2.0
#include "step/layout.h"

#include <fmt/format.h>

#include <unordered_set>

#include "base/hash.h"
#include "step/names.h"

namespace presum::step {

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

std::uint32_t joined_shards(std::uint32_t shards, std::uint32_t shard) {
  if (shards == shard) return shards;
  return static_cast<std::uint32_t>(mix64((std::uint64_t{shards} << 32) | shard)) | 1U;
}

}  // namespace presum::step
