// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "base/simd.h"
#include "reduce/testing.h"

namespace presum::reduce {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};

Status encode(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
              std::size_t total, std::int32_t* out) {
  return encode32(leaves, dtype, count, exponents, total, out);
}
Status encode(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
              std::size_t total, std::int64_t* out) {
  return encode64(leaves, dtype, count, exponents, total, out);
}
Status decode(const std::int32_t* sums, const std::uint8_t* exponents, std::size_t count,
              std::size_t total, std::uint32_t divisor, Dtype dtype, void* out) {
  return decode32(sums, exponents, count, total, divisor, dtype, out);
}
Status decode(const std::int64_t* sums, const std::uint8_t* exponents, std::size_t count,
              std::size_t total, std::uint32_t divisor, Dtype dtype, void* out) {
  return decode64(sums, exponents, count, total, divisor, dtype, out);
}

template <class Integer>
Status fixed(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  return sizeof(Integer) == 4 ? fixed32(leaves, dtype, count, divisor, out)
                              : fixed64(leaves, dtype, count, divisor, out);
}

// Everything that the steps give.
template <class Integer>
struct Steps {
  std::vector<std::uint8_t> exponents;
  std::vector<Integer> sums;
  Buffer out;
};

template <class Integer>
void expect_equal(const Steps<Integer>& got, const Steps<Integer>& wanted, Dtype dtype) {
  ASSERT_EQ(got.exponents, wanted.exponents);
  ASSERT_EQ(got.sums, wanted.sums);
  for (std::size_t i = 0; i < got.out.count(); ++i) {
    ASSERT_EQ(got.out.bits(i), wanted.out.bits(i)) << name_of(dtype) << ", element " << i;
  }
}

template <class Integer>
Steps<Integer> steps_of(const LeafSet& set, std::size_t total, std::uint32_t divisor) {
  const std::size_t n = set.count();
  Steps<Integer> s{std::vector<std::uint8_t>(n), std::vector<Integer>(n), Buffer(set.dtype, n)};
  EXPECT_TRUE(exponents(set.pointers(), set.dtype, n, s.exponents.data()));
  EXPECT_TRUE(encode(set.pointers(), set.dtype, n, s.exponents.data(), total, s.sums.data()));
  EXPECT_TRUE(
      decode(s.sums.data(), s.exponents.data(), n, total, divisor, set.dtype, s.out.data()));
  return s;
}

// ---- the definition, taken literally

std::uint8_t exponent_oracle(std::uint64_t bits, Dtype dtype) {
  const double x = value_of(bits, dtype);
  if (!std::isfinite(x)) return 255;
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 23);
}

template <class Integer>
int bits_for(std::size_t total) {
  int log = 0;
  while ((std::size_t{1} << log) < total) ++log;
  return static_cast<int>(8 * sizeof(Integer)) - 1 - log;
}

template <class Integer>
std::int64_t encode_oracle(std::uint64_t bits, Dtype dtype, int exponent, std::size_t total) {
  if (exponent == 255) {
    if (is_nan(bits, dtype)) return 1 + 32768;
    if (is_infinite(bits, dtype)) return (bits & sign_bit(dtype)) != 0 ? 32768 : 1;
    return 0;
  }
  const int f = bits_for<Integer>(total);
  const double scaled = std::ldexp(value_of(bits, dtype), f - 1 + 127 - std::max(exponent, 1));
  const double whole = std::nearbyint(scaled);
  const std::int64_t most = static_cast<std::int64_t>((std::uint64_t{1} << f) - 1);
  if (std::abs(whole) >= std::ldexp(1.0, f)) return whole < 0 ? -most : most;
  return static_cast<std::int64_t>(whole);
}

template <class Integer>
std::uint64_t decode_oracle(std::int64_t sum, int exponent, std::size_t total,
                            std::uint32_t divisor, Dtype dtype) {
  if (exponent == 255 && sum != 0) {
    const bool plus = sum % 32768 != 0, minus = sum / 32768 != 0;
    if (plus && minus) return quiet_nan_bits(dtype);
    return infinity_bits(dtype) | (minus ? sign_bit(dtype) : 0);
  }
  const int unit = std::max(exponent, 1) - 126 - bits_for<Integer>(total);
  Oracle oracle(kSmallBase);
  const std::uint64_t size =
      sum < 0 ? -static_cast<std::uint64_t>(sum) : static_cast<std::uint64_t>(sum);
  oracle.add(sum < 0, size, unit - kSmallBase);
  return oracle.nearest(divisor, dtype);
}

