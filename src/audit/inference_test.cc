// SPDX-License-Identifier: Apache-2.0
#include "audit/inference.h"

#include <gtest/gtest.h>

#include "audit/testing.h"

namespace presum::audit {
namespace {

using Turn = std::vector<std::uint32_t>;

Turn turn_from(std::uint32_t workers, std::uint32_t start, int direction) {
  Turn turn(workers);
  for (std::uint32_t k = 0; k < workers; ++k) {
    turn[k] = (start + (direction > 0 ? k : workers - k)) % workers;
  }
  return turn;
}

// Values by rank, then by element.
std::vector<std::vector<double>> values_of(const Buffers& buffers, double scale = 1,
                                           double shift = 0) {
  std::vector<std::vector<double>> values(buffers.workers());
  for (std::size_t w = 0; w < values.size(); ++w) {
    for (std::size_t i = 0; i < buffers.count(); ++i) {
      values[w].push_back(shift + scale * buffers.at(w, i));
    }
  }
  return values;
}

Inferred inferred_of(const Buffers& buffers, const std::vector<double>& result,
                     std::uint32_t divisor = 1) {
  const auto packed = buffers.packed(result);
  const auto leaves = buffers.pointers();
  return compare(leaves, buffers.dtype(), buffers.count(), divisor, packed.data())->inferred;
}

// The pieces of a ring of 8 over 20,000 elements, with irregular boundaries.
std::uint32_t piece_start(std::size_t element) {
  return static_cast<std::uint32_t>(element / 2711);
}

struct Case {
  Dtype dtype;
  Dtype format;
  Accumulation accumulation;
};

class InferenceFormats : public testing::TestWithParam<Case> {
 protected:
  Buffers buffers{8, GetParam().dtype, 20'000};
};

TEST_P(InferenceFormats, ARingIsFoundWhereverItsPiecesMeet) {
  const auto result = summed(buffers, GetParam().format,
                             [](std::size_t i) { return turn_from(8, piece_start(i), 1); });
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kRing);
  EXPECT_EQ(found.accumulation, GetParam().accumulation);
  EXPECT_EQ(found.division, Division::kNone);
  EXPECT_EQ(found.wrong, 0U);
  ASSERT_EQ(found.pieces.size(), 8U);
  EXPECT_EQ(found.pieces[3].start, 3U);
  EXPECT_NEAR(static_cast<double>(found.pieces[3].first), 3 * 2711, 20);
}

TEST_P(InferenceFormats, ARingThatRunsDownwardsIsToldFromOneUpwards) {
  const auto result = summed(buffers, GetParam().format,
                             [](std::size_t i) { return turn_from(8, piece_start(i), -1); });
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kRingDown);
  EXPECT_EQ(found.accumulation, GetParam().accumulation);
}

TEST_P(InferenceFormats, WorkersInTurnAreFound) {
  const auto result =
      summed(buffers, GetParam().format, [](std::size_t) { return turn_from(8, 0, 1); });
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kSequential);
  EXPECT_EQ(found.accumulation, GetParam().accumulation);
}

TEST_P(InferenceFormats, AnUnknownOrderStillTellsTheFormat) {
  // Another order for every element, which no hypothesis has.
  const auto result =
      summed(buffers, GetParam().format, [](std::size_t i) { return arrival(8, 1000 + i); });
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kUnknown);
  EXPECT_EQ(found.accumulation, GetParam().accumulation);
  EXPECT_EQ(found.wrong, 0U);
}

TEST_P(InferenceFormats, ElementsThatAreNoSumsAreCountedAndDoNotHideTheRest) {
  auto result = summed(buffers, GetParam().format,
                       [](std::size_t i) { return turn_from(8, piece_start(i), 1); });
  std::fill(result.end() - 2000, result.end(), 0.0);
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kRing);
  EXPECT_EQ(found.accumulation, GetParam().accumulation);
  EXPECT_GT(found.wrong, 1850U);  // a sum near zero may be lost in rounding
  EXPECT_LE(found.wrong, 2000U);
}

