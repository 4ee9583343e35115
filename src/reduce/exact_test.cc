// SPDX-License-Identifier: Apache-2.0
#include "reduce/exact.h"

#include <gtest/gtest.h>

#include <string>

#include "reduce/testing.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace presum::reduce {
namespace {

Buffer exact_of(const LeafSet& set, std::uint32_t divisor, std::size_t offset = 0) {
  Buffer out(set.dtype, set.count(), offset);
  EXPECT_TRUE(exact(set.pointers(), set.dtype, set.count(), divisor, out.data()));
  return out;
}

Buffer oracle_of(const LeafSet& set, std::uint32_t divisor) {
  Buffer wanted(set.dtype, set.count());
  for (std::size_t i = 0; i < set.count(); ++i) {
    wanted.set_bits(i, exact_oracle(set.element(i), set.dtype, divisor));
  }
  return wanted;
}

void expect_equal(const Buffer& got, const Buffer& wanted, const LeafSet& set) {
  if (got == wanted) return;
  for (std::size_t i = 0; i < got.count(); ++i) {
    ASSERT_EQ(got.bits(i), wanted.bits(i)) << name_of(set.dtype) << ", " << set.buffers.size()
                                           << " leaves, element " << i << " of " << got.count();
  }
}

// Compares every target and the scalar reference with the oracle.
void expect_exact(const LeafSet& set, std::uint32_t divisor) {
  SCOPED_TRACE("divisor " + std::to_string(divisor));
  const Buffer wanted = oracle_of(set, divisor);
  Buffer reference(set.dtype, set.count());
  exact_reference(set.pointers(), set.dtype, 0, set.count(), divisor, reference.data());
  expect_equal(reference, wanted, set);
  base::on_every_target([&] { expect_equal(exact_of(set, divisor), wanted, set); });
}

LeafSet single(Dtype dtype, const std::vector<std::uint64_t>& leaves, std::size_t count = 1) {
  LeafSet set{dtype, {}};
  for (const std::uint64_t bits : leaves) {
    set.buffers.emplace_back(dtype, count);
    for (std::size_t i = 0; i < count; ++i) set.buffers.back().set_bits(i, bits);
  }
  return set;
}

std::uint64_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

class ExactTest : public testing::TestWithParam<Dtype> {};

TEST_P(ExactTest, SumsAreTheNearestOnesForEveryKindOfElement) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const std::size_t leaves : {1, 2, 3, 7, 8, 9, 12, 33, 64}) {
      expect_exact(random_leaves(kind, GetParam(), leaves, 35), 1);
    }
  }
}

TEST_P(ExactTest, MeansAreTheNearestOnesForEveryDivisor) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    const LeafSet set = random_leaves(kind, GetParam(), 12, 33);
    for (const std::uint32_t divisor :
         {2U, 3U, 7U, 8U, 12U, 31U, 4096U, 32749U, 1U << 18, (1U << 18) + 1, kDivisorMax}) {
      expect_exact(set, divisor);
    }
  }
}

TEST_P(ExactTest, NearTiesOfMeansRoundOnce) {
  const int mantissa_bits = layout_of(GetParam()).mantissa_bits;
  Random random(1);
  LeafSet set{GetParam(), {}};
  for (std::size_t leaf = 0; leaf < 3; ++leaf) set.buffers.emplace_back(GetParam(), 512);
  for (std::size_t i = 0; i < 512; ++i) {
    // Three leaves that are equal except for a few of their last bits.
    const std::uint64_t bits =
        bits_near(1.5, GetParam()) + random() % (1ULL << (mantissa_bits - 1));
    for (Buffer& leaf : set.buffers) leaf.set_bits(i, bits + random() % 3);
  }
  for (const std::uint32_t divisor : {3U, 5U, 6U}) expect_exact(set, divisor);
}

TEST_P(ExactTest, MeansAmongDenormalsRoundAtTheLastBitOfAll) {
  for (const std::uint32_t divisor : {2U, 3U, 4U, 8U, 24U, 1024U}) {
    expect_exact(random_leaves(Kind::kDenormals, GetParam(), 8, 200), divisor);
    expect_exact(random_leaves(Kind::kSomeDenormals, GetParam(), 3, 200), divisor);
  }
  const std::uint64_t normal = std::uint64_t{1} << layout_of(GetParam()).mantissa_bits;
  for (const std::uint64_t bits :
       {std::uint64_t{1}, std::uint64_t{3}, normal - 1, normal, normal + 1}) {
    for (const std::uint32_t divisor : {2U, 3U, 4U}) {
      expect_exact(single(GetParam(), {bits, bits | sign_bit(GetParam()), bits}, 20), divisor);
    }
  }
}

