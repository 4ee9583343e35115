// SPDX-License-Identifier: Apache-2.0
#include "packet/packet.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/byte_order.h"
#include "base/try.h"

namespace presum::packet {
namespace {

enum class Kind : std::uint16_t { kHello = 1, kStep = 2, kNote = 3, kSnapshot = 4, kBeat = 5 };

constexpr std::uint32_t kFinalNote = 1;
constexpr std::uint32_t kBrokenNote = 2;

// docs/packet_format.md, "Sections".
enum class Section : std::uint16_t {
  kStep = 1,
  kTotal = 2,
  kGroups = 3,
  kSketch = 4,
  kMicroBatches = 5,
  kFingerprints = 6,
  kReduced = 7,
  kStates = 8,
  kSamples = 9,
  kIndices = 10,
  kGram = 12,
  kAudit = 13,
  kLayers = 14,
  kTimes = 15,
  kHost = 16,
  kFacts = 17,
  kGroupNames = 18,
  kNote = 19,
  kClock = 20,
  kSnapshot = 21,
  kSnapshotGroups = 22,
  kBeat = 23,
  kPlaces = 24,
};

using enum Section;

constexpr std::size_t kLengthOffset = 8;
constexpr std::size_t kChecksumOffset = 12;
constexpr std::size_t kRunOffset = 16;
constexpr std::size_t kSegmentOffset = 24;
constexpr std::size_t kKindOffset = 6;
constexpr std::size_t kSectionHeaderBytes = 8;
// Offsets of fields in the first section, which encode() writes right after the header.
constexpr std::size_t kFirstBody = kHeaderBytes + kSectionHeaderBytes;
constexpr std::size_t kStepDroppedOffset = kFirstBody + 24;

std::uint32_t checksum(std::span<const std::byte> bytes) {
  const auto body = bytes.subspan(kRunOffset);
  return static_cast<std::uint32_t>(XXH3_64bits(body.data(), body.size()));
}

void seal(std::vector<std::byte>& bytes) {
  ByteWriter writer(bytes);
  writer.patch(kLengthOffset, static_cast<std::uint32_t>(bytes.size()));
  writer.patch(kChecksumOffset, checksum(bytes));
}

constexpr double kSecondsMax = 1e8;  // three years
constexpr std::size_t kPlaceBytesMax = 8192;

// ---- sections: one list of fields for both directions

// Whether T has no padding and any bit pattern is a valid value.
template <class T>
constexpr bool kIsPlain =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T>;
template <class T, std::size_t N>
constexpr bool kIsPlain<std::array<T, N>> = kIsPlain<T>;

// Appends the fields of a list, each with its own size.
class Put {
 public:
  static constexpr bool kReads = false;
  template <class T>
  using Of = const T;

  explicit Put(std::vector<std::byte>& out) : out_(out) {}

  template <class... T>
  void operator()(const T&... fields) {
    static_assert((kIsPlain<T> && ...));
    (out_.put(fields), ...);
  }
  template <class As, class T>
  void as(As /*wire*/, T field) {
    out_.put(static_cast<As>(field));
  }
  template <class T>
  void list(const std::vector<T>& list, std::size_t /*max*/) {
    for (const T& one : list) fields(*this, one);
  }
  template <class T>
  void values(const std::vector<T>& values, std::size_t /*max*/) {
    out_.put_bytes(std::as_bytes(std::span(values)));
  }
  void short_text(std::string_view text) {
    const auto kept = text.substr(0, 65'535);
    out_.put(static_cast<std::uint16_t>(kept.size()));
    this->text(kept);
  }
  void text(std::string_view text) { out_.put_bytes(std::as_bytes(std::span(text))); }
  // REQUIRES: the value is present.
  template <class T>
  const T& value(const std::optional<T>& optional) {
    return *optional;
  }
  template <class T>
  bool goes_on_with(const std::optional<T>& optional) {
    return optional.has_value();
  }
  template <class Right>
  void require(Right&& /*right*/) {}
  template <class Enum>
  void limit(Enum /*code*/, Enum /*last*/) {}

 private:
  ByteWriter out_;
};

// Reads fields from a section's body, and reports whether they could be read.
class Get {
 public:
  static constexpr bool kReads = true;
  template <class T>
  using Of = T;

