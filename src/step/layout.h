// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "presum/records.h"
#include "presum/status.h"
#include "presum/training.h"

namespace presum::step {

// The parameters and buffers of one model by their numbers, and their groups. Not changed once it
// is made: threads may share it.
class Layout {
 public:
  struct Tensor {
    std::uint64_t id = 0;     // name hash of its name
    std::uint32_t group = 0;  // its place in groups()
  };

  // Error (kInvalidArgument): two parameters of one canonical name.
  static Result<Layout> of(const std::vector<Parameter>& parameters,
                           const std::vector<Parameter>& buffers);

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<GroupName>& groups() const { return groups_; }  // those with gradients first
  std::size_t gradient_groups() const { return gradient_groups_; }
  // Null for an index or kind that is not known.
  const Tensor* hashed(StateHash::Kind kind, std::uint32_t index) const;
  std::uint64_t group_id(const Tensor& tensor) const { return groups_[tensor.group].id; }

 private:
  // The group's position; a group that is new is added.
  std::uint32_t group_of(const Parameter& p, const std::string& name);

  std::vector<Tensor> parameters_;
  std::vector<Tensor> buffers_;
  std::vector<GroupName> groups_;
  std::size_t gradient_groups_ = 0;
  std::unordered_map<std::string, std::uint32_t> group_index_;
};

// One number for the shards of several parameters, the same on workers whose shards are.
std::uint32_t joined_shards(std::uint32_t shards, std::uint32_t shard);

}  // namespace presum::step