TEST_P(ExactTest, EveryLengthAroundTheWidthsOfVectorsAndTiles) {
  for (std::size_t count = 0; count <= 70; ++count) {
    expect_exact(random_leaves(Kind::kGaussian, GetParam(), 3, count), 3);
  }
  for (const std::size_t count : {1023, 1024, 1025, 2065}) {
    expect_exact(random_leaves(Kind::kGaussian, GetParam(), 2, count), 1);
  }
}

// One kind after the other, `count` elements of each.
LeafSet mosaic(const std::vector<Kind>& kinds, Dtype dtype, std::size_t leaves, std::size_t count) {
  LeafSet set{dtype, {}};
  for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
    set.buffers.emplace_back(dtype, kinds.size() * count);
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const LeafSet part = random_leaves(kinds[k], dtype, leaves, count);
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
      for (std::size_t i = 0; i < count; ++i) {
        // Makes some of the wide parts different.
        const std::size_t from = k % 3 == 0 ? i : (i + 7 * k) % count;
        set.buffers[leaf].set_bits(k * count + i, part.buffers[leaf].bits(from));
      }
    }
  }
  return set;
}

// Kernels assume that a tile is like the previous one, and detect if it is not.
TEST_P(ExactTest, TilesAreExactWhateverTheOnesBeforeHeld) {
  std::vector<Kind> kinds;
  for (const Kind kind : kKinds) kinds.insert(kinds.end(), {Kind::kWide, Kind::kWide, kind, kind});
  for (const std::size_t leaves : {2, 5, 8}) {
    const LeafSet set = mosaic(kinds, GetParam(), leaves, 128);
    expect_exact(set, 1);
    expect_exact(set, 3);
  }
}

TEST_P(ExactTest, PartsOfATileDifferInKind) {
  const std::vector<Kind> kinds = {Kind::kGaussian, Kind::kTies,     Kind::kGaussian,
                                   Kind::kZeros,    Kind::kGaussian, Kind::kCancelling,
                                   Kind::kHuge,     Kind::kGaussian, Kind::kSomeDenormals,
                                   Kind::kWide,     Kind::kGaussian, Kind::kNotFinite};
  for (const std::size_t leaves : {9, 23}) {
    expect_exact(mosaic(kinds, GetParam(), leaves, 256), 1);
  }
}

TEST_P(ExactTest, BuffersMayBeMisaligned) {
  for (const std::size_t offset : {1, 2, 3, 5, 13, 63}) {
    const LeafSet set = random_leaves(Kind::kSomeDenormals, GetParam(), 5, 75, offset);
    const Buffer wanted = oracle_of(set, 5);
    base::on_every_target([&] { expect_equal(exact_of(set, 5, offset), wanted, set); });
  }
}

TEST_P(ExactTest, TheResultMayReplaceALeaf) {
  for (const Kind kind : {Kind::kGaussian, Kind::kWide, Kind::kAnyBits, Kind::kNotFinite}) {
    base::on_every_target([&] {
      LeafSet set = random_leaves(kind, GetParam(), 9, 100);
      const Buffer wanted = exact_of(set, 9);
      ASSERT_TRUE(exact(set.pointers(), GetParam(), 100, 9, set.buffers[4].data()));
      expect_equal(set.buffers[4], wanted, set);
    });
  }
}

TEST_P(ExactTest, NothingButTheResultIsWritten) {
  base::on_every_target([&] {
    const LeafSet set = random_leaves(Kind::kAnyBits, GetParam(), 5, 40);
    Buffer out(GetParam(), 60);
    for (std::size_t i = 0; i < 60; ++i) out.set_bits(i, 77);
    ASSERT_TRUE(exact(set.pointers(), GetParam(), 37, 1, out.data()));
    for (std::size_t i = 37; i < 60; ++i) EXPECT_EQ(out.bits(i), 77U);
  });
}

TEST_P(ExactTest, ManyLeavesAreSummedExactly) {
  for (const Kind kind : {Kind::kGaussian, Kind::kWide, Kind::kSomeDenormals, Kind::kAnyBits}) {
    expect_exact(random_leaves(kind, GetParam(), 1024, 17), 1024);
    expect_exact(random_leaves(kind, GetParam(), 1024, 16), 1);
  }
}