INSTANTIATE_TEST_SUITE_P(All, InferenceFormats,
                         testing::Values(Case{Dtype::kF32, Dtype::kF32, Accumulation::kF32},
                                         Case{Dtype::kF32, Dtype::kBF16, Accumulation::kBF16},
                                         Case{Dtype::kF32, Dtype::kF16, Accumulation::kF16},
                                         Case{Dtype::kBF16, Dtype::kBF16, Accumulation::kBF16},
                                         Case{Dtype::kF16, Dtype::kF16, Accumulation::kF16}));

// W and the division of the mean: 3 is not a power of two.
TEST(Inference, TheWayOfTheMeanIsFound) {
  const Buffers buffers(3, Dtype::kF32, 5000);
  const auto turn = [](std::size_t) { return Turn{0, 1, 2}; };
  auto after = summed(buffers, Dtype::kF32, turn);
  for (double& x : after) x = static_cast<float>(x) / 3.F;
  EXPECT_EQ(inferred_of(buffers, after, 3).division, Division::kAfterDivide);
  const float third = static_cast<float>(1.0 / 3);
  std::vector<double> before;
  for (std::size_t i = 0; i < buffers.count(); ++i) {
    float sum = static_cast<float>(buffers.at(0, i)) * third;
    for (std::size_t w = 1; w < 3; ++w) sum += static_cast<float>(buffers.at(w, i)) * third;
    before.push_back(sum);
  }
  const Inferred found = inferred_of(buffers, before, 3);
  EXPECT_EQ(found.division, Division::kBeforeMultiply);
  EXPECT_EQ(found.order, SumOrder::kSequential);
  EXPECT_EQ(found.wrong, 0U);
}

TEST(Inference, TheExactMeanIsCalledExact) {
  const Buffers buffers(8, Dtype::kF32, 5000);
  std::vector<double> result;
  for (std::size_t i = 0; i < buffers.count(); ++i) {
    long double sum = 0;  // 64 bits hold eight floats of similar size
    for (std::size_t w = 0; w < 8; ++w) sum += buffers.at(w, i);
    result.push_back(static_cast<float>(sum / 8));
  }
  const Inferred found = inferred_of(buffers, result, 8);
  EXPECT_EQ(found.order, SumOrder::kExact);
  EXPECT_EQ(found.accumulation, Accumulation::kF32);
}

TEST(Inference, SixteenBitSumsInFp32AreNotMistakenForSixteenBitAccumulation) {
  const Buffers buffers(8, Dtype::kBF16, 20'000);
  auto result = summed(buffers, Dtype::kF32, [](std::size_t i) { return arrival(8, 1000 + i); });
  for (double& x : result) x = rounded(static_cast<float>(x), Dtype::kBF16);
  EXPECT_EQ(inferred_of(buffers, result).accumulation, Accumulation::kF32);
}

TEST(Inference, WithTwoWorkersNeitherOrderNorFormatCanBeTold) {
  const Buffers buffers(2, Dtype::kBF16, 5000);
  const auto result = summed(buffers, Dtype::kBF16, [](std::size_t) { return Turn{1, 0}; });
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kAny);
  EXPECT_EQ(found.accumulation, Accumulation::kUnknown);
  EXPECT_EQ(found.wrong, 0U);
}

TEST(Inference, ZerosTellNothing) {
  const Buffers buffers(4, Dtype::kF32, 0);
  EXPECT_EQ(inferred_of(buffers, {}).order, SumOrder::kUnknown);
  const std::vector<float> zeros(1000);
  const std::vector<const void*> leaves(4, zeros.data());
  const auto found = compare(leaves, Dtype::kF32, 1000, 4, zeros.data())->inferred;
  EXPECT_EQ(found.order, SumOrder::kAny);
  EXPECT_EQ(found.accumulation, Accumulation::kUnknown);
  EXPECT_EQ(found.wrong, 0U);
}

