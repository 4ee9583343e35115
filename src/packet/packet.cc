// SPDX-License-Identifier: Apache-2.0
#include "packet/packet.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/byte_order.h"
#include "base/try.h"

namespace presum::packet {
namespace {

enum class Kind : std::uint16_t { kHello = 1, kStep = 2, kNote = 3, kMoment = 4, kBeat = 5 };

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
  kMoment = 21,
  kMomentGroups = 22,
  kBeat = 23,
  kPlaces = 24,
};

constexpr std::size_t kLengthOffset = 8;
constexpr std::size_t kChecksumOffset = 12;
constexpr std::size_t kRunOffset = 16;
constexpr std::size_t kSegmentOffset = 24;
constexpr std::size_t kKindOffset = 6;
constexpr std::size_t kSectionHeaderBytes = 8;
// Of what follows the header of the first section, which encode puts first.
constexpr std::size_t kFirstBody = kHeaderBytes + kSectionHeaderBytes;
constexpr std::size_t kStepDroppedOffset = kFirstBody + 24;
constexpr std::size_t kNoteSentOffset = kFirstBody + 4;
constexpr std::size_t kNoteDroppedOffset = kFirstBody + 12;

std::uint32_t checksum(std::span<const std::byte> bytes) {
  const auto body = bytes.subspan(kRunOffset);
  return static_cast<std::uint32_t>(XXH3_64bits(body.data(), body.size()));
}

void seal(std::vector<std::byte>& bytes) {
  ByteWriter writer(bytes);
  writer.patch(kLengthOffset, static_cast<std::uint32_t>(bytes.size()));
  writer.patch(kChecksumOffset, checksum(bytes));
}

constexpr std::uint64_t UlpPercentiles::*kUlps[] = {&UlpPercentiles::p50, &UlpPercentiles::p90,
                                                    &UlpPercentiles::p99, &UlpPercentiles::max};

// ---- encoding

class Encoder {
 public:
  Encoder(Kind kind, const Header& header) : writer_(packet_.bytes) {
    writer_.put(kMagic);
    writer_.put(kVersion);
    writer_.put(kind);
    writer_.put(std::uint32_t{0});  // length, sealed at the end
    writer_.put(std::uint32_t{0});  // checksum, likewise
    writer_.put(header.run);
    writer_.put(header.segment);
    writer_.put(header.identity.module);
    writer_.put(header.identity.replica);
    writer_.put(header.identity.shard);
    writer_.put(header.identity.rank);
    writer_.put(header.identity.replicas);
    writer_.put(header.step);
  }

  template <class WriteBody>
  void section(Section type, WriteBody&& body) {
    writer_.put(type);
    writer_.put(std::uint16_t{0});
    const std::size_t length_at = writer_.size();
    writer_.put(std::uint32_t{0});
    body(writer_);
    writer_.patch(length_at, static_cast<std::uint32_t>(writer_.size() - length_at - 4));
  }

  void text_section(Section type, std::string_view text) {
    section(type, [&](ByteWriter& w) { w.put_bytes(std::as_bytes(std::span(text))); });
  }

  Packet finish() && {
    seal(packet_.bytes);
    return std::move(packet_);
  }

