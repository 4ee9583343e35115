// SPDX-License-Identifier: Apache-2.0
#include "packet/packet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace presum::packet {
namespace {

Step sample_step() {
  Step s;
  s.header = {
      .run = 7,
      .segment = 2,
      .identity = {.model_index = 1, .replica = 3, .dp_group = 0, .rank = 11, .replicas = 8},
      .step = 42};
  s.optimizer_step = 21;
  s.micro_batches = 2;
  s.gradient_scale = 1024;
  s.dropped = 5;
  s.total = {2.5, 1.5, 0, 0xABCDEF};
  s.elements = 1000;
  s.groups = {{1, {1.0, 1.0, 0, 1}}, {2, {1.5, 1.5, 1, 2}}};
  s.sketch.assign(64, 0.25F);
  s.micro = {{1.25, 1, 100, 90, 0.5}, {NAN, 2, 7}};
  s.fingerprints = {{3, 99}};
  s.reduced = GradientSums{2.0, 0.5, 0, 77};
  s.states = {{1, StateHash::Kind::kParameters, 0xF00}, {1, StateHash::Kind::kBuffers, 0xBA5}};
  s.samples = {.rows = 3, .thinned = 2, .hashes = {0xFFFFFFFFFFFFFFFCULL, 8}};
  s.indices = {7, 0xFFFFFFFFFFFFFFFFULL, 7};
  s.audit = {.elements = 1'000'000,
             .differing = 431'000,
             .wrong = 3,
             .relative_l2 = 0x1p-24,
             .error_max = 0x1p-22,
             .gradient = Accumulation::kF32,
             .accumulation = Accumulation::kBF16,
             .order = SumOrder::kRingDown,
             .division = Division::kBeforeMultiply,
             .repeat = Repeat::kDifferent,
             .ulps = UlpPercentiles{1, 2, 30, 4096}};
  s.layers = {{.id = 5,
               .elements = 9,
               .part = 4,
               .fingerprint = 6,
               .squares = 2.5,
               .shard = 3,
               .kept = true}};
  s.layers.front().own[7] = 0.5F;
  s.layers.front().reduced[255] = -0.25F;
  s.gram.resize(36);
  for (std::size_t i = 0; i < s.gram.size(); ++i) s.gram[i] = static_cast<double>(i) / 4;
  s.gram[35] = INFINITY;
  return s;
}

void append(Packet& packet, std::uint16_t section, const std::vector<std::uint8_t>& body) {
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int b = 0; b < bytes; ++b) packet.bytes.push_back(static_cast<std::byte>(value >> 8 * b));
  };
  put(section, 4);
  put(body.size(), 4);
  for (const std::uint8_t b : body) put(b, 1);
  packet.stamp({.run = 1, .segment = 1});
}

std::uint32_t checksum_of(const Packet& packet) {
  std::uint32_t out = 0;
  std::memcpy(&out, packet.bytes.data() + 12, sizeof out);
  return out;
}

