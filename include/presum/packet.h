// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace presum {

// One encoded message of one worker (docs/packet_format.md). A plain value: it owns its bytes.
// Thread-safety: as a std::vector.
struct Packet {
  std::vector<std::byte> bytes;

  // Writes the run and segment that the aggregator announced into the header and renews the
  // checksum. A worker only learns them after the first packets were encoded.
  // REQUIRES: bytes came from Observer or presum::packet::encode.
  void stamp(std::uint64_t run, std::uint32_t segment);
};

// Which worker of which model a packet is about.
struct Identity {
  std::uint32_t module = 0;    // which model of its group of ranks: 0, 1, ...
  std::uint32_t replica = 0;   // data-parallel rank, 0 .. replicas-1
  std::uint32_t shard = 0;     // tells data-parallel groups of one module apart
  std::uint32_t rank = 0;      // global rank
  std::uint32_t replicas = 1;  // data-parallel world size
};

}  // namespace presum
