// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "packet/packet.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/training.h"

namespace presum::step {

// As SessionOptions has them.
struct WorkerOptions {
  Identity identity;
  std::uint32_t sketch_size = 4096;
  std::string host;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Parameter> buffers;
};

// What one worker says of itself, and of its recording. Not synchronized.
class Worker {
 public:
  explicit Worker(WorkerOptions options);

  const Identity& identity() const { return options_.identity; }
  std::uint32_t sketch_size() const { return options_.sketch_size; }
  // Values longer than this, in the options too, are cut and end in their length and hash.
  static constexpr std::size_t kFactBytesMax = 1024;
  // Adds a fact, or replaces the one of that name.
  void fact(std::string_view key, std::string_view value);
  // Something that must be equal on all workers, by a name that no group of parameters has; the
  // next hello tells it. Contents::watched reports its tensors.
  void watch(std::string_view name);

  Packet hello(const std::vector<GroupName>& groups) const;
  // A line for the run log, the end of the recording, or that it has failed.
  Packet note(packet::Note what) const;

 private:
  WorkerOptions options_;
  std::vector<GroupName> watched_;
};

}  // namespace presum::step