// Encoder and decoder share one list of fields, so a round trip cannot detect a change in their
// order. If a number here changes, raise kVersion.
template <class M>
void expect_known(const M& message, std::uint32_t checksum) {
  const Packet packet = encode(message);
  EXPECT_EQ(checksum_of(packet), checksum);
  const auto decoded = decode(packet.bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(encode(std::get<M>(*decoded)).bytes, packet.bytes);
}

TEST(Packet, TheBytesOfThisVersionAreKnownAndSurviveTheRoundTrip) {
  const Header header = sample_step().header;
  expect_known(sample_step(), 1854054075U);
  Hello hello{.header = header};
  hello.facts.host = "node-7";
  hello.facts.facts = {{"torch", "2.13.0"}};
  hello.facts.groups = {{5, 600, "model.layers.3"}};
  expect_known(hello, 3405450204U);
  Note note{.header = header, .final = true, .text = "hm"};
  note.state.optimizer_steps = 40;
  note.state.states = {{1, StateHash::Kind::kParameters, 2}};
  note.state.fingerprints = {{27, 3}};
  expect_known(note, 373840240U);
  SnapshotOf snapshot{.header = header};
  snapshot.snapshot = {.kind = TrainingSnapshot::Kind::kSaved,
                       .step = 30,
                       .optimizer_steps = 29,
                       .learning_rate = 0.5,
                       .generators = {{1, 11}}};
  snapshot.snapshot.groups = {
      {.id = 5, .elements = 4, .squares = 2.5, .parameters = 6, .optimizer = 8, .shard = 3}};
  snapshot.snapshot.groups[0].formats = 5;
  snapshot.snapshot.groups.push_back({.id = 6, .sketch = std::vector<float>(kLayerSketch, 0.5F)});
  expect_known(snapshot, 3745105636U);
  Beat beat{.header = header};
  beat.beat = {.events = 1,
               .step = 2,
               .micro_batch = 3,
               .phase = Phase::kBackward,
               .waiting = true,
               .thread = 'S',
               .layer = 4,
               .still = 5,
               .longest = 6,
               .processor = 0.5,
               .period = 2,
               .stall_seconds = 60,
               .host = "node"};
  expect_known(beat, 3583029282U);
}

TEST(Packet, AStepIsReadAsItWas) {
  const auto decoded = decode(encode(sample_step()).bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  const auto& d = std::get<Step>(*decoded);
  EXPECT_EQ(d.header.identity.rank, 11U);
  EXPECT_EQ(d.elements, 1000U);
  EXPECT_EQ(d.groups.at(1).sums.nonfinite, 1U);
  EXPECT_TRUE(std::isnan(d.micro.at(1).loss));
  EXPECT_EQ(d.micro.at(1).tokens, 7U);
  EXPECT_EQ(d.states.at(1).kind, StateHash::Kind::kBuffers);
  EXPECT_EQ(d.samples.hashes, sample_step().samples.hashes);
  EXPECT_EQ(d.layers.at(0).reduced, sample_step().layers[0].reduced);
  EXPECT_EQ(d.audit->ulps->max, 4096U);
}

// A run log stores these lists.
TEST(Packet, ListsAreReadAsTheyWereAndWhatIsNoneIsEmpty) {
  std::vector<SnapshotGroup> groups = {{.id = 5}, {.id = 7}};
  groups[1].sketch.assign(kLayerSketch, 0.25F);
  auto bytes = List<SnapshotGroup>::encode(groups);
  const auto got = List<SnapshotGroup>::decode(bytes);
  ASSERT_EQ(got.size(), 2U);
  EXPECT_TRUE(got[0].sketch.empty());
  EXPECT_EQ(got[1].sketch, groups[1].sketch);
  bytes.pop_back();
  EXPECT_TRUE(List<SnapshotGroup>::decode(bytes).empty());
  EXPECT_TRUE(List<StateHash>::decode(std::vector<std::byte>(20)).empty()) << "of no kind";
}

TEST(Packet, AnAuditWithoutFiniteElementsHasNoDistances) {
  Step s = sample_step();
  s.audit->ulps.reset();
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded);
  EXPECT_FALSE(std::get<Step>(*decoded).audit->ulps);
}

TEST(Packet, CodesOfALaterVersionAreUnknown) {
  Step s = sample_step();
  s.audit->gradient = s.audit->accumulation = static_cast<Accumulation>(200);
  s.audit->order = static_cast<SumOrder>(200);
  s.audit->division = static_cast<Division>(200);
  s.audit->repeat = static_cast<Repeat>(200);
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded);
  const auto& audit = *std::get<Step>(*decoded).audit;
  EXPECT_EQ(audit.gradient, Accumulation::kUnknown);
  EXPECT_EQ(audit.accumulation, Accumulation::kUnknown);
  EXPECT_EQ(audit.order, SumOrder::kUnknown);
  EXPECT_EQ(audit.division, Division::kUnknown);
  EXPECT_EQ(audit.repeat, Repeat::kNotTried);
}

TEST(Packet, OnlyAFinalNoteHasAClock) {
  const auto read = [](bool final) {
    const Note note{
        .final = final, .broken = !final, .text = "why", .state = {.optimizer_steps = 3}};
    return std::get<Note>(*decode(encode(note).bytes));
  };
  EXPECT_EQ(read(true).state.optimizer_steps, 3U);
  EXPECT_TRUE(read(true).final);
  EXPECT_EQ(read(false).state.optimizer_steps, 0U);
  EXPECT_TRUE(read(false).broken);
  EXPECT_EQ(read(false).text, "why");
}