 private:
  Packet packet_;
  ByteWriter writer_;
};

void put_sums(ByteWriter& w, const GradientSums& sums) {
  w.put(sums.sum_squares);
  w.put(sums.max_abs);
  w.put(sums.nonfinite);
  w.put(sums.fingerprint);
}

void put_text(ByteWriter& w, std::string_view text) {
  const auto kept = text.substr(0, 65'535);
  w.put(static_cast<std::uint16_t>(kept.size()));
  w.put_bytes(std::as_bytes(std::span(kept)));
}

void put_states(Encoder& encoder, const std::vector<StateHash>& states) {
  if (states.empty()) return;
  encoder.section(Section::kStates, [&](ByteWriter& w) {
    for (const StateHash& s : states) {
      w.put(s.group);
      w.put(s.kind_and_shard());
      w.put(s.value);
    }
  });
}

void put_fingerprints(Encoder& encoder, std::span<const FingerprintValue> fingerprints) {
  encoder.section(Section::kFingerprints, [&](ByteWriter& w) {
    for (const FingerprintValue& f : fingerprints) {
      w.put(f.kind);
      w.put(f.value);
    }
  });
}

void put_data(Encoder& encoder, const Step& step) {
  if (step.samples.rows > 0) {
    encoder.section(Section::kSamples, [&](ByteWriter& w) {
      w.put(step.samples.rows);
      w.put(step.samples.thinned);
      for (const std::uint64_t hash : step.samples.hashes) w.put(hash);
    });
  }
  if (step.indices.empty()) return;
  encoder.section(Section::kIndices, [&](ByteWriter& w) {
    for (const std::uint64_t index : step.indices) w.put(index);
  });
}

void put_audit(Encoder& encoder, const std::optional<AuditRecord>& audit) {
  if (!audit) return;
  encoder.section(Section::kAudit, [&](ByteWriter& w) {
    w.put(audit->elements);
    w.put(audit->differing);
    w.put(audit->wrong);
    w.put(audit->relative_l2);
    w.put(audit->error_max);
    w.put(audit->gradient);
    w.put(audit->accumulation);
    w.put(audit->order);
    w.put(audit->division);
    w.put(audit->repeat);
    if (!audit->ulps) return;
    for (const auto part : kUlps) w.put((*audit->ulps).*part);
  });
}

void put_layers(Encoder& encoder, const std::vector<Layer>& layers) {
  if (layers.empty()) return;
  encoder.section(Section::kLayers, [&](ByteWriter& w) {
    for (const Layer& layer : layers) {
      w.put(layer.id);
      w.put(layer.elements);
      w.put(layer.part);
      w.put(layer.fingerprint);
      w.put(layer.squares);
      w.put(layer.shard);
      w.put(std::uint32_t{layer.kept});
      w.put_bytes(std::as_bytes(std::span(layer.own)));
      w.put_bytes(std::as_bytes(std::span(layer.reduced)));
    }
  });
}

void put_gram(Encoder& encoder, const Step& step) {
  if (step.gram.empty()) return;
  encoder.section(Section::kGram,
                  [&](ByteWriter& w) { w.put_bytes(std::as_bytes(std::span(step.gram))); });
}

void put_times(Encoder& encoder, const StepTimes& times) {
  if (!times.known()) return;
  encoder.section(Section::kTimes, [&](ByteWriter& w) {
    for (const double seconds : times.seconds) w.put(seconds);
    w.put(times.processor);
    w.put(times.queued);
    w.put(std::uint32_t{times.on_device});
    for (const MicroBatchTimes& micro : times.micro) {
      w.put(micro.data);
      w.put(micro.forward);
      w.put(micro.backward);
    }
  });
}

// ---- decoding

class SectionReader {
 public:
  explicit SectionReader(std::span<const std::byte> bytes) : reader_(bytes) {}

  template <class T>
  T get() {
    const auto value = reader_.get<T>();
    ok_ = ok_ && value.has_value();
    return value.value_or(T{});
  }
  std::string text(std::size_t count) {
    const auto bytes = reader_.take(count);
    ok_ = ok_ && bytes.has_value();
    if (!bytes) return {};
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  }
  std::string short_text() { return text(get<std::uint16_t>()); }
  std::string all_text() { return text(reader_.remaining()); }
  GradientSums sums() {
    GradientSums s;
    s.sum_squares = get<double>();
    s.max_abs = get<double>();
    s.nonfinite = get<std::uint64_t>();
    s.fingerprint = get<std::uint64_t>();
    return s;
  }
  bool more() const { return ok_ && reader_.remaining() > 0; }
  bool whole() const { return ok_ && reader_.remaining() == 0; }
  bool valid() const { return ok_; }
  std::size_t remaining() const { return reader_.remaining(); }

 private:
  ByteReader reader_;
  bool ok_ = true;
};

bool read_sketch(std::span<const std::byte> bytes, std::vector<float>& sketch) {
  const std::size_t size = bytes.size() / sizeof(float);
  if (bytes.size() % sizeof(float) != 0 || !std::has_single_bit(size)) return false;
  if (size < kSketchMin || size > kSketchMax) return false;
  sketch.resize(size);
  std::memcpy(sketch.data(), bytes.data(), bytes.size());
  return true;
}

template <class T, class ReadOne>
bool read_list(SectionReader& body, std::vector<T>& out, std::size_t max, ReadOne&& read_one) {
  out.clear();
  out.reserve(std::min(max, body.remaining() / sizeof(T)));
  while (body.more() && out.size() < max) out.push_back(read_one());
  return body.whole();
}

template <class T, class Key>
bool distinct(const std::vector<T>& list, Key&& key) {
  std::vector<std::decay_t<decltype(key(list.front()))>> keys;
  keys.reserve(list.size());
  for (const T& item : list) keys.push_back(key(item));
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) == keys.end();
}

bool valid_weights(const std::vector<MicroBatch>& micro) {
  return std::all_of(micro.begin(), micro.end(),
                     [](const MicroBatch& m) { return std::isfinite(m.weight) && m.weight >= 0; });
}

bool read_states(SectionReader& body, std::vector<StateHash>& states) {
  const bool whole = read_list(body, states, std::size_t{2} * kGroupsMax, [&] {
    const auto group = body.get<std::uint64_t>();
    const auto kind = body.get<std::uint32_t>();
    return StateHash::of(group, kind, body.get<std::uint64_t>());
  });
  const bool known = std::all_of(states.begin(), states.end(), [](const StateHash& s) {
    return s.kind >= StateHash::Kind::kParameters && s.kind <= StateHash::Kind::kFrozen;
  });
  return whole && known && distinct(states, [](const StateHash& s) {
           return std::pair(s.group, s.kind_and_shard());
         });
}

bool read_fingerprints(SectionReader& body, std::vector<FingerprintValue>& fingerprints) {
  return read_list(body, fingerprints, kGroupsMax,
                   [&] {
                     const auto kind = body.get<std::uint32_t>();
                     return FingerprintValue{kind, body.get<std::uint64_t>()};
                   }) &&
         distinct(fingerprints, [](const FingerprintValue& f) { return f.kind; });
}

bool read_samples(SectionReader& body, Samples& samples) {
  samples.rows = body.get<std::uint64_t>();
  samples.thinned = body.get<std::uint32_t>();
  const bool whole =
      read_list(body, samples.hashes, kGroupsMax, [&] { return body.get<std::uint64_t>(); });
  if (!whole || samples.thinned > kThinnedMax || samples.hashes.size() > samples.rows) return false;
  const std::uint64_t mask = (std::uint64_t{1} << samples.thinned) - 1;
  return std::none_of(samples.hashes.begin(), samples.hashes.end(),
                      [&](std::uint64_t hash) { return (hash & mask) != 0; });
}

// A number that the enumeration does not have becomes its 0: not known, or not tried.
template <class Enum>
Enum read_code(SectionReader& body, Enum last) {
  const auto code = body.get<Enum>();
  return code <= last ? code : Enum{};
}

bool read_audit(SectionReader& body, std::optional<AuditRecord>& out) {
  AuditRecord& audit = out.emplace();
  audit.elements = body.get<std::uint64_t>();
  audit.differing = body.get<std::uint64_t>();
  audit.wrong = body.get<std::uint64_t>();
  audit.relative_l2 = body.get<double>();
  audit.error_max = body.get<double>();
  audit.gradient = read_code(body, Accumulation::kBF16);
  audit.accumulation = read_code(body, Accumulation::kBF16);
  audit.order = read_code(body, SumOrder::kHalving);
  audit.division = read_code(body, Division::kOnce);
  audit.repeat = read_code(body, Repeat::kDifferent);
  if (body.more()) {
    audit.ulps.emplace();
    for (const auto part : kUlps) (*audit.ulps).*part = body.get<std::uint64_t>();
  }
  return body.valid();
}

bool read_gram(SectionReader& body, std::uint32_t workers, std::vector<double>& gram) {
  const std::size_t size = gram_size(workers);
  return read_list(body, gram, size, [&] { return body.get<double>(); }) && gram.size() == size &&
         size > 0;
}

bool read_layers(std::span<const std::byte> bytes, std::vector<Layer>& layers) {
  SectionReader body(bytes);
  const auto sketch = [&](std::array<float, kLayerSketch>& out) {
    for (float& value : out) value = body.get<float>();
  };
  return read_list(body, layers, kLayersMax,
                   [&] {
                     Layer layer{.id = body.get<std::uint64_t>(),
                                 .elements = body.get<std::uint64_t>(),
                                 .part = body.get<std::uint64_t>(),
                                 .fingerprint = body.get<std::uint64_t>(),
                                 .squares = body.get<double>(),
                                 .shard = body.get<std::uint32_t>(),
                                 .kept = body.get<std::uint32_t>() != 0};
                     sketch(layer.own);
                     sketch(layer.reduced);
                     return layer;
                   }) &&
         distinct(layers, [](const Layer& layer) { return layer.id; });
}

constexpr double kSecondsMax = 1e8;  // three years
constexpr std::size_t kPlaceBytesMax = 8192;

// Durations are from 0 to kSecondsMax; of what is not nothing is known.
bool read_times(SectionReader& body, StepTimes& times) {
  const auto duration = [](auto seconds) {
    return seconds >= 0 && seconds <= kSecondsMax ? seconds : decltype(seconds)(kNaN);
  };
  times = {};
  auto& phases = times.seconds;
  for (double& seconds : phases) seconds = duration(body.get<double>());
  times.processor = duration(body.get<double>());
  times.queued = duration(body.get<double>());
  times.on_device = body.get<std::uint32_t>() != 0;
  if (std::ranges::any_of(phases, [](double s) { return std::isnan(s); })) phases.fill(kNaN);
  return read_list(body, times.micro, kMicroTimesMax, [&] {
    MicroBatchTimes micro;
    micro.data = duration(body.get<float>());
    micro.forward = duration(body.get<float>());
    micro.backward = duration(body.get<float>());
    return micro;
  });
}

bool read_record(SectionReader& body, Step& step) {
  step.optimizer_step = body.get<std::uint64_t>();
  step.micro_batches = body.get<std::uint32_t>();
  step.skipped_parameters = body.get<std::uint32_t>();
  step.gradient_scale = body.get<double>();
  step.dropped = body.get<std::uint64_t>();
  step.number = {.reductions = step.header.step};
  if (!body.more()) return body.valid();  // before steps could be unreduced
  step.number.unreduced = body.get<std::uint64_t>();
  step.number.window = body.get<std::uint32_t>();
  const auto use = static_cast<StepUse>(body.get<std::uint32_t>());
  step.use = use <= StepUse::kKept ? use : StepUse::kUnknown;
  return body.valid();
}

bool read_section(Step& step, Section type, std::span<const std::byte> bytes) {
  SectionReader body(bytes);
  switch (type) {
    case Section::kStep:
      return read_record(body, step);
    case Section::kTotal:
      step.total = body.sums();
      step.elements = body.get<std::uint64_t>();
      return body.valid();
    case Section::kGroups:
      return read_list(body, step.groups, kGroupsMax,
                       [&] {
                         const auto id = body.get<std::uint64_t>();
                         return Group{id, body.sums()};
                       }) &&
             distinct(step.groups, [](const Group& g) { return g.id; });
    case Section::kSketch:
      return read_sketch(bytes, step.sketch);
    case Section::kMicroBatches:
      return read_list(body, step.micro, kGroupsMax,
                       [&] {
                         MicroBatch m;
                         m.loss = body.get<double>();
                         m.weight = body.get<double>();
                         m.tokens = body.get<std::uint64_t>();
                         return m;
                       }) &&
             valid_weights(step.micro);
    case Section::kFingerprints:
      return read_fingerprints(body, step.fingerprints);
    case Section::kReduced:
      step.reduced = body.sums();
      return body.valid();
    case Section::kLayers:
      return read_layers(bytes, step.layers);
    case Section::kStates:
      return read_states(body, step.states);
    case Section::kSamples:
      return read_samples(body, step.samples);
    case Section::kIndices:
      return read_list(body, step.indices, kGroupsMax, [&] { return body.get<std::uint64_t>(); });
    case Section::kAudit:
      return read_audit(body, step.audit);
    case Section::kTimes:
      return read_times(body, step.times);
    case Section::kGram:
      return read_gram(body, step.header.identity.replicas, step.gram);
    default:
      return true;
  }
}

bool read_section(Hello& hello, Section type, std::span<const std::byte> bytes) {
  SectionReader body(bytes);
  switch (type) {
    case Section::kHost:
      hello.facts.host = body.all_text();
      return true;
    case Section::kFacts:
      return read_list(body, hello.facts.facts, kGroupsMax, [&] {
        auto key = body.short_text();
        return std::pair(std::move(key), body.short_text());
      });
    case Section::kGroupNames:
      return read_list(body, hello.facts.groups, kGroupsMax, [&] {
        GroupName g;
        g.id = body.get<std::uint64_t>();
        g.elements = body.get<std::uint64_t>();
        g.name = body.short_text();
        return g;
      });
    default:
      return true;
  }
}

bool read_section(Note& note, Section type, std::span<const std::byte> bytes) {
  SectionReader body(bytes);
  switch (type) {
    case Section::kNote: {
      const auto what = body.get<std::uint32_t>();
      note.final = what == kFinalNote;
      note.broken = what == kBrokenNote;
      note.sent = body.get<std::uint64_t>();
      note.dropped = body.get<std::uint64_t>();
      note.text = body.all_text();
      return body.valid() && what <= kBrokenNote;
    }
    case Section::kClock:
      note.state.optimizer_steps = body.get<std::uint64_t>();
      return body.valid();
    case Section::kFingerprints:
      return read_fingerprints(body, note.state.fingerprints);
    case Section::kStates:
      return read_states(body, note.state.states);
    default:
      return true;
  }
}

bool read_groups(SectionReader& body, std::vector<MomentGroup>& groups) {
  return read_list(body, groups, kLayersMax,
                   [&] {
                     MomentGroup group{.id = body.get<std::uint64_t>(),
                                       .elements = body.get<std::uint64_t>(),
                                       .squares = body.get<double>(),
                                       .parameters = body.get<std::uint64_t>(),
                                       .optimizer = body.get<std::uint64_t>(),
                                       .shard = body.get<std::uint32_t>()};
                     const bool sketched = body.get<std::uint16_t>() != 0;
                     group.formats = body.get<std::uint16_t>();
                     group.sketch.resize(kLayerSketch);
                     for (float& value : group.sketch) value = body.get<float>();
                     if (!sketched) group.sketch.clear();
                     return group;
                   }) &&
         distinct(groups, [](const MomentGroup& group) { return group.id; });
}

bool read_section(MomentOf& out, Section type, std::span<const std::byte> bytes) {
  SectionReader body(bytes);
  Moment& moment = out.moment;
  switch (type) {
    case Section::kMoment: {
      const auto kind = body.get<std::uint32_t>();
      moment.kind = static_cast<Moment::Kind>(kind);
      moment.step = body.get<std::uint64_t>();
      moment.optimizer_steps = body.get<double>();
      moment.learning_rate = body.get<double>();
      return body.valid() && kind >= 1 && kind <= 2;
    }
    case Section::kFingerprints:
      return read_fingerprints(body, moment.generators);
    case Section::kMomentGroups:
      return read_groups(body, moment.groups);
    default:
      return true;
  }
}

bool is_duration(double seconds) { return seconds >= 0 && seconds <= kSecondsMax; }

bool read_section(Beat& out, Section type, std::span<const std::byte> bytes) {
  SectionReader body(bytes);
  Heartbeat& beat = out.beat;
  switch (type) {
    case Section::kBeat:
      beat.events = body.get<std::uint64_t>();
      beat.step = body.get<std::uint64_t>();
      beat.micro_batch = body.get<std::uint32_t>();
      beat.phase = read_code(body, Phase::kReduction);
      beat.waiting = body.get<std::uint8_t>() != 0;
      beat.lock_held = body.get<std::uint8_t>() != 0;
      beat.thread = static_cast<char>(body.get<std::uint8_t>());
      beat.layer = body.get<std::uint64_t>();
      for (double* seconds :
           {&beat.still, &beat.longest, &beat.processor, &beat.period, &beat.stall_seconds}) {
        *seconds = body.get<double>();
      }
      return body.valid() && is_duration(beat.still) && is_duration(beat.longest) &&
             is_duration(beat.period) && is_duration(beat.stall_seconds) && beat.period > 0 &&
             beat.stall_seconds > 0;
    case Section::kPlaces:
      for (std::string* text :
           {&beat.host, &beat.collective, &beat.site, &beat.stack, &beat.recorder}) {
        *text = body.short_text();
        text->resize(std::min(text->size(), kPlaceBytesMax));
      }
      return body.valid();
    default:
      return true;
  }
}

Error corrupt(const char* what) {
  return fail(ErrorCode::kCorrupt, std::string("not a presum packet: ") + what);
}

Result<Header> read_header(ByteReader& reader) {
  SectionReader body(*reader.take(kHeaderBytes - kRunOffset));
  Header h;
  h.run = body.get<std::uint64_t>();
  h.segment = body.get<std::uint32_t>();
  h.identity.module = body.get<std::uint32_t>();
  h.identity.replica = body.get<std::uint32_t>();
  h.identity.shard = body.get<std::uint32_t>();
  h.identity.rank = body.get<std::uint32_t>();
  h.identity.replicas = body.get<std::uint32_t>();
  h.step = body.get<std::uint64_t>();
  const Identity& id = h.identity;
  if (id.replicas == 0 || id.replicas > kReplicasMax) return corrupt("bad number of replicas");
  if (id.replica >= id.replicas) return corrupt("replica is not below the number of replicas");
  return h;
}

template <class T>
Result<Message> read_message(Header header, ByteReader reader) {
  T message;
  message.header = header;
  while (reader.remaining() > 0) {
    const auto type = reader.get<Section>();
    const auto reserved = reader.get<std::uint16_t>();
    const auto length = reader.get<std::uint32_t>();
    if (!type || !reserved || !length) return corrupt("a section is cut off");
    const auto body = reader.take(*length);
    if (!body) return corrupt("a section is longer than the packet");
    if (!read_section(message, *type, *body)) return corrupt("a section is malformed");
  }
  if constexpr (std::is_same_v<T, MomentOf>) {
    if (message.moment.kind == Moment::Kind::kUnknown)
      return corrupt("a moment without its record");
  }
  return Message(std::move(message));
}

}  // namespace

