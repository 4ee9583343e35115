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

// The numbered parameters and buffers of one model, and their groups. Immutable, so threads may
// share it.
class Layout {
 public:
  struct Tensor {
    std::uint64_t id = 0;     // hash of its name
    std::uint32_t group = 0;  // its index in groups()
  };

  // Error (kInvalidArgument): two parameters have the same canonical name.
  static Result<Layout> of(const std::vector<Parameter>& parameters,
                           const std::vector<Parameter>& buffers);

  const std::vector<Tensor>& parameters() const { return parameters_; }
  // Groups with gradients come first.
  const std::vector<GroupName>& groups() const { return groups_; }
  std::size_t gradient_groups() const { return gradient_groups_; }
  // Null for an unknown index or kind.
  const Tensor* hashed(StateHash::Kind kind, std::uint32_t index) const;
  std::uint64_t group_id(const Tensor& tensor) const { return groups_[tensor.group].id; }

 private:
  // Returns the group's index; adds the group if it is new.
  std::uint32_t group_of(const Parameter& p, const std::string& name);

  std::vector<Tensor> parameters_;
  std::vector<Tensor> buffers_;
  std::vector<GroupName> groups_;
  std::size_t gradient_groups_ = 0;
  std::unordered_map<std::string, std::uint32_t> group_index_;
};

// Combines the shard numbers of several parameters into one. Ranks with equal shards get equal
// numbers.
std::uint32_t joined_shards(std::uint32_t shards, std::uint32_t shard);

}  // namespace presum::step