TEST_P(ExactTest, AsManyLeavesAsAreAllowedAreSummedExactly) {
  for (const Kind kind : {Kind::kGaussian, Kind::kHuge, Kind::kAnyBits}) {
    const LeafSet few = random_leaves(kind, GetParam(), 129, 17);
    std::vector<const void*> leaves;
    std::vector<std::vector<std::uint64_t>> elements(17);
    for (std::size_t leaf = 0; leaf < kLeavesMax; ++leaf) {
      const Buffer& buffer = few.buffers[leaf * leaf % 129];
      leaves.push_back(buffer.data());
      for (std::size_t i = 0; i < 17; ++i) elements[i].push_back(buffer.bits(i));
    }
    base::on_every_target([&] {
      Buffer out(GetParam(), 17);
      ASSERT_TRUE(exact(leaves, GetParam(), 17, kLeavesMax, out.data()));
      for (std::size_t i : {0, 5, 16}) {
        EXPECT_EQ(out.bits(i), exact_oracle(elements[i], GetParam(), kLeavesMax));
      }
    });
  }
}

TEST_P(ExactTest, AnExactZeroIsPositiveAndATinyMeanKeepsItsSign) {
  const std::uint64_t sign = sign_bit(GetParam());
  expect_exact(single(GetParam(), {sign, sign}, 20), 1);
  EXPECT_EQ(exact_of(single(GetParam(), {sign, sign}, 20), 1).bits(3), 0U);
  EXPECT_EQ(exact_of(single(GetParam(), {5, 5 | sign}, 20), 1).bits(3), 0U);
  EXPECT_EQ(exact_of(single(GetParam(), {1 | sign}, 20), 3).bits(3), sign);
}

TEST_P(ExactTest, SumsBeyondTheLargestNumberAreInfinities) {
  const std::uint64_t largest = infinity_bits(GetParam()) - 1, sign = sign_bit(GetParam());
  EXPECT_EQ(exact_of(single(GetParam(), {largest, largest}, 20), 1).bits(0),
            infinity_bits(GetParam()));
  EXPECT_EQ(exact_of(single(GetParam(), {largest | sign, largest | sign}, 20), 1).bits(0),
            infinity_bits(GetParam()) | sign);
  EXPECT_EQ(exact_of(single(GetParam(), {largest, largest}, 20), 2).bits(0), largest);
  EXPECT_EQ(exact_of(single(GetParam(), {largest, largest, largest | sign}, 20), 1).bits(0),
            largest);
}

TEST_P(ExactTest, NanWinsThenInfinities) {
  const std::uint64_t infinity = infinity_bits(GetParam()), sign = sign_bit(GetParam());
  const std::uint64_t one = bits_near(1, GetParam()), nan = quiet_nan_bits(GetParam());
  for (const std::size_t count : {1, 40}) {
    const auto sum = [count](const std::vector<std::uint64_t>& leaves) {
      return exact_of(single(GetParam(), leaves, count), 1).bits(0);
    };
    EXPECT_EQ(sum({one, infinity, 1}), infinity);
    EXPECT_EQ(sum({one, infinity | sign, infinity - 1}), infinity | sign);
    EXPECT_EQ(sum({infinity, infinity | sign}), nan);
    EXPECT_EQ(sum({one, (infinity + 1) | sign}), nan);
    EXPECT_EQ(sum({nan | sign, infinity}), nan);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactTest, testing::ValuesIn(kDtypes),
                         [](const auto& param) { return name_of(param.param); });

TEST(ExactCounterexampleTest, WhereTwoDoublesAreNotEnoughTheOrderStillDoesNotMatter) {
  const std::uint64_t large = float_bits(0x1.a67c22p63F), small = float_bits(-0x1.6bd34ap-55F);
  const std::uint64_t minus = large | sign_bit(Dtype::kF32);
  std::vector<std::uint64_t> leaves = {large, minus, small, large, minus, large, minus, 1, small};
  std::sort(leaves.begin(), leaves.end());
  do {
    const LeafSet set = single(Dtype::kF32, leaves, 20);
    ASSERT_EQ(exact_of(set, 1).bits(2), float_bits(-0x1.6bd34ap-54F));
  } while (std::next_permutation(leaves.begin(), leaves.end()));
}

// Leaves whose exponents are as far apart as the limits of the kernel's tiers, and by one more.
TEST(ExactTierTest, SpreadsAroundTheLimitsAreExact) {
  Random random(9);
  for (const std::size_t leaves : {2, 3, 8, 9, 64}) {
    for (int spread = 5; spread <= 110; ++spread) {
      LeafSet set{Dtype::kF32, {}};
      for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
        set.buffers.emplace_back(Dtype::kF32, 16);
        for (std::size_t i = 0; i < 16; ++i) {
          const std::uint32_t exponent =
              leaf == 0 ? 120U + static_cast<unsigned>(spread) : (leaf % 4 == 3 ? 200U : 120U);
          set.buffers.back().set_bits(
              i, (random() & 0x807FFFFFU) | 1U |
                     (std::min(exponent, 120U + static_cast<unsigned>(spread)) << 23));
        }
      }
      expect_exact(set, 1);
    }
  }
}