TEST(Inference, NumbersOfAnotherOriginAreNoSumInAnyFormat) {
  for (const std::uint32_t workers : {2U, 4U, 8U, 64U}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      for (const std::uint32_t divisor : {1U, workers}) {
        for (const double scale : {1.0, 1e-8}) {
          const Buffers unit(workers, Dtype::kF64, 6000);
          if (dtype == Dtype::kF16 && scale != 1) continue;  // every value underflows
          const Buffers buffers(dtype, values_of(unit, scale));
          const Buffers other(1, Dtype::kF64, 6000, Distribution::kGaussian, 99);
          const Inferred found = inferred_of(buffers, values_of(other, scale).front(), divisor);
          EXPECT_TRUE(found.unrelated) << workers << ' ' << divisor << ' ' << scale;
          EXPECT_EQ(found.accumulation, Accumulation::kUnknown);
          EXPECT_EQ(found.order, SumOrder::kUnknown);
          EXPECT_EQ(found.copy_of, std::nullopt);
          EXPECT_GT(found.wrong, 3000U);
        }
      }
    }
  }
}

TEST(Inference, AResultOfNaNsOrZerosIsNoSum) {
  const Buffers buffers(8, Dtype::kF32, 5000);
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 0.0}) {
    const Inferred found = inferred_of(buffers, std::vector<double>(5000, value));
    EXPECT_TRUE(found.unrelated);
    EXPECT_EQ(found.accumulation, Accumulation::kUnknown);
    EXPECT_GT(found.wrong, 4500U);
  }
}

TEST(Inference, AWorkersOwnValuesAreNamed) {
  // The ranks agree within the bounds of bf16; only the bits distinguish the formats.
  const Buffers noise(4, Dtype::kF64, 5000);
  const auto values = values_of(noise, 1, 1);
  const Buffers buffers(Dtype::kF32, values);
  const Inferred found = inferred_of(buffers, values[2], 4);
  EXPECT_TRUE(found.unrelated);
  EXPECT_EQ(found.copy_of, 2U);
  EXPECT_EQ(found.accumulation, Accumulation::kUnknown);
  EXPECT_GT(found.wrong, 4900U);
}

