// SPDX-License-Identifier: Apache-2.0
// The wire format of docs/packet_format.md as plain structs, with its encoder and decoder.
// Everything here is a pure, thread-safe function of its arguments.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "presum/packet.h"
#include "presum/records.h"
#include "presum/stall.h"
#include "presum/status.h"

namespace presum::packet {

inline constexpr std::uint32_t kMagic = 0x4D535250;  // "PRSM"
inline constexpr std::uint16_t kVersion = 3;
inline constexpr std::size_t kHeaderBytes = 56;
inline constexpr std::size_t kBytesMax = std::size_t{16} << 20;
inline constexpr std::uint32_t kReplicasMax = 65'536;
inline constexpr std::uint32_t kGroupsMax = 65'536;
inline constexpr std::size_t kSamplesMax = 256;  // sent per step; more are thinned out
inline constexpr std::uint32_t kThinnedMax = 63;
inline constexpr std::uint32_t kGramWorkersMax = 64;
inline constexpr std::uint32_t kLayerSketch = 256;
inline constexpr std::uint32_t kLayersMax = 4096;
inline constexpr std::uint32_t kSketchMin = 64;
inline constexpr std::uint32_t kSketchMax = 65'536;

struct Header {
  std::uint64_t run = 0;      // 0 until stamped
  std::uint32_t segment = 0;  // 0 until stamped; segments are numbered from 1
  Identity identity;
  std::uint64_t step = 0;
};

struct Group {
  std::uint64_t id = 0;  // name_hash of the group's name
  GradientSums sums;
};

// The contribution to the reduction of one group and its result, as sketches of kLayerSketch values
// with one seed per parameter, so that they are linear in the gradients. For a sharded model the
// result is this rank's part.
struct Layer {
  std::uint64_t id = 0;           // of its group
  std::uint64_t elements = 0;     // elements contributed
  std::uint64_t part = 0;         // elements of the result on this rank
  std::uint64_t fingerprint = 0;  // of the result
  // Sum of the squares of the result; NaN: the result was added to an earlier one.
  double squares = 0;
  std::uint32_t shard = 0;  // which part the result is, as in StateHash::shard; 0: the whole
  bool kept = false;        // the result is this rank's own contribution
  std::array<float, kLayerSketch> own{};
  std::array<float, kLayerSketch> reduced{};
};

// The step of one rank.
struct Step : StepReport {
  Header header;
  double gradient_scale = 1;  // the sums are already divided by it
  GradientSums total;
  std::uint64_t elements = 0;  // gradient elements read
  std::vector<Group> groups;
  std::vector<float> sketch;            // empty: off, or invalid in this step
  std::optional<GradientSums> reduced;  // the gradient after the all-reduce, before clipping
  std::vector<Layer> layers;            // groups for which both sides were read
  // This rank's share of the Gram matrix; gram_size() values, or empty.
  std::vector<double> gram;
};

// Number of values in the upper triangle of the Gram matrix, with its diagonal, row-major; 0 above
// kGramWorkersMax ranks, which send none.
constexpr std::size_t gram_size(std::size_t workers) {
  return workers > kGramWorkersMax ? 0 : workers * (workers + 1) / 2;
}

// Describes a rank; sent once before its first step.
struct Hello {
  Header header;
  WorkerFacts facts;
};

// The last message of a rank (`final`), or a note during the run.
struct Note {
  Header header;
  bool final = false;
  // Its recording has failed: no more steps follow, though training may continue.
  bool broken = false;
  std::string text;
  FinalState state;
};

// A snapshot of a rank's training.
struct SnapshotOf {
  Header header;
  TrainingSnapshot snapshot;
};

// A heartbeat of a process.
struct Beat {
  Header header;
  Heartbeat beat;
};

using Message = std::variant<Hello, Step, Note, SnapshotOf, Beat>;

Packet encode(const Hello& hello);
Packet encode(const Step& step);
Packet encode(const Note& note);
Packet encode(const SnapshotOf& snapshot);
Packet encode(const Beat& beat);

// Accepts any bytes. Skips unknown sections. Errors: kCorrupt if the bytes are not a whole packet
// within the bounds above, kUnsupported for a newer version. Never crashes; allocates at most a
// small multiple of the size of `bytes`.
Result<Message> decode(std::span<const std::byte> bytes);

// A list of StateHash, FingerprintValue, MicroBatch, MicroBatchTimes or SnapshotGroup in its packet
// encoding, for storage elsewhere. Decoding bytes that are not such a list returns an empty one.
template <class T>
struct List {
  static std::vector<std::byte> encode(const std::vector<T>& values);
  static std::vector<T> decode(std::span<const std::byte> bytes);
};

}  // namespace presum::packet
