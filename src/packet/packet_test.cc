// SPDX-License-Identifier: Apache-2.0
#include "packet/packet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace presum::packet {
namespace {

Step sample_step() {
  Step s;
  s.header = {.run = 7,
              .segment = 2,
              .identity = {.module = 1, .replica = 3, .shard = 0, .world_rank = 11, .replicas = 8},
              .step = 42};
  s.optimizer_step = 21;
  s.micro_batches = 2;
  s.gradient_scale = 1024;
  s.dropped = 5;
  s.total = {2.5, 1.5, 0, 0xABCDEF};
  s.elements = 1000;
  s.groups = {{1, {1.0, 1.0, 0, 1}}, {2, {1.5, 1.5, 1, 2}}};
  s.sketch.assign(64, 0.25F);
  s.micro = {{1.25, 1, 100}, {NAN, 2, 7}};
  s.fingerprints = {{3, 99}};
  s.reduced = GradientSums{2.0, 0.5, 0, 77};
  return s;
}

TEST(Packet, StepSurvivesTheRoundTrip) {
  const Step s = sample_step();
  const auto decoded = decode(encode(s).bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  const auto& d = std::get<Step>(*decoded);
  EXPECT_EQ(d.header.step, 42U);
  EXPECT_EQ(d.header.identity.world_rank, 11U);
  EXPECT_EQ(d.total.sum_squares, 2.5);
  EXPECT_EQ(d.elements, 1000U);
  ASSERT_EQ(d.groups.size(), 2U);
  EXPECT_EQ(d.groups[1].sums.nonfinite, 1U);
  EXPECT_EQ(d.sketch, s.sketch);
  ASSERT_EQ(d.micro.size(), 2U);
  EXPECT_TRUE(std::isnan(d.micro[1].loss));
  EXPECT_EQ(d.micro[1].tokens, 7U);
  EXPECT_EQ(d.fingerprints.at(0).value, 99U);
  ASSERT_TRUE(d.reduced);
  EXPECT_EQ(d.reduced->fingerprint, 77U);
  EXPECT_EQ(encode(d).bytes, encode(s).bytes);
}

TEST(Packet, HelloAndNoteSurviveTheRoundTrip) {
  Hello h;
  h.host = "node-7";
  h.facts = {{"torch", "2.13.0"}, {"", ""}};
  h.groups = {{5, 600, "model.layers.3"}};
  const auto hello = decode(encode(h).bytes);
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<Hello>(*hello).facts, h.facts);
  EXPECT_EQ(std::get<Hello>(*hello).groups.at(0).name, "model.layers.3");

  Note n;
  n.final = true;
  n.sent = 3;
  n.text = "bye";
  const auto note = decode(encode(n).bytes);
  ASSERT_TRUE(note);
  EXPECT_EQ(std::get<Note>(*note).text, "bye");
  EXPECT_TRUE(std::get<Note>(*note).final);
}

TEST(Packet, StampChangesRunAndSegmentOnly) {
  Packet p = encode(sample_step());
  p.stamp(123, 9);
  const auto decoded = decode(p.bytes);
  ASSERT_TRUE(decoded);
  const auto& d = std::get<Step>(*decoded);
  EXPECT_EQ(d.header.run, 123U);
  EXPECT_EQ(d.header.segment, 9U);
  EXPECT_EQ(d.header.step, 42U);
}

TEST(Packet, DefaultSizeIsWithinItsBound) {
  Step s = sample_step();
  s.sketch.assign(4096, 0);
  s.groups.resize(100);
  EXPECT_LE(encode(s).bytes.size(), 16 * 1024 + 64 * 100 + 2048);
}

TEST(Packet, UnknownSectionsAreSkipped) {
  Packet p = encode(sample_step());
  const std::uint8_t extra[] = {200, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3};
  for (const auto b : extra) p.bytes.push_back(std::byte{b});
  p.stamp(7, 2);
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
  bytes[4] = std::byte{2};
  const auto decoded = decode(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kUnsupported);
}

TEST(Packet, ReplicaOutsideTheWorldIsAnError) {
  Step s = sample_step();
  s.header.identity.replica = 8;
  EXPECT_FALSE(decode(encode(s).bytes));
  s.header.identity.replicas = 0;
  EXPECT_FALSE(decode(encode(s).bytes));
}

TEST(Packet, SketchMustBeAPowerOfTwoWithinBounds) {
  for (const std::size_t size : {1U, 63U, 65U, 100U, 131072U}) {
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

// Mutations with a renewed checksum reach the section parsers; random bytes reach the header.
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
    p.stamp(1, 1);
    const auto decoded = decode(p.bytes);
    if (decoded) {
      EXPECT_LE(std::get<Step>(*decoded).groups.size(), p.bytes.size());
    }
  }
  for (int round = 0; round < 2'000; ++round) {
    std::vector<std::byte> bytes(random() % 400);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    EXPECT_FALSE(decode(bytes));
  }
}

}  // namespace
}  // namespace presum::packet