  explicit Get(std::span<const std::byte> body) : body_(body) {}
  bool valid() const { return valid_; }

  template <class... T>
  void operator()(T&... fields) {
    static_assert((kIsPlain<T> && ...));
    ((fields = get<T>()), ...);
  }
  template <class As, class T>
  void as(As /*wire*/, T& field) {
    field = static_cast<T>(get<As>());
  }
  // Reads to the end of the body, as `values` and `text` do.
  template <class T>
  void list(std::vector<T>& list, std::size_t max) {
    list.clear();
    list.reserve(std::min(max, body_.remaining() / sizeof(T)));
    while (goes_on() && list.size() < max) fields(*this, list.emplace_back());
    valid_ = valid_ && body_.remaining() == 0;
  }
  template <class T>
  void values(std::vector<T>& values, std::size_t max) {
    const std::size_t bytes = body_.remaining();
    valid_ = valid_ && bytes % sizeof(T) == 0 && bytes / sizeof(T) <= max;
    if (!valid_) return;
    values.resize(bytes / sizeof(T));
    if (bytes > 0) std::memcpy(values.data(), body_.take(bytes)->data(), bytes);
  }
  void short_text(std::string& text) { text = string(get<std::uint16_t>()); }
  void text(std::string& text) { text = string(body_.remaining()); }
  template <class T>
  T& value(std::optional<T>& optional) {
    return optional.emplace();
  }
  // Returns whether the body continues: records may end where the rest is unknown.
  template <class T>
  bool goes_on_with(std::optional<T>& optional) {
    if (goes_on()) optional.emplace();
    return optional.has_value();
  }
  template <class Right>
  void require(Right&& right) {
    valid_ = valid_ && right();
  }
  // A number without an enumerator becomes 0: unknown, or not tried.
  template <class Enum>
  void limit(Enum& code, Enum last) {
    if (code > last) code = Enum{};
  }

 private:
  bool goes_on() const { return valid_ && body_.remaining() > 0; }
  template <class T>
  T get() {
    const auto value = body_.get<T>();
    valid_ = valid_ && value.has_value();
    return value.value_or(T{});
  }
  std::string string(std::size_t count) {
    const auto bytes = body_.take(count);
    valid_ = valid_ && bytes.has_value();
    if (!bytes) return {};
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  }