// Damaged elements are near the sum by chance, and must not count as evidence for few bits.
TEST(Inference, DamageDoesNotInventANarrowFormat) {
  for (const std::uint32_t workers : {8U, 64U}) {
    const Buffers buffers(workers, Dtype::kF32, 20'000);
    auto result =
        summed(buffers, Dtype::kF32, [&](std::size_t i) { return arrival(workers, 1000 + i); });
    const Buffers other(1, Dtype::kF32, 20'000, Distribution::kGaussian, 99);
    for (std::size_t i = 0; i < 6000; ++i) result[i] = other.at(0, i);
    const Inferred found = inferred_of(buffers, result);
    EXPECT_EQ(found.accumulation, Accumulation::kF32) << workers;
    EXPECT_FALSE(found.unrelated);
  }
}

// Values of `workers` ranks in memory, of which only `kept`, evenly spaced, are nonzero.
Buffers sparse(std::uint32_t workers, Dtype dtype, std::size_t count, std::size_t kept) {
  const Buffers dense(workers, dtype, kept);
  std::vector<std::vector<double>> values(workers, std::vector<double>(count));
  for (std::uint32_t w = 0; w < workers; ++w) {
    for (std::size_t i = 0; i < kept; ++i) values[w][i * (count / kept)] = dense.at(w, i);
  }
  return {dtype, values};
}

TEST(Inference, SoundSixteenBitSumsInShortRingsAreNotWrong) {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (std::size_t count = 40; count <= 150; ++count) {
      const Buffers buffers(4, dtype, count, Distribution::kGaussian, count);
      const auto piece = [&](std::size_t i) { return static_cast<std::uint32_t>(i * 4 / count); };
      const auto result =
          summed(buffers, dtype, [&](std::size_t i) { return turn_from(4, piece(i), -1); });
      const Inferred found = inferred_of(buffers, result);
      EXPECT_EQ(found.wrong, 0U) << count;
      EXPECT_NE(found.accumulation, Accumulation::kF32) << count;
    }
  }
}

TEST(Inference, SixteenBitSumsInOneUnknownOrderAreNotWrong) {
  for (const Turn& turn : {Turn{2, 4, 0, 3, 1}, Turn{0, 3, 5, 1, 7, 2, 6, 4}}) {
    const Buffers buffers(static_cast<std::uint32_t>(turn.size()), Dtype::kBF16, 20'000);
    const auto result = summed(buffers, Dtype::kBF16, [&](std::size_t) { return turn; });
    const Inferred found = inferred_of(buffers, result);
    EXPECT_EQ(found.wrong, 0U);
    EXPECT_EQ(found.accumulation, Accumulation::kBF16);
  }
}

TEST(Inference, ZerosDoNotVoteForAFormat) {
  const Turn turn = {0, 3, 5, 1, 7, 2, 6, 4};
  for (const std::size_t kept : {10U, 60U, 200U}) {
    const Buffers buffers = sparse(8, Dtype::kBF16, 50'000, kept);
    const auto result = summed(buffers, Dtype::kBF16, [&](std::size_t) { return turn; });
    const Inferred found = inferred_of(buffers, result);
    EXPECT_EQ(found.wrong, 0U) << kept;
    EXPECT_EQ(found.accumulation, kept < 24 ? Accumulation::kUnknown : Accumulation::kBF16) << kept;
    EXPECT_EQ(found.order, SumOrder::kUnknown) << kept;
  }
}

TEST(Inference, AFewDamagedElementsOfAFp32SumAreWrongAndItsFormatStays) {
  const Buffers buffers(8, Dtype::kF32, 20'000);
  auto result = summed(buffers, Dtype::kF32, [](std::size_t) { return turn_from(8, 0, 1); });
  // Too much for rounding in fp32, and little enough for 16 bits.
  for (std::size_t i = 0; i < result.size(); i += 100) result[i] += 1e-4;
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.accumulation, Accumulation::kF32);
  EXPECT_EQ(found.order, SumOrder::kSequential);
  EXPECT_EQ(found.wrong, 200U);
}

// Values of `dtype`, cast to fp16, divided there, and added in orders that no hypothesis has.
std::uint64_t wrong_where_fp16_underflows(std::uint32_t workers, Dtype dtype, double scale) {
  const Buffers unit(workers, Dtype::kF64, 5000);
  const Buffers buffers(dtype, values_of(unit, scale));
  std::vector<double> result;
  for (std::size_t i = 0; i < 5000; ++i) {
    float sum = 0;
    for (const std::uint32_t w : arrival(workers, i)) {
      const float x = rounded(static_cast<float>(buffers.at(w, i)), Dtype::kF16);
      sum = rounded(sum + rounded(x / static_cast<float>(workers), Dtype::kF16), Dtype::kF16);
    }
    result.push_back(sum);
  }
  return inferred_of(buffers, result, workers).wrong;
}

TEST(Inference, UnderflowOfEveryValueIsNotWrong) {
  for (const std::uint32_t workers : {4U, 6U, 8U}) {
    for (const double scale : {1.0, 1e-2, 1e-3, 1e-4, 3e-5, 1e-5}) {
      for (const Dtype dtype : {Dtype::kF16, Dtype::kF32}) {
        EXPECT_EQ(wrong_where_fp16_underflows(workers, dtype, scale), 0U)
            << workers << ' ' << scale;
      }
    }
  }
}

TEST(Inference, ALostNaNIsWrong) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Buffers unit(4, Dtype::kF32, 5000);
  auto values = values_of(unit);
  values[1][7] = values[2][9] = kNaN;
  values[3][8] = kInf;
  const Buffers buffers(Dtype::kF32, values);
  auto result = summed(buffers, Dtype::kF32, [](std::size_t) { return Turn{0, 1, 2, 3}; });
  EXPECT_EQ(inferred_of(buffers, result).wrong, 0U);
  result[7] = result[8] = 0;
  EXPECT_EQ(inferred_of(buffers, result).wrong, 2U);
}

TEST(Sample, IsAllOfFewElementsAndRunsThatAreSpreadOverMany) {
  EXPECT_EQ(Sample(65'536, 8).from(100).first, 100U);
  EXPECT_EQ(Sample(65'536, 8).from(100).end, 65'536U);
  for (const std::uint64_t elements :
       {65'537ULL, 100'000ULL, 12'345'678ULL, 1'000'000'000'000ULL}) {
    for (const std::size_t workers : {2U, 8U, 64U, 1024U}) {
      const Sample sample(elements, workers);
      std::uint64_t runs = 0, chosen = 0, before = 0;
      for (auto run = sample.from(0); run.first < run.end; run = sample.from(run.end)) {
        EXPECT_GE(run.first, before);
        EXPECT_LE(run.first - before, elements / 256 + 1);
        before = run.end;
        chosen += run.end - run.first;
        ++runs;
      }
      EXPECT_EQ(runs, 256U);
      EXPECT_LE(chosen, 65'536U);
      EXPECT_LE(elements - before, elements / 256 + 1);
    }
  }
}

TEST(Inference, OfALongResultASampleIsTriedAndEveryElementJudged) {
  const Buffers buffers(3, Dtype::kF32, 400'000);
  auto result = summed(buffers, Dtype::kF32,
                       [](std::size_t i) { return turn_from(3, i < 330'000 ? 0 : 1, 1); });
  result[1000] += 1;  // outside the sampled runs
  const Inferred found = inferred_of(buffers, result);
  EXPECT_EQ(found.order, SumOrder::kRing);
  EXPECT_EQ(found.accumulation, Accumulation::kF32);
  EXPECT_EQ(found.wrong, 1U);
  EXPECT_EQ(found.hypotheses.front().examined, 65'536U);
  ASSERT_EQ(found.pieces.size(), 2U);
  EXPECT_NEAR(static_cast<double>(found.pieces[1].first), 330'000, 400'000 / 256);
}

Evidence evidence_of(const Beyond& beyond) {
  const Excess excess{beyond, beyond.back().second};
  return {.elements = 100'000,
          .examined = 100'000,
          .telling = 100'000,
          .all = excess,
          .sample = excess};
}

TEST(Conclude, WhatWasDroppedIsNotTheBest) {
  const Hypothesis dropped{{}, Division::kNone, SumOrder::kTree, 65'536, 65'536};
  const Hypothesis whole{{}, Division::kNone, SumOrder::kSequential, 100'000, 99'990};
  const Beyond none = {{Accumulation::kF32, 0}};
  const Inferred found = conclude({dropped, whole}, evidence_of(none), 4, Dtype::kF32);
  EXPECT_EQ(found.order, SumOrder::kSequential);
  EXPECT_EQ(found.hypotheses.front().order, SumOrder::kSequential);
}

TEST(Conclude, WhereAWiderFormatIsTakenWithinTheSlackOnlyWhatNoFormatExplainsIsWrong) {
  const Hypothesis poor{{}, Division::kNone, SumOrder::kTree, 100'000, 10};
  const Beyond beyond = {{Accumulation::kF32, 83}, {Accumulation::kBF16, 3}};
  const Inferred found = conclude({poor}, evidence_of(beyond), 4, Dtype::kF32);
  EXPECT_EQ(found.accumulation, Accumulation::kF32);
  EXPECT_EQ(found.wrong, 3U);
}

TEST(Conclude, WhatTheHypothesisGivesIsNotWrong) {
  const Hypothesis best{{}, Division::kNone, SumOrder::kTree, 100'000, 99'999};
  const Beyond beyond = {{Accumulation::kF32, 50}};
  const Inferred found = conclude({best}, evidence_of(beyond), 4, Dtype::kF32);
  EXPECT_EQ(found.order, SumOrder::kTree);
  EXPECT_EQ(found.wrong, 1U);
}

TEST(RingTrack, CountsPiecesFromTwentyFourElementsOnThatTellSomething) {
  RingTrack track(4);
  const std::vector<std::uint64_t> two(100, 0b0100);
  const std::vector<std::uint64_t> all(50, 0b1111);
  const std::vector<std::uint64_t> few(10, 0b0001);
  const std::vector<std::uint64_t> none(5, 0);
  for (const auto& part : {two, all, few, none, two}) track.add(part);
  EXPECT_EQ(track.reproduced(), 250U);
  const auto pieces = track.pieces();
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].first, 0U);
  EXPECT_EQ(pieces[0].end, 150U);
  EXPECT_EQ(pieces[0].start, 2U);
  EXPECT_EQ(pieces[1].first, 165U);
  EXPECT_EQ(pieces[1].end, 265U);
}

}  // namespace
}  // namespace presum::audit