TEST(Packet, WhatIsAbsentIsEmpty) {
  Step s = sample_step();
  s.audit.reset();
  s.states.clear();
  s.samples = {};
  s.indices.clear();
  s.gram.clear();
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded);
  const auto& d = std::get<Step>(*decoded);
  EXPECT_TRUE(d.states.empty());
  EXPECT_EQ(d.samples.rows, 0U);
  EXPECT_TRUE(d.samples.hashes.empty());
  EXPECT_TRUE(d.indices.empty());
  EXPECT_TRUE(d.gram.empty());
}

TEST(Packet, AGramSectionIsOfItsWorkers) {
  for (const std::uint32_t workers : {1U, 2U, 64U, 65U, kReplicasMax}) {
    Step s = sample_step();
    s.header.identity.replica = 0;
    s.header.identity.replicas = workers;
    const std::size_t right = std::size_t{workers} * (workers + 1) / 2;
    for (const std::size_t size : {right - 1, right, right + 1}) {
      if (size == 0 || size > 3000) continue;
      s.gram.assign(size, 1.0);
      EXPECT_EQ(static_cast<bool>(decode(encode(s).bytes)), size == right && workers <= 64)
          << workers << ": " << size;
    }
    s.gram.clear();
    Packet empty = encode(s);
    EXPECT_TRUE(decode(empty.bytes));
    append(empty, 12, {});
    EXPECT_FALSE(decode(empty.bytes)) << workers;
  }
}

TEST(Packet, RowsAreKeptWhereNoHashIsLeft) {
  Step s = sample_step();
  s.samples = {.rows = 1'000'000'000'000, .thinned = kThinnedMax, .hashes = {}};
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<Step>(*decoded).samples.rows, 1'000'000'000'000U);
}

TEST(Packet, AStampChangesRunSegmentAndCountOnly) {
  Step s = sample_step();
  Packet p = encode(s);
  p.stamp({.run = 123, .segment = 9}, 6);
  s.header.run = 123;
  s.header.segment = 9;
  s.dropped = 6;
  EXPECT_EQ(p.bytes, encode(s).bytes);
  const Hello hello{.header = s.header, .facts = {.host = "here"}};
  p = encode(hello);
  p.stamp({.run = 123, .segment = 9}, 6);
  EXPECT_EQ(p.bytes, encode(hello).bytes) << "it has no count";
}

TEST(Packet, UnknownSectionsAreSkipped) {
  Packet p = encode(sample_step());
  const std::uint8_t extra[] = {200, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3};
  for (const auto b : extra) p.bytes.push_back(std::byte{b});
  p.stamp({.run = 7, .segment = 2});
  const auto decoded = decode(p.bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(std::get<Step>(*decoded).sketch.size(), 64U);
}

TEST(Packet, EveryTruncationIsAnError) {
  const auto bytes = encode(sample_step()).bytes;
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(decode(std::span(bytes).first(n))) << n;
  }
}

TEST(Packet, EveryFlippedByteIsAnError) {
  auto bytes = encode(sample_step()).bytes;
  for (auto& b : bytes) {
    b ^= std::byte{0x40};
    EXPECT_FALSE(decode(bytes));
    b ^= std::byte{0x40};
  }
}

TEST(Packet, NewerVersionSaysSo) {
  auto bytes = encode(sample_step()).bytes;
  bytes[4] = std::byte{kVersion + 1};
  const auto decoded = decode(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kUnsupported);
}

TEST(Packet, ReplicaOutsideTheWorldIsAnError) {
  Step s = sample_step();
  s.header.identity.replica = 8;
  EXPECT_FALSE(decode(encode(s).bytes));
  for (const std::uint32_t replicas : {0U, kReplicasMax + 1}) {
    s.header.identity.replicas = replicas;
    EXPECT_FALSE(decode(encode(s).bytes));
  }
}

TEST(Packet, SketchMustBeAPowerOfTwoWithinBounds) {
  for (const std::size_t size : {1U, 32U, 63U, 65U, 100U, 131072U}) {
    Step s = sample_step();
    s.sketch.assign(size, 1.0F);
    EXPECT_FALSE(decode(encode(s).bytes)) << size;
  }
}