  ByteReader body_;
  bool valid_ = true;
};

// The type to read into, or to write from.
template <class Io, class T>
using In = typename Io::template Of<T>;

template <class T, class Key>
bool distinct(const std::vector<T>& list, Key key) {
  std::vector<std::decay_t<std::invoke_result_t<Key, const T&>>> keys;
  keys.reserve(list.size());
  for (const T& item : list) keys.push_back(std::invoke(key, item));
  std::ranges::sort(keys);
  return std::ranges::adjacent_find(keys) == keys.end();
}

template <class Io>
void fields(Io& io, In<Io, Header>& h) {
  io(h.run, h.segment, h.identity.model_index, h.identity.replica, h.identity.dp_group,
     h.identity.rank, h.identity.replicas, h.step);
}

template <class Io>
void fields(Io& io, In<Io, GradientSums>& s) {
  io(s.sum_squares, s.max_abs, s.nonfinite, s.fingerprint);
}

template <class Io>
void fields(Io& io, In<Io, StateHash>& s) {
  std::uint32_t kind = s.kind_and_shard();
  io(s.group, kind, s.value);
  if constexpr (Io::kReads) s = StateHash::of(s.group, kind, s.value);
  io.require([&] {
    return s.kind >= StateHash::Kind::kParameters && s.kind <= StateHash::Kind::kOutside;
  });
}

template <class Io>
void fields(Io& io, In<Io, FingerprintValue>& f) {
  io(f.kind, f.value);
}

template <class Io>
void fields(Io& io, In<Io, MicroBatch>& m) {
  io(m.loss, m.weight, m.tokens, m.targets, m.token_weight);
  io.as(std::uint32_t(), m.differentiated);
  io.require([&] { return std::isfinite(m.weight) && m.weight >= 0; });
}

template <class Io>
void fields(Io& io, In<Io, Group>& group) {
  io(group.id);
  fields(io, group.sums);
}

// No two elements with an equal `key`.
template <class Io, class List, class Key>
void distinct_list(Io& io, List& list, std::size_t max, Key key) {
  io.list(list, max);
  io.require([&] { return distinct(list, key); });
}

template <class Io>
void states(Io& io, In<Io, std::vector<StateHash>>& states) {
  distinct_list(io, states, std::size_t{2} * kGroupsMax,
                [](const StateHash& s) { return std::pair(s.group, s.kind_and_shard()); });
}

template <class Io>
void fingerprints(Io& io, In<Io, std::vector<FingerprintValue>>& fingerprints) {
  distinct_list(io, fingerprints, kGroupsMax, &FingerprintValue::kind);
}

template <class Io>
void fields(Io& io, In<Io, Samples>& samples) {
  io(samples.rows, samples.thinned);
  io.values(samples.hashes, kGroupsMax);
  io.require([&] {
    if (samples.thinned > kThinnedMax || samples.hashes.size() > samples.rows) return false;
    const std::uint64_t mask = (std::uint64_t{1} << samples.thinned) - 1;
    return std::ranges::none_of(samples.hashes, [&](auto hash) { return (hash & mask) != 0; });
  });
}

template <class Io>
void fields(Io& io, In<Io, AuditRecord>& audit) {
  io(audit.elements, audit.differing, audit.wrong, audit.relative_l2, audit.error_max);
  io(audit.gradient, audit.accumulation, audit.order, audit.division, audit.repeat);
  io.limit(audit.gradient, Accumulation::kBF16);
  io.limit(audit.accumulation, Accumulation::kBF16);
  io.limit(audit.order, SumOrder::kHalving);
  io.limit(audit.division, Division::kOnce);
  io.limit(audit.repeat, Repeat::kDifferent);
  if (!io.goes_on_with(audit.ulps)) return;
  io(audit.ulps->p50, audit.ulps->p90, audit.ulps->p99, audit.ulps->max);
}

template <class Io>
void fields(Io& io, In<Io, Layer>& layer) {
  io(layer.id, layer.elements, layer.part, layer.fingerprint, layer.squares, layer.shard);
  io.as(std::uint32_t(), layer.kept);
  io(layer.own, layer.reduced);
}

bool is_duration(double seconds) { return seconds >= 0 && seconds <= kSecondsMax; }

// Values that are not durations become NaN.
template <class... T>
void limit_durations(T&... seconds) {
  ((seconds = is_duration(static_cast<double>(seconds)) ? seconds : static_cast<T>(kNaN)), ...);
}

template <class Io>
void fields(Io& io, In<Io, MicroBatchTimes>& micro) {
  io(micro.data, micro.forward, micro.backward);
  if constexpr (Io::kReads) limit_durations(micro.data, micro.forward, micro.backward);
}

template <class Io>
void fields(Io& io, In<Io, StepTimes>& times) {
  io(times.seconds, times.processor, times.queued);
  io.as(std::uint32_t(), times.on_device);
  if constexpr (Io::kReads) {
    limit_durations(times.processor, times.queued);
    if (!std::ranges::all_of(times.seconds, is_duration)) times.seconds.fill(kNaN);
  }
  io.list(times.micro, kMicroTimesMax);
}

template <class Io>
void record(Io& io, In<Io, Step>& step) {
  io(step.optimizer_step, step.micro_batches, step.skipped_parameters, step.gradient_scale,
     step.dropped);
  if constexpr (Io::kReads) step.number = {.reductions = step.header.step};
  io(step.number.unreduced, step.number.window);
  io.as(std::uint32_t(), step.use);
  io.limit(step.use, StepUse::kKept);
}

template <class Io>
void total(Io& io, In<Io, Step>& step) {
  fields(io, step.total);
  io(step.elements);
}

template <class Io>
void sketch(Io& io, In<Io, std::vector<float>>& values) {
  io.values(values, kSketchMax);
  io.require([&] { return std::has_single_bit(values.size()) && values.size() >= kSketchMin; });
}

template <class Io>
void gram(Io& io, In<Io, Step>& step) {
  const std::size_t size = gram_size(step.header.identity.replicas);
  io.values(step.gram, size);
  io.require([&] { return size > 0 && step.gram.size() == size; });
}

template <class Io>
void fields(Io& io, In<Io, std::pair<std::string, std::string>>& fact) {
  io.short_text(fact.first);
  io.short_text(fact.second);
}

template <class Io>
void fields(Io& io, In<Io, GroupName>& group) {
  io(group.id, group.elements);
  io.short_text(group.name);
}

template <class Io>
void fields(Io& io, In<Io, Note>& note) {
  std::uint32_t what = note.final ? kFinalNote : note.broken ? kBrokenNote : 0;
  io(what);
  io.text(note.text);
  io.require([&] { return what <= kBrokenNote; });
  if constexpr (Io::kReads) {
    note.final = what == kFinalNote;
    note.broken = what == kBrokenNote;
  }
}

template <class Io>
void fields(Io& io, In<Io, SnapshotGroup>& group) {
  std::uint16_t sketched = group.sketch.empty() ? 0 : 1;
  io(group.id, group.elements, group.squares, group.parameters, group.optimizer, group.shard,
     sketched, group.formats);
  if (sketched == 0) return;
  std::array<float, kLayerSketch> sketch{};
  std::copy_n(group.sketch.begin(), std::min(group.sketch.size(), sketch.size()), sketch.begin());
  io(sketch);
  if constexpr (Io::kReads) group.sketch.assign(sketch.begin(), sketch.end());
}

template <class Io>
void fields(Io& io, In<Io, TrainingSnapshot>& snapshot) {
  io(snapshot.kind, snapshot.step, snapshot.optimizer_steps, snapshot.learning_rate);
  io.require([&] {
    return snapshot.kind >= TrainingSnapshot::Kind::kBegun &&
           snapshot.kind <= TrainingSnapshot::Kind::kLeft;
  });
}

template <class Io>
void fields(Io& io, In<Io, Heartbeat>& beat) {
  io(beat.events, beat.step, beat.micro_batch, beat.phase);
  io.limit(beat.phase, Phase::kReduction);
  io.as(std::uint8_t(), beat.waiting);
  io.as(std::uint8_t(), beat.lock_held);
  io(beat.thread, beat.layer, beat.still, beat.longest, beat.processor, beat.period,
     beat.stall_seconds);
  io.require([&] {
    return is_duration(beat.still) && is_duration(beat.longest) && is_duration(beat.period) &&
           is_duration(beat.stall_seconds) && beat.period > 0 && beat.stall_seconds > 0;
  });
}

template <class Io>
void places(Io& io, In<Io, Heartbeat>& beat) {
  for (auto* text : {&beat.host, &beat.collective, &beat.site, &beat.stack, &beat.recorder}) {
    io.short_text(*text);
    if constexpr (Io::kReads) text->resize(std::min(text->size(), kPlaceBytesMax));
  }
}

// ---- messages: one list of sections for both directions

template <class To>
void sections(To& to, In<To, Step>& step) {
  to(kStep, true, [&](auto& io) { record(io, step); });
  to(kTotal, true, [&](auto& io) { total(io, step); });
  to(kGroups, true, [&](auto& io) { distinct_list(io, step.groups, kGroupsMax, &Group::id); });
  to(kSketch, !step.sketch.empty(), [&](auto& io) { sketch(io, step.sketch); });
  to(kMicroBatches, true, [&](auto& io) { io.list(step.micro, kGroupsMax); });
  to(kFingerprints, true, [&](auto& io) { fingerprints(io, step.fingerprints); });
  to(kReduced, step.reduced.has_value(), [&](auto& io) { fields(io, io.value(step.reduced)); });
  to(kLayers, !step.layers.empty(),
     [&](auto& io) { distinct_list(io, step.layers, kLayersMax, &Layer::id); });
  to(kStates, !step.states.empty(), [&](auto& io) { states(io, step.states); });
  to(kSamples, step.samples.rows > 0, [&](auto& io) { fields(io, step.samples); });
  to(kIndices, !step.indices.empty(), [&](auto& io) { io.values(step.indices, kGroupsMax); });
  to(kGram, !step.gram.empty(), [&](auto& io) { gram(io, step); });
  to(kAudit, step.audit.has_value(), [&](auto& io) { fields(io, io.value(step.audit)); });
  to(kTimes, step.times.known(), [&](auto& io) { fields(io, step.times); });
}

template <class To>
void sections(To& to, In<To, Hello>& hello) {
  to(kHost, true, [&](auto& io) { io.text(hello.facts.host); });
  to(kFacts, true, [&](auto& io) { io.list(hello.facts.facts, kGroupsMax); });
  to(kGroupNames, true, [&](auto& io) { io.list(hello.facts.groups, kGroupsMax); });
}

template <class To>
void sections(To& to, In<To, Note>& note) {
  auto& state = note.state;
  to(kNote, true, [&](auto& io) { fields(io, note); });
  to(kClock, note.final, [&](auto& io) { io(state.optimizer_steps); });
  to(kFingerprints, !state.fingerprints.empty(),
     [&](auto& io) { fingerprints(io, state.fingerprints); });
  to(kStates, !state.states.empty(), [&](auto& io) { states(io, state.states); });
}

template <class To>
void sections(To& to, In<To, SnapshotOf>& of) {
  auto& snapshot = of.snapshot;
  to(kSnapshot, true, [&](auto& io) { fields(io, snapshot); });
  to(kFingerprints, !snapshot.generators.empty(),
     [&](auto& io) { fingerprints(io, snapshot.generators); });
  to(kSnapshotGroups, !snapshot.groups.empty(),
     [&](auto& io) { distinct_list(io, snapshot.groups, kLayersMax, &SnapshotGroup::id); });
}

template <class To>
void sections(To& to, In<To, Beat>& of) {
  to(kBeat, true, [&](auto& io) { fields(io, of.beat); });
  to(kPlaces, true, [&](auto& io) { places(io, of.beat); });
}

// Appends the sections that are present.
struct PutSections {
  template <class T>
  using Of = const T;
  template <class Body>
  void operator()(Section type, bool is_there, Body&& body) {
    if (!is_there) return;
    Put put(bytes);
    put(type, std::uint16_t{0});
    const std::size_t length_at = bytes.size();
    put(std::uint32_t{0});
    body(put);
    ByteWriter(bytes).patch(length_at, static_cast<std::uint32_t>(bytes.size() - length_at - 4));
  }
  std::vector<std::byte>& bytes;
};

// Reads one section, if the message may contain it.
struct GetSection {
  template <class T>
  using Of = T;
  template <class Body>
  void operator()(Section candidate, bool /*is_there*/, Body&& body) {
    if (candidate == type) body(io);
  }
  Section type;
  Get io;
};

template <class M>
Packet packet_of(Kind kind, const M& message) {
  Packet packet;
  Put put(packet.bytes);
  // length and checksum; set when the packet is sealed
  put(kMagic, kVersion, kind, std::uint64_t{0});
  fields(put, message.header);
  PutSections to{packet.bytes};
  sections(to, message);
  seal(packet.bytes);
  return packet;
}

Error corrupt(const char* what) {
  return fail(ErrorCode::kCorrupt, std::string("not a presum packet: ") + what);
}

template <class M>
Result<Message> read_message(const Header& header, ByteReader reader) {
  M message;
  message.header = header;
  while (reader.remaining() > 0) {
    const auto type = reader.get<Section>();
    const auto reserved = reader.get<std::uint16_t>();
    const auto length = reader.get<std::uint32_t>();
    if (!type || !reserved || !length) return corrupt("a section is cut off");
    const auto bytes = reader.take(*length);
    if (!bytes) return corrupt("a section is longer than the packet");
    GetSection section{*type, Get(*bytes)};
    sections(section, message);
    if (!section.io.valid()) return corrupt("a section is malformed");
  }
  if constexpr (std::is_same_v<M, SnapshotOf>) {
    if (message.snapshot.kind == TrainingSnapshot::Kind::kUnknown)
      return corrupt("a snapshot without its record");
  }
  return Message(std::move(message));
}

}  // namespace

Packet encode(const Hello& hello) { return packet_of(Kind::kHello, hello); }
Packet encode(const Step& step) { return packet_of(Kind::kStep, step); }
Packet encode(const Note& note) { return packet_of(Kind::kNote, note); }
Packet encode(const SnapshotOf& snapshot) { return packet_of(Kind::kSnapshot, snapshot); }
Packet encode(const Beat& beat) { return packet_of(Kind::kBeat, beat); }

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt("shorter than a header");
  if (bytes.size() > kBytesMax) return corrupt("longer than 16 MiB");
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  Kind kind{};
  std::uint32_t length = 0;
  std::uint32_t sum = 0;
  Header header;
  Get get(bytes.first(kHeaderBytes));
  get(magic, version, kind, length, sum);
  fields(get, header);
  if (magic != kMagic) return corrupt("wrong first four bytes");
  if (version != kVersion) {
    return fail(ErrorCode::kUnsupported, "packet version " + std::to_string(version) +
                                             " is not supported; update presum on rank 0");
  }
  if (length != bytes.size()) return corrupt("wrong length");
  if (sum != checksum(bytes)) return corrupt("wrong checksum");
  const Identity& id = header.identity;
  if (id.replicas == 0 || id.replicas > kReplicasMax) return corrupt("bad number of replicas");
  if (id.replica >= id.replicas) return corrupt("replica is not below the number of replicas");
  const ByteReader sections(bytes.subspan(kHeaderBytes));
  switch (kind) {
    case Kind::kHello:
      return read_message<Hello>(header, sections);
    case Kind::kStep:
      return read_message<Step>(header, sections);
    case Kind::kNote:
      return read_message<Note>(header, sections);
    case Kind::kSnapshot:
      return read_message<SnapshotOf>(header, sections);
    case Kind::kBeat:
      return read_message<Beat>(header, sections);
  }
  return corrupt("unknown kind");
}

template <class T>
std::vector<std::byte> List<T>::encode(const std::vector<T>& values) {
  std::vector<std::byte> out;
  Put(out).list(values, values.size());
  return out;
}

template <class T>
std::vector<T> List<T>::decode(std::span<const std::byte> bytes) {
  std::vector<T> out;
  Get get(bytes);
  get.list(out, bytes.size());
  if (!get.valid()) out.clear();
  return out;
}

template struct List<StateHash>;
template struct List<FingerprintValue>;
template struct List<MicroBatch>;
template struct List<MicroBatchTimes>;
template struct List<SnapshotGroup>;

}  // namespace presum::packet

namespace presum {

void Packet::stamp(const Announcement& announced, std::uint64_t dropped) {
  if (bytes.size() < packet::kFirstBody) return;
  const auto kind = static_cast<packet::Kind>(bytes[packet::kKindOffset]);
  const bool counts = kind == packet::Kind::kStep;
  if (counts && bytes.size() < packet::kStepDroppedOffset + sizeof(dropped)) return;
  ByteWriter writer(bytes);
  writer.patch(packet::kRunOffset, announced.run);
  writer.patch(packet::kSegmentOffset, announced.segment);
  if (counts) writer.patch(packet::kStepDroppedOffset, dropped);
  packet::seal(bytes);
}

}  // namespace presum
