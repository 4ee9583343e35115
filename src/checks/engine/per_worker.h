// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>

namespace presum::checks {

// A value for each rank, by replica. At most 65,536; then it starts over.
template <typename T>
class PerWorker {
 public:
  T& operator[](std::uint32_t replica) {
    if (map_.size() >= 65536 && !map_.contains(replica)) map_.clear();
    return map_[replica];
  }
  const T* find(std::uint32_t replica) const {
    const auto found = map_.find(replica);
    return found == map_.end() ? nullptr : &found->second;
  }
  void clear() { map_.clear(); }
  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }

 private:
  std::unordered_map<std::uint32_t, T> map_;
};

}  // namespace presum::checks