TEST(Packet, EqualGroupIdsAndImpossibleWeightsAreErrors) {
  Step s = sample_step();
  s.groups[1].id = s.groups[0].id;
  EXPECT_FALSE(decode(encode(s).bytes));
  for (const double weight : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    s = sample_step();
    s.micro[0].weight = weight;
    EXPECT_FALSE(decode(encode(s).bytes)) << weight;
  }
}

// ---- sections that a rank cannot have sent

using Damage = std::pair<const char*, std::function<void(Step&)>>;

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all = {
      {"more hashes than rows", [](Step& s) { s.samples.rows = 1; }},
      {"thinned 64 times",
       [](Step& s) {
         s.samples = {2, 64, {}};
       }},
      {"a hash that was to be thinned out",
       [](Step& s) {
         s.samples = {2, 3, {16, 4}};
       }},
      {"an odd hash",
       [](Step& s) {
         s.samples = {1, 63, {1}};
       }},
      {"too many hashes",
       [](Step& s) {
         s.samples = {1'000'000, 0, {}};
         s.samples.hashes.resize(kGroupsMax + 1);
       }},
      {"too many indices", [](Step& s) { s.indices.resize(kGroupsMax + 1); }},
      {"a state of kind 0", [](Step& s) { s.states[0].kind = StateHash::Kind{0}; }},
      {"a state of kind 7", [](Step& s) { s.states[1].kind = StateHash::Kind{7}; }},
      {"a state of a huge kind", [](Step& s) { s.states[1].kind = StateHash::Kind{0xFFFFFFFF}; }},
      {"two states of one kind and group", [](Step& s) { s.states[1].kind = s.states[0].kind; }},
      {"too many states",
       [](Step& s) {
         for (std::uint64_t g = 2; g < 2 * kGroupsMax + 2; ++g)
           s.states.push_back({g, StateHash::Kind::kBuffers, g});
       }},
      {"two fingerprints of one kind",
       [](Step& s) { s.fingerprints.push_back(s.fingerprints[0]); }},
      {"a Gram matrix of fewer ranks", [](Step& s) { s.gram.resize(28); }},
      {"a Gram matrix of more ranks", [](Step& s) { s.gram.resize(45); }},
      {"a Gram matrix of too many ranks",
       [](Step& s) {
         s.header.identity.replicas = 65;
         s.gram.resize(2145);
       }},
  };
  return all;
}

TEST(Packet, ValuesThatCannotBeAreErrors) {
  for (const auto& [name, damage] : damages()) {
    Step s = sample_step();
    damage(s);
    const auto decoded = decode(encode(s).bytes);
    ASSERT_FALSE(decoded) << name;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt) << name;
  }
}

TEST(Packet, StatesOfANoteAreCheckedToo) {
  Note n;
  n.state.states = {{1, StateHash::Kind{7}, 2}};
  EXPECT_FALSE(decode(encode(n).bytes));
}

TEST(Packet, AsManyAsAllowedAreTaken) {
  Step s = sample_step();
  s.samples = {.rows = kGroupsMax, .thinned = 0, .hashes = {}};
  s.samples.hashes.assign(kGroupsMax, 1);
  s.indices.assign(kGroupsMax, 1);
  s.states.clear();
  for (std::uint64_t g = 0; g < kGroupsMax; ++g) {
    s.states.push_back({g, StateHash::Kind::kParameters, g});
    s.states.push_back({g, StateHash::Kind::kBuffers, g});
  }
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(std::get<Step>(*decoded).samples.hashes.size(), kGroupsMax);
  EXPECT_EQ(std::get<Step>(*decoded).states.size(), 2 * kGroupsMax);
}

