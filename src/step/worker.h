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
  // Something that must be equal on all workers, by a name that no group of parameters has; the
  // next hello tells it. Contents::watched reports its tensors.
  void watch(std::string_view name);

  Packet hello(const std::vector<GroupName>& groups) const;
  Packet note(std::string_view text) const;  // a line for the run log
  // See Observer::goodbye. `text`: how the program ended, where that is worth a line; may be empty.
  Packet goodbye(FinalState state, std::string_view text = {}) const;
  // That the recording on this worker has failed: no step follows, and the run is not called
  // consistent. `text` says how.
  Packet broken(std::string_view text) const;

 private:
  ObserverOptions options_;
  std::vector<GroupName> watched_;
};

}  // namespace presum::step
