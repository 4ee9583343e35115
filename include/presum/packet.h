// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace presum {

// What an aggregator says at its beginning: Aggregator::announcement(). Packets without it are not
// of its run.
struct Announcement {
  std::uint64_t run = 0;
  std::uint32_t segment = 0;
};

// One encoded message of one worker (docs/packet_format.md). A plain value: it owns its bytes.
// Thread-safety: as a std::vector.
struct Packet {
  std::vector<std::byte> bytes;

  // Writes what a rank learns once the packet is encoded: what the aggregator announced, and how
  // many packets it could not send before (steps hold it). Renews the checksum.
  // Bytes that are no packet stay as they are. REQUIRES: presum made the packet.
  void stamp(const Announcement& announced, std::uint64_t dropped = 0);
};

// Which worker of which model a packet is about.
struct Identity {
  std::uint32_t model_index = 0;  // which model of its group of ranks: 0, 1, ...
  std::uint32_t replica = 0;      // data-parallel rank, 0 .. replicas-1
  std::uint32_t dp_group = 0;     // tells data-parallel groups of one model apart
  std::uint32_t rank = 0;         // global rank
  std::uint32_t replicas = 1;     // data-parallel world size
};

}  // namespace presum