Packet encode(const Hello& hello) {
  Encoder encoder(Kind::kHello, hello.header);
  encoder.text_section(Section::kHost, hello.facts.host);
  encoder.section(Section::kFacts, [&](ByteWriter& w) {
    for (const auto& [key, value] : hello.facts.facts) {
      put_text(w, key);
      put_text(w, value);
    }
  });
  encoder.section(Section::kGroupNames, [&](ByteWriter& w) {
    for (const GroupName& g : hello.facts.groups) {
      w.put(g.id);
      w.put(g.elements);
      put_text(w, g.name);
    }
  });
  return std::move(encoder).finish();
}

Packet encode(const Step& step) {
  Encoder encoder(Kind::kStep, step.header);
  encoder.section(Section::kStep, [&](ByteWriter& w) {
    w.put(step.optimizer_step);
    w.put(step.micro_batches);
    w.put(step.skipped_parameters);
    w.put(step.gradient_scale);
    w.put(step.dropped);
    w.put(step.number.unreduced);
    w.put(step.number.window);
    w.put(static_cast<std::uint32_t>(step.use));
  });
  encoder.section(Section::kTotal, [&](ByteWriter& w) {
    put_sums(w, step.total);
    w.put(step.elements);
  });
  encoder.section(Section::kGroups, [&](ByteWriter& w) {
    for (const Group& g : step.groups) {
      w.put(g.id);
      put_sums(w, g.sums);
    }
  });
  if (!step.sketch.empty()) {
    encoder.section(Section::kSketch,
                    [&](ByteWriter& w) { w.put_bytes(std::as_bytes(std::span(step.sketch))); });
  }
  encoder.section(Section::kMicroBatches, [&](ByteWriter& w) {
    for (const MicroBatch& m : step.micro) {
      w.put(m.loss);
      w.put(m.weight);
      w.put(m.tokens);
    }
  });
  put_fingerprints(encoder, step.fingerprints);
  if (step.reduced) {
    encoder.section(Section::kReduced, [&](ByteWriter& w) { put_sums(w, *step.reduced); });
  }
  put_layers(encoder, step.layers);
  put_states(encoder, step.states);
  put_data(encoder, step);
  put_gram(encoder, step);
  put_audit(encoder, step.audit);
  put_times(encoder, step.times);
  return std::move(encoder).finish();
}

