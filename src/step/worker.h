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

// As in SessionOptions.
struct WorkerOptions {
  Identity identity;
  std::uint32_t sketch_size = 4096;
  std::string host;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Parameter> buffers;
};

// Makes the packets in which a rank describes itself and its recording. Not synchronized.
class Worker {
 public:
  explicit Worker(WorkerOptions options);

  const Identity& identity() const { return options_.identity; }
  std::uint32_t sketch_size() const { return options_.sketch_size; }
  // Longer values, including those in the options, are cut and end in their length and hash.
  static constexpr std::size_t kFactBytesMax = 1024;
  // Adds a fact, or replaces the fact with that key.
  void fact(std::string_view key, std::string_view value);
  // Registers something that must be equal on all ranks. `name` must differ from all groups of
  // parameters; the next hello packet sends it. Contents::watched reports its tensors.
  void watch(std::string_view name);

  Packet hello(const std::vector<GroupName>& groups) const;
  // A packet with a line for the run log, with the end of the recording, or with its failure.
  Packet note(packet::Note what) const;

 private:
  WorkerOptions options_;
  std::vector<GroupName> watched_;
};

}  // namespace presum::step
