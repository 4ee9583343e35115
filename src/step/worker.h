// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "presum/observer.h"

namespace presum::step {

// What one worker says of itself, and of its recording. Not synchronised.
class Worker {
 public:
  explicit Worker(ObserverOptions options);

  const Identity& identity() const { return options_.identity; }
  std::uint32_t sketch_size() const { return options_.sketch_size; }
  void fact(std::string_view key, std::string_view value);
  void watch(std::string_view name);  // see Observer::watch

  Packet hello(const std::vector<GroupName>& groups) const;
  // See Observer::note and Observer::broken.
  Packet note(bool final, std::uint64_t sent, std::uint64_t dropped, std::string_view text,
              FinalState state) const;
  Packet broken(std::uint64_t sent, std::uint64_t dropped, std::string_view text) const;

 private:
  ObserverOptions options_;
  std::vector<GroupName> watched_;
};

}  // namespace presum::step