template <class Integer>
Steps<Integer> oracle_of(const LeafSet& set, std::size_t total, std::uint32_t divisor) {
  Steps<Integer> s{{}, {}, Buffer(set.dtype, set.count())};
  for (std::size_t i = 0; i < set.count(); ++i) {
    std::uint8_t exponent = 0;
    std::int64_t sum = 0;
    for (const std::uint64_t bits : set.element(i)) {
      exponent =
          std::max<std::uint8_t>(exponent, exponent_oracle(bits & ~sign_bit(set.dtype), set.dtype));
    }
    for (const std::uint64_t bits : set.element(i)) {
      sum += encode_oracle<Integer>(bits, set.dtype, exponent, total);
    }
    s.exponents.push_back(exponent);
    s.sums.push_back(static_cast<Integer>(sum));
    s.out.set_bits(i, decode_oracle<Integer>(sum, exponent, total, divisor, set.dtype));
  }
  return s;
}

template <class Integer>
void expect_as_defined(const LeafSet& set, std::size_t total, std::uint32_t divisor) {
  SCOPED_TRACE(std::to_string(set.buffers.size()) + " of " + std::to_string(total) +
               " leaves, divisor " + std::to_string(divisor));
  const Steps<Integer> wanted = oracle_of<Integer>(set, total, divisor);
  for (const std::string_view target : base::simd_targets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(base::set_simd_target(target));
    expect_equal(steps_of<Integer>(set, total, divisor), wanted, set.dtype);
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

void expect_both_as_defined(const LeafSet& set, std::size_t total, std::uint32_t divisor) {
  expect_as_defined<std::int32_t>(set, total, divisor);
  expect_as_defined<std::int64_t>(set, total, divisor);
}

class FixedTest : public testing::TestWithParam<Dtype> {};

TEST_P(FixedTest, StepsAreAsDefinedForEveryKindOfElement) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const std::size_t leaves : {1, 2, 3, 8, 12, 64, 200}) {
      expect_both_as_defined(random_leaves(kind, GetParam(), leaves, 35), leaves, 1);
    }
  }
}

TEST_P(FixedTest, MeansAreAsDefinedForEveryDivisor) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    const LeafSet set = random_leaves(kind, GetParam(), 12, 33);
    for (const std::uint32_t divisor : {2U, 3U, 7U, 8U, 12U, 32749U, (1U << 24) + 1, kDivisorMax}) {
      expect_both_as_defined(set, 12, divisor);
    }
  }
}

TEST_P(FixedTest, TheScaleComesFromAllLeavesNotFromTheLocalOnes) {
  for (const std::size_t total : {5UL, 100UL, 129UL, 1000UL, kLeavesMax}) {
    expect_both_as_defined(random_leaves(Kind::kGaussian, GetParam(), 5, 40), total, 5);
    expect_both_as_defined(random_leaves(Kind::kHuge, GetParam(), 5, 40), total, 1);
    expect_both_as_defined(random_leaves(Kind::kNotFinite, GetParam(), 5, 40), total, 1);
  }
}

TEST_P(FixedTest, LeavesThatWouldRoundUpToTheNextPowerOfTwoAreCut) {
  const std::uint64_t below_two = bits_near(2, GetParam()) - 1;
  LeafSet set{GetParam(), {}};
  for (const std::uint64_t sign : {std::uint64_t{0}, sign_bit(GetParam()), std::uint64_t{0}}) {
    set.buffers.emplace_back(GetParam(), 40);
    for (std::size_t i = 0; i < 40; ++i) set.buffers.back().set_bits(i, below_two | sign);
  }
  for (const std::size_t total : {3UL, 128UL, 129UL, 1000UL, kLeavesMax}) {
    expect_both_as_defined(set, total, 1);
  }
}