// A sum next to the middle between two floats, decided by its lowest bit only: 2^twos leaves of 1,
// half an ulp of their sum, and two small leaves that differ in that bit.
std::vector<std::uint64_t> near_tie(int twos, int spread) {
  std::vector<std::uint64_t> leaves(std::size_t{1} << twos, float_bits(1));
  const float small = std::ldexp(1.0F, -spread);
  leaves.push_back(float_bits(std::ldexp(1.0F, twos - 24)));
  leaves.push_back(float_bits(small + std::ldexp(small, -23)));
  leaves.push_back(float_bits(-small));
  return leaves;
}

TEST(ExactTierTest, OneDoubleIsNotTrustedBeyondItsLastBit) {
  for (int twos = 2; twos <= 6; ++twos) {
    for (int spread = 20; spread <= 100; ++spread) {
      const std::size_t count =
          spread % 10 == 0 ? 300 : 20;  // more than one tile, or a partial one
      const LeafSet set = single(Dtype::kF32, near_tie(twos, spread), count);
      expect_exact(set, 1);
      EXPECT_EQ(exact_of(set, 1).bits(count - 1), float_bits(std::ldexp(1.0F, twos)) + 1);
    }
  }
}

// The same with intermediate leaves, which a pair of doubles collects in the second one until
// others cancel them: so many and so large that the second one is completely full.
TEST(ExactTierTest, TwoDoublesAreNotTrustedBeyondTheirLastBit) {
  for (const int bits : {4, 6, 8}) {
    for (int spread = 40; spread <= 90; ++spread) {
      const float small = std::ldexp(1.0F, -spread);
      const float middle = std::ldexp(2 - 0x1p-23F, bits - 52);
      std::vector<std::uint64_t> leaves = {float_bits(1), float_bits(0x1p-24F)};
      const std::size_t pairs = (std::size_t{1} << (bits - 1)) - 2;
      leaves.insert(leaves.end(), pairs, float_bits(middle));
      leaves.push_back(float_bits(small + std::ldexp(small, -23)));
      leaves.push_back(float_bits(-small));
      leaves.insert(leaves.end(), pairs, float_bits(-middle));
      const LeafSet set = single(Dtype::kF32, leaves, 20);
      expect_exact(set, 1);
      EXPECT_EQ(exact_of(set, 1).bits(0), float_bits(1) + 1) << spread;
    }
  }
}

#if defined(__SSE2__)
TEST(ExactEnvironmentTest, FlushModesOfTheCallerChangeNothingAndAreRestored) {
  const LeafSet set = random_leaves(Kind::kDenormals, Dtype::kF32, 8, 50);
  const Buffer wanted = oracle_of(set, 3);
  const unsigned before = _mm_getcsr();
  const unsigned flushing = before | 0x8040 | _MM_ROUND_UP;
  base::on_every_target([&] {
    _mm_setcsr(flushing);
    const Buffer got = exact_of(set, 3);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after, flushing);
    expect_equal(got, wanted, set);
  });
}
#endif

TEST(ExactArgumentsTest, WrongArgumentsAreErrorsThatSayWhatToDo) {
  const float x = 1;
  float out = 7;
  const void* leaf = &x;
  const std::vector<const void*> many(kLeavesMax + 1, leaf);
  const auto code = [&](Leaves leaves, Dtype dtype, std::uint32_t divisor) {
    const Status status = exact(leaves, dtype, 1, divisor, &out);
    return status ? "" : status.error().message;
  };
  EXPECT_EQ(code({}, Dtype::kF32, 1), "reduce: there is no leaf; give at least one buffer");
  EXPECT_EQ(code(many, Dtype::kF32, 1),
            "reduce: 32768 leaves are more than the 32767 that are possible");
  EXPECT_EQ(code({&leaf, 1}, Dtype::kF32, 0), "reduce: divisor 0 is not from 1 to 2147483647");
  EXPECT_EQ(code({&leaf, 1}, Dtype::kF32, kDivisorMax + 1),
            "reduce: divisor 2147483648 is not from 1 to 2147483647");
  EXPECT_EQ(code({&leaf, 1}, static_cast<Dtype>(4), 1), "reduce: dtype 4 is unknown");
  EXPECT_EQ(out, 7);
}

}  // namespace
}  // namespace presum::reduce