Packet encode(const Note& note) {
  Encoder encoder(Kind::kNote, note.header);
  encoder.section(Section::kNote, [&](ByteWriter& w) {
    w.put(note.final ? kFinalNote : note.broken ? kBrokenNote : 0);
    w.put(note.sent);
    w.put(note.dropped);
    w.put_bytes(std::as_bytes(std::span(note.text)));
  });
  if (note.final)
    encoder.section(Section::kClock, [&](ByteWriter& w) { w.put(note.state.optimizer_steps); });
  if (!note.state.fingerprints.empty()) put_fingerprints(encoder, note.state.fingerprints);
  put_states(encoder, note.state.states);
  return std::move(encoder).finish();
}

Packet encode(const MomentOf& of) {
  const Moment& moment = of.moment;
  Encoder encoder(Kind::kMoment, of.header);
  encoder.section(Section::kMoment, [&](ByteWriter& w) {
    w.put(static_cast<std::uint32_t>(moment.kind));
    w.put(moment.step);
    w.put(moment.optimizer_steps);
    w.put(moment.learning_rate);
  });
  if (!moment.generators.empty()) put_fingerprints(encoder, moment.generators);
  if (moment.groups.empty()) return std::move(encoder).finish();
  encoder.section(Section::kMomentGroups, [&](ByteWriter& w) {
    for (const MomentGroup& group : moment.groups) {
      w.put(group.id);
      w.put(group.elements);
      w.put(group.squares);
      w.put(group.parameters);
      w.put(group.optimizer);
      w.put(group.shard);
      w.put(std::uint16_t{!group.sketch.empty()});
      w.put(group.formats);
      for (std::size_t i = 0; i < kLayerSketch; ++i) {
        w.put(i < group.sketch.size() ? group.sketch[i] : 0.0F);
      }
    }
  });
  return std::move(encoder).finish();
}

