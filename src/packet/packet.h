// SPDX-License-Identifier: Apache-2.0
// The wire format of docs/packet_format.md as plain structs, and its encoder and decoder.
// Everything here is a pure function of its arguments and safe to call from any thread.
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
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::size_t kHeaderBytes = 56;
inline constexpr std::size_t kBytesMax = std::size_t{16} << 20;
inline constexpr std::uint32_t kReplicasMax = 65'536;
inline constexpr std::uint32_t kGroupsMax = 65'536;
inline constexpr std::size_t kSamplesMax = 256;  // sent of a step; more are thinned out
inline constexpr std::uint32_t kThinnedMax = 63;
inline constexpr std::uint32_t kGramWorkersMax = 64;
inline constexpr std::uint32_t kLayerSketch = 256;
inline constexpr std::uint32_t kLayersMax = 4096;
inline constexpr std::uint32_t kSketchMin = 64;
inline constexpr std::uint32_t kSketchMax = 65'536;

struct Header {
  std::uint64_t run = 0;      // 0 until stamped
  std::uint32_t segment = 0;  // 0 until stamped; the aggregator's own numbers start at 1
  Identity identity;
  std::uint64_t step = 0;
};

struct Group {
  std::uint64_t id = 0;  // name_hash of the group's name
  GradientSums sums;
};

// What went into and what came out of the reduction of one group: sketches of kLayerSketch values
// with one seed for each parameter, so that they are linear in the gradients. Of a sharded model
// what came out is this worker's part of it.
struct Layer {
  std::uint64_t id = 0;           // of its group
  std::uint64_t elements = 0;     // that went in
  std::uint64_t part = 0;         // elements that came out here
  std::uint64_t fingerprint = 0;  // of these
  double squares = 0;             // the sum of theirs; NaN: added to what had come out before
  std::uint32_t shard = 0;        // which part they are, as StateHash::shard; 0: the whole
  bool kept = false;              // they are what this worker put in for them
  std::array<float, kLayerSketch> own{};
  std::array<float, kLayerSketch> reduced{};
};

// One worker's step.
struct Step : StepReport {
  Header header;
  double gradient_scale = 1;  // sums are already divided by it
  GradientSums total;
  std::uint64_t elements = 0;  // gradient elements that were read
  std::vector<Group> groups;
  std::vector<float> sketch;            // empty: off, or invalid at this step
  std::optional<GradientSums> reduced;  // the gradient after the all-reduce, before clipping
  std::vector<Layer> layers;            // of groups of which both were read
  std::vector<double> gram;             // a share of the workers' Gram matrix; gram_size() or empty
};

// Values of the upper triangle of the Gram matrix with its diagonal, row by row; 0 for more than
// kGramWorkersMax workers, which send none.
constexpr std::size_t gram_size(std::size_t workers) {
  return workers > kGramWorkersMax ? 0 : workers * (workers + 1) / 2;
}

// Who a worker is; sent once before its first step.
struct Hello {
  Header header;
  WorkerFacts facts;
};

// A worker's last message (`final`), or a note on the way.
struct Note {
  Header header;
  bool final = false;
  bool broken = false;  // its recording has failed: no step follows, though it may train on
  std::string text;
  FinalState state;
};

// Where a worker's training stood.
struct SnapshotOf {
  Header header;
  TrainingSnapshot snapshot;
};

// Where a process stands.
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

// Takes any bytes. Unknown sections are skipped. Errors: kCorrupt for what is not a whole packet
// within the bounds above, kUnsupported for a newer version. Never crashes, never allocates more
// than a small multiple of the bytes given.
Result<Message> decode(std::span<const std::byte> bytes);

// A list of StateHash, FingerprintValue, MicroBatch, MicroBatchTimes or SnapshotGroup as packets
// carry it, for whoever keeps it so; of bytes that are no such list an empty one.
template <class T>
struct List {
  static std::vector<std::byte> encode(const std::vector<T>& values);
  static std::vector<T> decode(std::span<const std::byte> bytes);
};

}  // namespace presum::packet