TEST(Packet, BodiesThatEndTooEarlyOrDoNotComeOutEvenAreErrors) {
  const std::vector<std::pair<std::uint16_t, std::vector<std::size_t>>> lengths = {
      {1, {31}},        {2, {39}},        {3, {39, 41}},        {6, {11, 12 * (kGroupsMax + 1)}},
      {7, {31}},        {8, {1, 19, 21}}, {9, {0, 11, 13, 19}}, {10, {7, 9}},
      {12, {7, 9, 12}}, {13, {44, 61}}};
  for (const auto& [section, all] : lengths) {
    for (const std::size_t length : all) {
      Packet p = encode(Step{});
      append(p, section, std::vector<std::uint8_t>(length, 0));
      EXPECT_FALSE(decode(p.bytes)) << section << ": " << length;
    }
  }
  Packet clock = encode(Note{});
  append(clock, 20, std::vector<std::uint8_t>(7, 0));
  EXPECT_FALSE(decode(clock.bytes));
}

TEST(Packet, RecordsOfALaterVersionMayBeLongerAndComeAgain) {
  for (const auto& [section, length] : {std::pair{1, 64}, {2, 48}, {7, 40}, {13, 78}, {16, 4}}) {
    Packet p = encode(sample_step());
    append(p, static_cast<std::uint16_t>(section),
           std::vector<std::uint8_t>(static_cast<std::size_t>(length), 0xFF));
    EXPECT_TRUE(decode(p.bytes)) << section;
  }
}

TEST(Packet, WhatComesAfterTheLastSectionIsAnError) {
  const Packet good = encode(sample_step());
  for (const std::vector<std::uint8_t>& rest :
       {std::vector<std::uint8_t>{1}, {200, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3}}) {
    Packet p = good;
    for (const std::uint8_t b : rest) p.bytes.push_back(std::byte{b});
    p.stamp({.run = 1, .segment = 1});
    EXPECT_FALSE(decode(p.bytes));
  }
}

TEST(Packet, AnUnknownKindOrMoreThan16MiBIsAnError) {
  Packet p = encode(Hello{});
  p.bytes[6] = std::byte{6};
  p.stamp({.run = 1, .segment = 1});
  EXPECT_FALSE(decode(p.bytes));
  p = encode(Hello{});
  append(p, 200, std::vector<std::uint8_t>(kBytesMax));
  EXPECT_FALSE(decode(p.bytes));
}

TEST(Packet, ALongerClockIsARecordOfALaterVersion) {
  Packet p = encode(Note{});
  append(p, 20, {5, 0, 0, 0, 0, 0, 0, 0, 9, 9});
  const auto decoded = decode(p.bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<Note>(*decoded).state.optimizer_steps, 5U);
}

// Mutations with an updated checksum reach the section parsers; random bytes reach the header.
TEST(Packet, HostileBytesNeverCrash) {
  std::mt19937_64 random(1);
  const Packet good = encode(sample_step());
  for (int round = 0; round < 20'000; ++round) {
    Packet p = good;
    const std::size_t flips = 1 + random() % 8;
    for (std::size_t i = 0; i < flips; ++i) {
      p.bytes[kHeaderBytes + random() % (p.bytes.size() - kHeaderBytes)] =
          static_cast<std::byte>(random());
    }
    p.stamp({.run = 1, .segment = 1});
    const auto decoded = decode(p.bytes);
    if (!decoded) continue;
    const Step& d = std::get<Step>(*decoded);
    EXPECT_LE(d.groups.size(), p.bytes.size());
    EXPECT_LE(d.samples.hashes.size(), d.samples.rows);
    EXPECT_LE(d.samples.thinned, kThinnedMax);
    EXPECT_TRUE(d.gram.empty() || d.gram.size() == gram_size(d.header.identity.replicas));
    for (const StateHash& state : d.states) EXPECT_LE(state.kind, StateHash::Kind::kOutside);
  }
  for (int round = 0; round < 2'000; ++round) {
    std::vector<std::byte> bytes(random() % 400);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(decode(bytes));
  }
}

TEST(Packet, ASnapshotOfNoKnownKindOrWithAGroupTwiceIsDamaged) {
  SnapshotOf sent{.header = sample_step().header};
  sent.snapshot.kind = static_cast<TrainingSnapshot::Kind>(4);
  EXPECT_FALSE(decode(encode(sent).bytes));
  sent.snapshot.kind = TrainingSnapshot::Kind::kBegun;
  EXPECT_TRUE(decode(encode(sent).bytes));
  sent.snapshot.groups = {{.id = 5}, {.id = 5}};
  EXPECT_FALSE(decode(encode(sent).bytes));
}

}  // namespace
}  // namespace presum::packet
