// SPDX-License-Identifier: Apache-2.0
// The wire format of docs/packet_format.md as plain structs, and its encoder and decoder.
// Everything here is a pure function of its arguments and safe to call from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "presum/fingerprint.h"
#include "presum/packet.h"
#include "presum/status.h"

namespace presum::packet {

inline constexpr std::uint32_t kMagic = 0x4D535250;  // "PRSM"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 56;
inline constexpr std::size_t kBytesMax = std::size_t{16} << 20;
inline constexpr std::uint32_t kReplicasMax = 65'536;
inline constexpr std::uint32_t kGroupsMax = 65'536;
inline constexpr std::size_t kSamplesMax = 256;  // sent of a step; more are thinned out
inline constexpr std::uint32_t kThinnedMax = 63;
inline constexpr std::uint32_t kGramWorkersMax = 64;
inline constexpr std::uint32_t kSketchMin = 64;
inline constexpr std::uint32_t kSketchMax = 65'536;
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Header {
  std::uint64_t run = 0;      // 0 until stamped
  std::uint32_t segment = 0;  // 0 until stamped; the aggregator's own numbers start at 1
  Identity identity;
  std::uint64_t step = 0;
};

using presum::GradientSums;

struct Group {
  std::uint64_t id = 0;  // name_hash of the group's name
  GradientSums sums;
};

struct MicroBatch {
  double loss = kUnknown;
  double weight = 1;
  std::uint64_t tokens = 0;
};

// The rows of a step's batch. `hashes` of all of them or, where those would be too many, of those
// that 2^thinned divides.
struct Samples {
  std::uint64_t rows = 0;
  std::uint32_t thinned = 0;
  std::vector<std::uint64_t> hashes;
};

// One worker's step.
struct Step {
  Header header;
  std::uint64_t optimizer_step = 0;
  std::uint32_t micro_batches = 0;
  std::uint32_t skipped_parameters = 0;  // sparse or unreadable gradients left out
  double gradient_scale = 1;             // sums are already divided by it
  std::uint64_t dropped = 0;             // packets this worker has dropped so far
  GradientSums total;
  std::uint64_t elements = 0;  // gradient elements that were read
  std::vector<Group> groups;
  std::vector<float> sketch;      // empty: off, or invalid at this step
  std::vector<MicroBatch> micro;  // in the order of their losses
  std::vector<FingerprintValue> fingerprints;
  std::optional<GradientSums> reduced;  // the gradient after the all-reduce, before clipping
  std::vector<StateHash> states;        // before the forward pass
  Samples samples;
  std::vector<std::uint64_t> indices;  // of the samples in the data set, where they are known
  double mean_dot = kUnknown;          // <own gradient, reduced gradient>
  std::vector<double> gram;            // a share of the workers' Gram matrix; gram_size() or empty
};

// Values of the upper triangle of the Gram matrix with its diagonal, row by row; 0 for more than
// kGramWorkersMax workers, which send none.
constexpr std::size_t gram_size(std::size_t workers) {
  return workers > kGramWorkersMax ? 0 : workers * (workers + 1) / 2;
}

struct GroupName {
  std::uint64_t id = 0;
  std::uint64_t elements = 0;
  std::string name;
};

// Who a worker is; sent once before its first step.
struct Hello {
  Header header;
  std::string host;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<GroupName> groups;
};

// A worker's last message, or a note on the way (`final` false).
struct Note {
  Header header;
  bool final = false;
  std::uint64_t sent = 0;
  std::uint64_t dropped = 0;
  std::string text;
  std::uint64_t clock = 0;        // optimiser steps so far
  std::vector<StateHash> states;  // the whole model, as far as it is known
};

using Message = std::variant<Hello, Step, Note>;

Packet encode(const Hello& hello);
Packet encode(const Step& step);
Packet encode(const Note& note);

// Takes any bytes. Unknown sections are skipped. Errors: kCorrupt for what is not a whole packet
// within the bounds above, kUnsupported for a newer version. Never crashes, never allocates more
// than a small multiple of the bytes given.
Result<Message> decode(std::span<const std::byte> bytes);

}  // namespace presum::packet