Packet encode(const Beat& of) {
  const Heartbeat& beat = of.beat;
  Encoder encoder(Kind::kBeat, of.header);
  encoder.section(Section::kBeat, [&](ByteWriter& w) {
    w.put(beat.events);
    w.put(beat.step);
    w.put(beat.micro_batch);
    w.put(beat.phase);
    w.put(std::uint8_t{beat.waiting});
    w.put(std::uint8_t{beat.lock_held});
    w.put(static_cast<std::uint8_t>(beat.thread));
    w.put(beat.layer);
    for (const double seconds :
         {beat.still, beat.longest, beat.processor, beat.period, beat.stall_seconds}) {
      w.put(seconds);
    }
  });
  encoder.section(Section::kPlaces, [&](ByteWriter& w) {
    for (const std::string* text :
         {&beat.host, &beat.collective, &beat.site, &beat.stack, &beat.recorder}) {
      put_text(w, *text);
    }
  });
  return std::move(encoder).finish();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt("shorter than a header");
  if (bytes.size() > kBytesMax) return corrupt("longer than 16 MiB");
  ByteReader reader(bytes);
  const auto magic = *reader.get<std::uint32_t>();
  const auto version = *reader.get<std::uint16_t>();
  const auto kind = *reader.get<Kind>();
  const auto length = *reader.get<std::uint32_t>();
  const auto sum = *reader.get<std::uint32_t>();
  if (magic != kMagic) return corrupt("wrong first four bytes");
  if (version != kVersion) {
    return fail(ErrorCode::kUnsupported, "packet version " + std::to_string(version) +
                                             " is not supported; update presum on rank 0");
  }
  if (length != bytes.size()) return corrupt("wrong length");
  if (sum != checksum(bytes)) return corrupt("wrong checksum");
  PRESUM_ASSIGN(const auto header, read_header(reader));
  switch (kind) {
    case Kind::kHello:
      return read_message<Hello>(header, reader);
    case Kind::kStep:
      return read_message<Step>(header, reader);
    case Kind::kNote:
      return read_message<Note>(header, reader);
    case Kind::kMoment:
      return read_message<MomentOf>(header, reader);
    case Kind::kBeat:
      return read_message<Beat>(header, reader);
  }
  return corrupt("unknown kind");
}

}  // namespace presum::packet

namespace presum {

void Packet::stamp(const Announcement& announced, const SendCounts& counts) {
  if (bytes.size() < packet::kFirstBody) return;
  ByteWriter writer(bytes);
  writer.patch(packet::kRunOffset, announced.run);
  writer.patch(packet::kSegmentOffset, announced.segment);
  const auto kind = static_cast<packet::Kind>(bytes[packet::kKindOffset]);
  if (kind == packet::Kind::kStep) {
    writer.patch(packet::kStepDroppedOffset, counts.dropped);
  } else if (kind == packet::Kind::kNote) {
    writer.patch(packet::kNoteSentOffset, counts.sent);
    writer.patch(packet::kNoteDroppedOffset, counts.dropped);
  }
  packet::seal(bytes);
}

}  // namespace presum
