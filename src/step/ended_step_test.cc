// SPDX-License-Identifier: Apache-2.0
#include "step/ended_step.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/hash.h"
#include "step/steps.h"

namespace presum::step {
namespace {

using Kind = StateHash::Kind;
using Values = std::vector<float>;
using Hashes = std::vector<std::uint64_t>;

Steps steps_of(const std::vector<Parameter>& parameters) {
  return std::move(*Steps::create({.identity = {.replicas = 2}, .sketch_size = 0}, parameters, {}));
}

packet::Step ended(Steps& steps, const StepEnd& how = {}) {
  return std::get<packet::Step>(*packet::decode(end_step(steps, how).bytes));
}

TEST(EndedStep, IsUnscaledAndPassesOnEverythingElse) {
  Steps steps = steps_of({{"w", 3, ""}});
  steps.begin_step(9);
  const Values own = {512, -1024, 2048};
  ASSERT_TRUE(steps.gradients().read(0, own.data(), 3, Dtype::kF32, false));
  const Values reduced = {256, 0, 0};
  ASSERT_TRUE(steps.gradients().read(0, reduced.data(), 3, Dtype::kF32, true));
  for (const std::vector<double>& share : {std::vector{1.0, 1.0, 1.0}, {9.0, -3.0, 1.0}}) {
    ASSERT_TRUE(steps.contents().set_gram(share, 2));
  }
  steps.loss(0.5, 2, 77);
  steps.loss(NAN, 1, 0);
  steps.contents().fingerprint(4, 0xF00D);
  const auto step = ended(
      steps,
      {.optimizer_step = 6, .micro_batches = 2, .skipped_parameters = 3, .gradient_scale = 256});
  EXPECT_EQ(step.header.step, 9U);
  EXPECT_EQ(step.gradient_scale, 256);
  EXPECT_EQ(step.total.sum_squares, 4 + 16 + 64);
  EXPECT_EQ(step.total.max_abs, 8);
  EXPECT_EQ(step.groups.at(0).id, name_hash("w"));
  EXPECT_EQ(step.groups.at(0).sums.sum_squares, 84);
  ASSERT_TRUE(step.reduced);
  EXPECT_EQ(step.reduced->sum_squares, 1);
  constexpr double kSquare = 256.0 * 256.0;
  EXPECT_EQ(step.gram, (std::vector{9 / kSquare, -3 / kSquare, 1 / kSquare})) << "the last report";
  ASSERT_EQ(step.micro.size(), 2U);
  EXPECT_EQ(step.micro[0].loss, 0.5);
  EXPECT_EQ(step.micro[0].weight, 2);
  EXPECT_EQ(step.micro[0].tokens, 77U);
  EXPECT_TRUE(std::isnan(step.micro[1].loss));
  ASSERT_EQ(step.fingerprints.size(), 3U) << "and the share of zeros, and the scale";
  const auto* scale =
      find_value(step.fingerprints, static_cast<std::uint32_t>(FingerprintKind::kLossScale));
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(std::bit_cast<double>(*scale), 256);
  EXPECT_EQ(step.fingerprints[0].value, 0xF00DU);
  EXPECT_EQ(step.optimizer_step, 6U);
  EXPECT_EQ(step.micro_batches, 2U);
  EXPECT_EQ(step.skipped_parameters, 3U);

  steps.begin_step(10);
  const auto next = ended(steps);
  EXPECT_TRUE(next.micro.empty());
  EXPECT_TRUE(next.fingerprints.empty());
  EXPECT_TRUE(next.gram.empty());
}

TEST(Contents, AGramMatrixOfAnotherSizeIsRefused) {
  Contents contents;
  for (const auto& [workers, size] :
       {std::pair{3U, 0U}, {3U, 5U}, {3U, 7U}, {3U, 9U}, {65U, 2145U}, {65U, 0U}, {65'536U, 0U}}) {
    const Status status = contents.set_gram(std::vector<double>(size, 1.0), workers);
    ASSERT_FALSE(status) << workers << ": " << size;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(contents.gram.empty());
  }
  EXPECT_TRUE(contents.set_gram(std::vector<double>(2080, 1.0), 64));
}

TEST(Contents, AFingerprintThatIsReportedTwiceCountsAsItsLast) {
  Contents contents;
  contents.fingerprint(1, 10);
  contents.fingerprint(2000, 20);
  contents.fingerprint(1, 11);
  const auto& told = contents.report.fingerprints;
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].value, 11U);
  EXPECT_EQ(told[1].kind, 2000U);
}

// ---- states: parameters and buffers before the step

class States : public ::testing::Test {
 protected:
  Status told(Kind kind, std::uint32_t index, const Values& values) {
    return contents_.state(layout_, kind, index, values.data(), values.size(), 4, 0);
  }
  const std::vector<StateHash>& found() const { return contents_.report.states; }
  static std::uint64_t hash(std::string_view name, const Values& values) {
    const auto sums = observe::gradient_pass(values.data(), values.size(), Dtype::kF32, {});
    return mix64(sums.fingerprint ^ name_hash(name));
  }

