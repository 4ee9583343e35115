// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace presum {

// Identifies a recording: Aggregator::announcement() returns it when the aggregator starts. The
// aggregator ignores packets without it as foreign.
struct Announcement {
  std::uint64_t run = 0;
  std::uint32_t segment = 0;
};

// One encoded message of one rank (docs/packet_format.md). A plain value that owns its bytes.
// Thread-safety: that of std::vector.
struct Packet {
  std::vector<std::byte> bytes;

  // Writes what is known only after encoding: the aggregator's announcement, and the number of
  // packets that the rank has dropped so far (only steps hold it). Updates the checksum. Leaves
  // bytes that are not a packet unchanged. REQUIRES: presum made the packet.
  void stamp(const Announcement& announced, std::uint64_t dropped = 0);
};

// The rank and the model of a packet.
struct Identity {
  std::uint32_t model_index = 0;  // index of the model within its group of ranks: 0, 1, ...
  std::uint32_t replica = 0;      // data-parallel rank, 0 to replicas - 1
  std::uint32_t dp_group = 0;     // distinguishes data-parallel groups of one model
  std::uint32_t rank = 0;         // global rank
  std::uint32_t replicas = 1;     // data-parallel world size
};

}  // namespace presum