// The scale is 2^(bits + 126 - exponent), which is a float from the exponent bits - 1 on.
TEST_P(FixedTest, ScalesAroundTheLargestFloatAreAsDefined) {
  if (GetParam() == Dtype::kF16) return;  // its exponents are all larger
  Random random(12);
  const auto layout = layout_of(GetParam());
  for (const int bits : {bits_for<std::int32_t>(3), bits_for<std::int64_t>(3)}) {
    for (int exponent = bits - 3; exponent <= bits + 1; ++exponent) {
      LeafSet set{GetParam(), {}};
      for (int leaf = 0; leaf < 3; ++leaf) {
        set.buffers.emplace_back(GetParam(), 40);
        for (std::size_t i = 0; i < 40; ++i) {
          const auto lower = static_cast<std::uint64_t>(leaf == 0 ? exponent : exponent / leaf / 2);
          const std::uint64_t mantissa = random() % (1ULL << layout.mantissa_bits);
          set.buffers.back().set_bits(i, (lower << layout.mantissa_bits) | mantissa);
        }
      }
      expect_both_as_defined(set, 3, 1);
    }
  }
}

TEST_P(FixedTest, EveryLengthAroundTheWidthsOfVectorsAndTiles) {
  for (std::size_t count = 0; count <= 70; ++count) {
    expect_both_as_defined(random_leaves(Kind::kGaussian, GetParam(), 3, count), 3, 3);
  }
  for (const std::size_t count : {1023, 1025, 2065}) {
    expect_both_as_defined(random_leaves(Kind::kWide, GetParam(), 2, count), 2, 1);
  }
}

TEST_P(FixedTest, BuffersMayBeMisaligned) {
  for (const std::size_t offset : {1, 3, 13, 63}) {
    expect_both_as_defined(random_leaves(Kind::kGaussian, GetParam(), 5, 75, offset), 5, 5);
  }
}

// 12 leaves on 12, 6, 4, 3, 2 and 1 workers; the all-reduce is played in a random order.
template <class Integer>
void expect_same_for_every_partition(const LeafSet& set, Random& random) {
  const std::size_t n = set.count(), total = set.buffers.size();
  const Steps<Integer> whole = steps_of<Integer>(set, total, 12);
  for (const std::size_t workers : {12, 6, 4, 3, 2}) {
    const std::size_t local = total / workers;
    std::vector<LeafSet> shares(workers, LeafSet{set.dtype, {}});
    for (std::size_t leaf = 0; leaf < total; ++leaf) {
      shares[leaf / local].buffers.push_back(set.buffers[leaf]);
    }
    std::shuffle(shares.begin(), shares.end(), random);
    Steps<Integer> s{std::vector<std::uint8_t>(n), std::vector<Integer>(n), Buffer(set.dtype, n)};
    std::vector<std::uint8_t> bytes(n);
    for (const LeafSet& share : shares) {
      ASSERT_TRUE(exponents(share.pointers(), set.dtype, n, bytes.data()));
      for (std::size_t i = 0; i < n; ++i) s.exponents[i] = std::max(s.exponents[i], bytes[i]);
    }
    std::vector<Integer> part(n);
    for (const LeafSet& share : shares) {
      ASSERT_TRUE(encode(share.pointers(), set.dtype, n, s.exponents.data(), total, part.data()));
      for (std::size_t i = 0; i < n; ++i) s.sums[i] += part[i];
    }
    ASSERT_TRUE(decode(s.sums.data(), s.exponents.data(), n, total, 12, set.dtype, s.out.data()));
    expect_equal(s, whole, set.dtype);
  }
}

TEST_P(FixedTest, ThePartitionOverWorkersDoesNotMatter) {
  Random random(3);
  for (const Kind kind : kKinds) {
    LeafSet set = random_leaves(kind, GetParam(), 12, 50);
    for (int i = 0; i < 5; ++i) {
      std::shuffle(set.buffers.begin(), set.buffers.end(), random);
      expect_same_for_every_partition<std::int32_t>(set, random);
      expect_same_for_every_partition<std::int64_t>(set, random);
    }
  }
}

// |result - exact sum| <= P 2^(Emax - F) and half an ulp, in double with room for its own rounding.
template <class Integer>
void expect_within_the_bound(const LeafSet& set) {
  const std::size_t total = set.buffers.size();
  const Steps<Integer> s = steps_of<Integer>(set, total, 1);
  for (std::size_t i = 0; i < set.count(); ++i) {
    long double sum = 0;
    for (const std::uint64_t bits : set.element(i)) sum += value_of(bits, set.dtype);
    const double got = value_of(s.out.bits(i), set.dtype);
    if (!std::isfinite(got)) continue;
    const double step =
        std::ldexp(1.0, std::max<int>(s.exponents[i], 1) - 127 - bits_for<Integer>(total));
    const double ulp =
        value_of((s.out.bits(i) & ~sign_bit(set.dtype)) + 1, set.dtype) - std::abs(got);
    const double bound = static_cast<double>(total) * step + ulp / 2;
    EXPECT_LE(std::abs(static_cast<double>(got - sum)), bound * (1 + 1e-9)) << i;
  }
}