  Layout layout_ = *Layout::of({{"layers.0.w", 3, ""}, {"layers.0.b", 3, ""}, {"head.w", 3, ""}},
                               {{"module.layers.0.running_mean", 2, ""}, {"frozen.w", 2, ""}});
  Contents contents_;
};

TEST_F(States, AreSummedByGroupAndKind) {
  ASSERT_TRUE(told(Kind::kParameters, 0, {1, 2, 3}));
  ASSERT_TRUE(told(Kind::kParameters, 1, {4, 5, 6}));
  ASSERT_TRUE(told(Kind::kParameters, 2, {}));
  ASSERT_TRUE(told(Kind::kBuffers, 0, {1, 2}));
  ASSERT_TRUE(told(Kind::kBuffers, 1, {3, 4}));
  ASSERT_EQ(found().size(), 4U) << "one a group and kind";
  EXPECT_EQ(found()[0].group, name_hash("layers.0"));
  EXPECT_EQ(found()[0].kind, Kind::kParameters);
  EXPECT_EQ(found()[0].value, hash("layers.0.w", {1, 2, 3}) + hash("layers.0.b", {4, 5, 6}));
  EXPECT_EQ(found()[1].group, name_hash("head.w"));
  EXPECT_EQ(found()[1].value, mix64(name_hash("head.w"))) << "of nothing";
  EXPECT_EQ(found()[2].group, name_hash("layers.0"));
  EXPECT_EQ(found()[2].kind, Kind::kBuffers);
  EXPECT_EQ(found()[2].value, hash("layers.0.running_mean", {1, 2}));
  EXPECT_EQ(found()[3].group, name_hash("frozen.w"));
}

TEST_F(States, OfAnOptimizerShardsAndWhatIsWatchedStandApart) {
  ASSERT_TRUE(contents_.state_sum(layout_, Kind::kParameters, 0, 5, 0));
  ASSERT_TRUE(contents_.state_sum(layout_, Kind::kOptimizer, 0, 5, 0));
  ASSERT_TRUE(contents_.state_sum(layout_, Kind::kFrozen, 1, 5, 0));
  ASSERT_TRUE(contents_.state_sum(layout_, Kind::kParameters, 0, 5, 3));
  contents_.watched("ema", 0, 7);
  contents_.watched("ema", 1, 7);
  contents_.watched("head", 0, 7, Kind::kOutside);
  contents_.watched("ema", 0, 7, Kind::kWatched, 2);
  ASSERT_EQ(found().size(), 7U);
  EXPECT_EQ(found()[0].value, found()[1].value);
  EXPECT_EQ(found()[1].kind, Kind::kOptimizer);
  EXPECT_EQ(found()[2].kind, Kind::kFrozen);
  EXPECT_EQ(found()[3].shard, 3U);
  EXPECT_EQ(found()[4].group, name_hash("ema"));
  EXPECT_EQ(found()[4].kind, Kind::kWatched);
  EXPECT_EQ(found()[5].kind, Kind::kOutside);
  EXPECT_EQ(found()[6].shard, 2U);
}

TEST_F(States, RefuseWhatIsNotKnown) {
  const Values buffer = {1, 2, 3};
  const auto of = [&](Kind kind, std::uint32_t index, std::uint32_t width,
                      std::uint32_t shard = 0) {
    return contents_.state(layout_, kind, index, buffer.data(), 3, width, shard);
  };
  for (const Status& status :
       {of(Kind::kParameters, 3, 4), of(Kind::kBuffers, 2, 4), of(Kind{0}, 0, 4),
        of(Kind::kWatched, 0, 4), of(Kind::kOutside, 0, 4),
        of(Kind::kParameters, 0, 4, StateHash::kShardsMax + 1), of(Kind::kParameters, 0, 1),
        of(Kind::kParameters, 0, 0), of(Kind::kParameters, 0, 16),
        contents_.state(layout_, Kind::kParameters, 0, nullptr, 3, 4, 0)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(found().empty());
}

TEST_F(States, OfAnyWidthAreHashesOfTheirBits) {
  for (const auto& [width, dtype] :
       {std::pair{2U, Dtype::kBF16}, {4U, Dtype::kF32}, {8U, Dtype::kF64}}) {
    // Arbitrary bit patterns, including NaN and Inf.
    std::mt19937_64 random(width);
    std::vector<std::byte> bits(width * std::size_t{1500});
    for (auto& b : bits) b = static_cast<std::byte>(random());
    const auto read = [&, bytes = width] {
      contents_.begin_states();
      EXPECT_TRUE(contents_.state(layout_, Kind::kParameters, 0, bits.data(), 1500, bytes, 0));
      return found().at(0).value;
    };
    const std::uint64_t value = read();
    contents_.begin_states();
    const std::uint64_t sum = observe::gradient_pass(bits.data(), 1500, dtype, {}).fingerprint;
    ASSERT_TRUE(contents_.state_sum(layout_, Kind::kParameters, 0, sum, 0));
    EXPECT_EQ(value, found().at(0).value);
    bits[700] ^= std::byte{1};
    EXPECT_NE(read(), value) << "one bit is enough";
  }
}

TEST(StatesOfASteps, TravelWithTheNextStepOrTheGoodbye) {
  Steps steps = steps_of({{"w", 3, ""}});
  const auto at_goodbye = [&] {
    const Packet goodbye = steps.goodbye(9, {{.kind = 3, .value = 4}}, "killed");
    const auto note = std::get<packet::Note>(*packet::decode(goodbye.bytes));
    EXPECT_TRUE(note.final);
    EXPECT_EQ(note.text, "killed");
    EXPECT_EQ(note.state.fingerprints.size(), 1U);
    return note.state;
  };
  ASSERT_TRUE(steps.contents().state_sum(steps.layout(), Kind::kParameters, 0, 5, 0));
  EXPECT_EQ(at_goodbye().states.size(), 1U);
  EXPECT_EQ(at_goodbye().optimizer_steps, 9U);
  steps.begin_step(0);
  EXPECT_EQ(ended(steps).states.size(), 1U);
  EXPECT_TRUE(at_goodbye().states.empty()) << "those went with the step";
  steps.begin_step(1);
  EXPECT_TRUE(ended(steps).states.empty());
}

// ---- samples, indices

Samples samples_of(const Hashes& hashes) {
  Steps steps = steps_of({});
  steps.begin_step(0);
  steps.contents().samples(hashes);
  return ended(steps).samples;
}

Hashes random_hashes(std::size_t count) {
  std::mt19937_64 random(count);
  Hashes out(count);
  for (auto& hash : out) hash = random();
  return out;
}

TEST(EndedSamples, MoreThan256AreThinnedOutByHash) {
  for (const std::size_t count : {0U, 1U, 256U, 257U, 10'000U, 300'000U}) {
    const auto hashes = random_hashes(count);
    const auto samples = samples_of(hashes);
    EXPECT_EQ(samples.rows, count) << "all rows count";
    EXPECT_LE(samples.hashes.size(), 256U);
    EXPECT_EQ(samples.thinned > 0, count > 256);
    Hashes divisible;
    const std::uint64_t last = (1ULL << samples.thinned) / 2;
    std::size_t before = 0;  // how many samples one level less of thinning leaves
    for (const std::uint64_t hash : hashes) {
      if (hash % (1ULL << samples.thinned) == 0) divisible.push_back(hash);
      before += last > 0 && hash % last == 0;
    }
    EXPECT_EQ(samples.hashes, divisible) << "the same rows on every rank, in their order";
    EXPECT_TRUE(count <= 256 || before > 256) << "no more than needed";
  }
}

TEST(EndedSamples, RowsThatAreAllEqualAreNotCutByChance) {
  const auto gone = samples_of(Hashes(1000, 5));
  EXPECT_EQ(gone.rows, 1000U);
  EXPECT_TRUE(gone.hashes.empty());
  const auto zeros = samples_of(Hashes(1000, 0));
  EXPECT_EQ(zeros.rows, 1000U);
  EXPECT_EQ(zeros.thinned, packet::kThinnedMax);
}

TEST(EndedSamples, OfMicroBatchesAddUp) {
  Steps steps = steps_of({});
  steps.begin_step(0);
  steps.contents().samples(Hashes{1, 2});
  steps.contents().samples(Hashes{3});
  steps.contents().indices(Hashes{30, 20});
  steps.contents().indices({});
  steps.contents().indices(Hashes{10});
  const auto step = ended(steps);
  EXPECT_EQ(step.samples.rows, 3U);
  EXPECT_EQ(step.samples.hashes, (Hashes{1, 2, 3}));
  EXPECT_EQ(step.indices, (Hashes{30, 20, 10})) << "in their order";
}

TEST(Contents, TheFirst4096IndicesAreKept) {
  Contents contents;
  Hashes want;
  for (std::uint64_t i = 0; i < 6000; i += 1500) {
    const Hashes part(1500, i);
    want.insert(want.end(), part.begin(), part.end());
    contents.indices(part);
  }
  want.resize(4096);
  EXPECT_EQ(contents.report.indices, want);
}

}  // namespace
}  // namespace presum::step