TEST_P(FixedTest, TheErrorIsWithinItsBound) {
  for (const Kind kind : {Kind::kGaussian, Kind::kWide, Kind::kCancelling, Kind::kSomeDenormals}) {
    for (const std::size_t leaves : {1, 2, 8, 12, 64}) {
      expect_within_the_bound<std::int32_t>(random_leaves(kind, GetParam(), leaves, 300));
      expect_within_the_bound<std::int64_t>(random_leaves(kind, GetParam(), leaves, 300));
    }
  }
}

TEST_P(FixedTest, AsManyNansAsLeavesAreStillNan) {
  LeafSet set{GetParam(), {}};
  set.buffers.emplace_back(GetParam(), 20);
  for (std::size_t i = 0; i < 20; ++i) set.buffers[0].set_bits(i, quiet_nan_bits(GetParam()));
  const std::vector<const void*> leaves(kLeavesMax, set.buffers[0].data());
  for (const std::string_view target : base::simd_targets()) {
    ASSERT_TRUE(base::set_simd_target(target));
    std::vector<std::uint8_t> bytes(20, 255);
    std::vector<std::int32_t> sums(20);
    ASSERT_TRUE(encode32(leaves, GetParam(), 20, bytes.data(), kLeavesMax, sums.data()));
    EXPECT_EQ(sums[0], 32767 * 32769);
    Buffer out(GetParam(), 20);
    ASSERT_TRUE(decode32(sums.data(), bytes.data(), 20, kLeavesMax, 1, GetParam(), out.data()));
    EXPECT_EQ(out.bits(19), quiet_nan_bits(GetParam()));
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

// ---- all steps in one

template <class Integer>
void expect_bits_of_the_steps(const LeafSet& set, std::uint32_t divisor) {
  SCOPED_TRACE(std::to_string(set.buffers.size()) + " leaves of " + std::to_string(set.count()) +
               ", divisor " + std::to_string(divisor));
  ASSERT_TRUE(base::set_simd_target("SCALAR"));  // the definition, as tests above prove
  const Buffer wanted = steps_of<Integer>(set, set.buffers.size(), divisor).out;
  for (const std::string_view target : base::simd_targets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(base::set_simd_target(target));
    Buffer out(set.dtype, set.count());
    ASSERT_TRUE(fixed<Integer>(set.pointers(), set.dtype, set.count(), divisor, out.data()));
    for (std::size_t i = 0; i < set.count(); ++i) {
      ASSERT_EQ(out.bits(i), wanted.bits(i)) << name_of(set.dtype) << ", element " << i;
    }
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

void expect_both_as_the_steps(const LeafSet& set, std::uint32_t divisor) {
  expect_bits_of_the_steps<std::int32_t>(set, divisor);
  expect_bits_of_the_steps<std::int64_t>(set, divisor);
}

TEST_P(FixedTest, OneCallGivesTheBitsOfTheStepsForEveryKindOfElement) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const std::size_t leaves : {1, 2, 3, 7, 8, 9, 16, 64, 129, 200}) {
      const LeafSet set = random_leaves(kind, GetParam(), leaves, 150);
      for (const std::size_t divisor : {std::size_t{1}, leaves, std::size_t{3}}) {
        expect_both_as_the_steps(set, static_cast<std::uint32_t>(divisor));
      }
    }
  }
}

TEST_P(FixedTest, OneCallGivesTheBitsOfTheStepsForEveryLength) {
  for (const std::size_t leaves : {3, 8}) {
    for (std::size_t count = 0; count <= 135; ++count) {
      expect_both_as_the_steps(random_leaves(Kind::kGaussian, GetParam(), leaves, count), 3);
      expect_both_as_the_steps(random_leaves(Kind::kSomeDenormals, GetParam(), leaves, count), 1);
    }
  }
}

TEST_P(FixedTest, OneCallGivesTheBitsOfTheStepsForEveryDivisor) {
  for (const Kind kind : {Kind::kWide, Kind::kAnyBits, Kind::kTies}) {
    const LeafSet set = random_leaves(kind, GetParam(), 8, 70);
    for (const std::uint32_t divisor : {2U, 7U, 1U << 17, 32749U, (1U << 24) + 1, kDivisorMax}) {
      expect_both_as_the_steps(set, divisor);
    }
  }
}

// Scales, and units of results, that are just floats and just not, with zeros in between.
TEST_P(FixedTest, OneCallGivesTheBitsOfTheStepsAroundTheEndsOfTheRange) {
  Random random(13);
  const Layout layout = layout_of(GetParam());
  const std::uint64_t hidden = std::uint64_t{1} << layout.mantissa_bits;
  const int largest = (1 << layout.exponent_bits) - 1;
  const auto set_around = [&](int exponent) {
    LeafSet set{GetParam(), {}};
    for (int leaf = 0; leaf < 8; ++leaf) {
      set.buffers.emplace_back(GetParam(), 130);
      for (std::size_t i = 0; i < 130; ++i) {
        const std::uint64_t sign = random() % 2 == 0 ? sign_bit(GetParam()) : 0;
        const auto biased = static_cast<std::uint64_t>(
            std::clamp(exponent - static_cast<int>(random() % 4), 0, largest - 1));
        const std::uint64_t size = i % 3 == 0 ? 0 : biased * hidden + random() % hidden;
        set.buffers.back().set_bits(i, sign | size);
      }
    }
    return set;
  };
  for (int exponent = 0; exponent < largest + 3; ++exponent) {
    for (const std::uint32_t divisor : {1U, 8U}) {
      expect_both_as_the_steps(set_around(exponent), divisor);
    }
  }
}

TEST_P(FixedTest, TheResultOfOneCallMayReplaceAnyLeafAndBuffersMayBeMisaligned) {
  for (const Kind kind : {Kind::kGaussian, Kind::kSomeDenormals, Kind::kNotFinite}) {
    for (const std::size_t leaves : {3, 8, 12}) {
      const LeafSet set = random_leaves(kind, GetParam(), leaves, 150, 13);
      const Buffer wanted = steps_of<std::int32_t>(set, leaves, 3).out;
      for (std::size_t replaced = 0; replaced < leaves; ++replaced) {
        LeafSet copy = set;
        ASSERT_TRUE(fixed32(copy.pointers(), GetParam(), 150, 3, copy.buffers[replaced].data()));
        EXPECT_TRUE(copy.buffers[replaced] == wanted) << replaced;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FixedTest, testing::ValuesIn(kDtypes),
                         [](const auto& param) { return name_of(param.param); });

TEST(FixedDecodeTest, AnyIntegersAreRoundedOnce) {
  Random random(4);
  constexpr std::size_t kCount = 400;
  std::vector<std::uint8_t> bytes(kCount);
  std::vector<std::int64_t> sums(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    bytes[i] = static_cast<std::uint8_t>(random() % 255);
    sums[i] = static_cast<std::int64_t>(random()) >> (random() % 63);
    if (i % 3 == 0) sums[i] = (sums[i] >> 40 << 40) + static_cast<int>(random() % 3) - 1;
  }
  for (const Dtype dtype : kDtypes) {
    for (const std::uint32_t divisor : {1U, 3U, 7U, 1024U, 30011U}) {
      for (const std::string_view target : base::simd_targets()) {
        ASSERT_TRUE(base::set_simd_target(target));
        Buffer out(dtype, kCount);
        ASSERT_TRUE(decode64(sums.data(), bytes.data(), kCount, 64, divisor, dtype, out.data()));
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(out.bits(i),
                    decode_oracle<std::int64_t>(sums[i], bytes[i], 64, divisor, dtype));
        }
      }
    }
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

template <class Integer>
void expect_decoded(std::uint8_t exponent, const std::vector<Integer>& sums,
                    std::uint32_t divisor) {
  const std::vector<std::uint8_t> bytes(sums.size(), exponent);
  for (const std::string_view target : base::simd_targets()) {
    ASSERT_TRUE(base::set_simd_target(target));
    Buffer out(Dtype::kF32, sums.size());
    ASSERT_TRUE(
        decode(sums.data(), bytes.data(), sums.size(), 5, divisor, Dtype::kF32, out.data()));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(out.bits(i), decode_oracle<Integer>(sums[i], exponent, 5, divisor, Dtype::kF32))
          << target << ", exponent " << int{exponent} << ", " << sums[i] << " / " << divisor;
    }
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

// Sums of one unit are normal numbers from a certain exponent on.
template <class Integer>
void expect_decoded_at_the_ends_of_the_range() {
  Random random(5);
  std::vector<Integer> sums(96, 0);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (i % 5 != 0) sums[i] = static_cast<Integer>(random()) >> (random() % (8 * sizeof(Integer)));
  }
  for (const std::uint32_t divisor : {1U, 2U, 8U, 1U << 17, 1U << 18, 1U << 19, 6U}) {
    const int first = bits_for<Integer>(5) + std::countr_zero(divisor);
    for (const int exponent : {0, 1, first - 2, first - 1, first, first + 1, 250, 253, 254}) {
      expect_decoded(static_cast<std::uint8_t>(exponent), sums, divisor);
    }
  }
}

TEST(FixedDecodeTest, ResultsNextToDenormalsAndInfinityAreRoundedOnce) {
  expect_decoded_at_the_ends_of_the_range<std::int32_t>();
  expect_decoded_at_the_ends_of_the_range<std::int64_t>();
}

// Integers next to what divides into the middle of two floats.
TEST(FixedDecodeTest, NearTiesOfQuotientsAreRoundedOnce) {
  Random random(8);
  constexpr std::size_t kCount = 320;
  for (const std::uint32_t divisor : {1U, 3U, 12U, 32767U, 262143U, 262145U, 16777213U}) {
    std::vector<std::uint8_t> bytes(kCount, 127);
    std::vector<std::int64_t> sums(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto tie = static_cast<std::int64_t>((random() & 0x7FFFFF) | 0x800000) * 2 + 1;
      const std::int64_t product = tie * divisor;
      const int room = std::countl_zero(static_cast<std::uint64_t>(product)) - 2;
      sums[i] = (product << (random() % static_cast<unsigned>(room))) +
                static_cast<int>(random() % 3) - 1;
      if (i % 2 == 1) sums[i] = -sums[i];
    }
    for (const std::string_view target : base::simd_targets()) {
      ASSERT_TRUE(base::set_simd_target(target));
      Buffer out(Dtype::kF32, kCount);
      ASSERT_TRUE(decode64(sums.data(), bytes.data(), kCount, 1, divisor, Dtype::kF32, out.data()));
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(out.bits(i), decode_oracle<std::int64_t>(sums[i], 127, 1, divisor, Dtype::kF32));
      }
    }
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

TEST(FixedArgumentsTest, WrongArgumentsAreErrorsThatSayWhatToDo) {
  const float x[2] = {1, 2};
  const void* leaves[2] = {x, x};
  std::uint8_t byte = 127;
  std::int32_t sum = 0;
  const auto message = [](const Status& s) { return s ? "" : s.error().message; };
  EXPECT_EQ(message(encode32(leaves, Dtype::kF32, 1, &byte, 1, &sum)),
            "reduce: 2 leaves are more than the total_leaves of 1; give the number of all workers' "
            "leaves");
  EXPECT_EQ(message(exponents(leaves, Dtype::kF64, 1, &byte)),
            "reduce: f64 needs the exact reduction; this one takes f32, bf16 and f16");
  EXPECT_EQ(message(exponents({}, Dtype::kF32, 1, &byte)),
            "reduce: there is no leaf; give at least one buffer");
  float out = 0;
  EXPECT_EQ(message(fixed32({}, Dtype::kF32, 1, 1, &out)),
            "reduce: there is no leaf; give at least one buffer");
  EXPECT_EQ(message(fixed64(leaves, Dtype::kF64, 1, 1, &out)),
            "reduce: f64 needs the exact reduction; this one takes f32, bf16 and f16");
  EXPECT_NE(message(fixed64(leaves, Dtype::kF32, 1, 0, &out)), "");
  EXPECT_NE(message(decode32(&sum, &byte, 1, 0, 1, Dtype::kF32, &out)), "");
  EXPECT_NE(message(decode32(&sum, &byte, 1, 40000, 1, Dtype::kF32, &out)), "");
  EXPECT_NE(message(decode32(&sum, &byte, 1, 1, 0, Dtype::kF32, &out)), "");
}

}  // namespace
}  // namespace presum::reduce
