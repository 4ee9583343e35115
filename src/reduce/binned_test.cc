// SPDX-License-Identifier: Apache-2.0
#include "reduce/binned.h"

#include <gtest/gtest.h>

#include <string>

#include "base/simd.h"
#include "reduce/testing.h"

namespace presum::reduce {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};

struct State {
  explicit State(std::size_t count) : top(count), high(count), low(count) {}

  Binned view() { return {top.data(), high.data(), low.data()}; }
  bool operator==(const State&) const = default;

  std::vector<std::uint8_t> top;
  std::vector<std::int64_t> high, low;
};

void add(State& state, const Buffer& leaf, Dtype dtype) {
  ASSERT_TRUE(binned_add(state.view(), leaf.count(), leaf.data(), dtype));
}

State state_of(const LeafSet& set) {
  State state(set.count());
  for (const Buffer& leaf : set.buffers) add(state, leaf, set.dtype);
  return state;
}

Buffer decoded(State& state, std::uint32_t divisor, Dtype dtype) {
  Buffer out(dtype, state.top.size());
  EXPECT_TRUE(binned_decode(state.view(), state.top.size(), divisor, dtype, out.data()));
  return out;
}

// ---- the definition, taken literally: x cut at a bit is a double

double unit_of(int bin) { return std::ldexp(1.0, 40 * (bin - 1) - 149); }

State oracle_of(const LeafSet& set) {
  State s(set.count());
  for (std::size_t i = 0; i < set.count(); ++i) {
    const std::vector<std::uint64_t> leaves = set.element(i);
    int top = 0;
    for (const std::uint64_t bits : leaves) {
      const double size = std::abs(value_of(bits, set.dtype));
      while (top < 255 && !(size < (top == 0 ? 0x1p-149 : unit_of(top + 1)))) {
        top = std::isfinite(size) ? top + 1 : 255;
      }
    }
    for (const std::uint64_t bits : leaves) {
      const double x = value_of(bits, set.dtype);
      if (top == 255) {
        s.high[i] += std::isnan(x) || x == HUGE_VAL ? 1 : 0;
        s.low[i] += std::isnan(x) || x == -HUGE_VAL ? 1 : 0;
      } else {
        const double high = std::trunc(x / unit_of(top));
        s.high[i] += static_cast<std::int64_t>(high);
        s.low[i] +=
            static_cast<std::int64_t>(std::trunc((x - high * unit_of(top)) / unit_of(top - 1)));
      }
    }
    s.top[i] = static_cast<std::uint8_t>(top);
  }
  return s;
}

Buffer decode_oracle(const State& s, std::uint32_t divisor, Dtype dtype) {
  Buffer out(dtype, s.top.size());
  for (std::size_t i = 0; i < s.top.size(); ++i) {
    if (s.top[i] == 255) {
      const bool plus = s.high[i] != 0, minus = s.low[i] != 0;
      const std::uint64_t infinity = infinity_bits(dtype) | (minus ? sign_bit(dtype) : 0);
      out.set_bits(i, plus && minus ? quiet_nan_bits(dtype) : infinity);
      continue;
    }
    Oracle oracle(kSmallBase);
    const int unit = 40 * (s.top[i] - 1) - 149;
    const auto add_digits = [&](std::int64_t digits, int at) {
      oracle.add(digits < 0, static_cast<std::uint64_t>(std::abs(digits)), at - kSmallBase);
    };
    add_digits(s.high[i], unit);
    add_digits(s.low[i], unit - 40);
    out.set_bits(i, oracle.nearest(divisor, dtype));
  }
  return out;
}

void expect_as_defined(const LeafSet& set, std::uint32_t divisor) {
  const State wanted = oracle_of(set);
  const Buffer sums = decode_oracle(wanted, divisor, set.dtype);
  for (const std::string_view target : base::simd_targets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(base::set_simd_target(target));
    State got = state_of(set);
    ASSERT_EQ(got.top, wanted.top);
    ASSERT_EQ(got.high, wanted.high);
    ASSERT_EQ(got.low, wanted.low);
    const Buffer out = decoded(got, divisor, set.dtype);
    for (std::size_t i = 0; i < set.count(); ++i) ASSERT_EQ(out.bits(i), sums.bits(i)) << i;
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

class BinnedTest : public testing::TestWithParam<Dtype> {};

TEST_P(BinnedTest, SumsAreAsDefinedForEveryKindOfElement) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const std::size_t leaves : {1, 2, 3, 12, 64}) {
      for (const std::uint32_t divisor : {1U, 3U, 8U, kDivisorMax}) {
        expect_as_defined(random_leaves(kind, GetParam(), leaves, 35), divisor);
      }
    }
  }
}

TEST_P(BinnedTest, EveryLengthAroundTheWidthOfVectorsAndAnyAlignment) {
  for (std::size_t count = 0; count <= 70; ++count) {
    expect_as_defined(random_leaves(Kind::kWide, GetParam(), 3, count, count % 5), 3);
  }
}

TEST_P(BinnedTest, EveryExponentHasItsBin) {
  const std::uint64_t mantissa = std::uint64_t{1} << layout_of(GetParam()).mantissa_bits;
  const std::size_t count = static_cast<std::size_t>(infinity_bits(GetParam()) / mantissa);
  LeafSet set{GetParam(), {}};
  for (const std::uint64_t rest : {std::uint64_t{0}, std::uint64_t{1}, mantissa - 1}) {
    set.buffers = {Buffer(GetParam(), count)};
    for (std::size_t i = 0; i < count; ++i) set.buffers[0].set_bits(i, i * mantissa + rest);
    expect_as_defined(set, 1);
  }
}

TEST_P(BinnedTest, OneLeafIsKeptToItsLastBit) {
  for (const Kind kind : {Kind::kGaussian, Kind::kAnyBits, Kind::kDenormals, Kind::kHuge}) {
    const LeafSet set = random_leaves(kind, GetParam(), 1, 300);
    State state = state_of(set);
    const Buffer out = decoded(state, 1, GetParam());
    for (std::size_t i = 0; i < 300; ++i) {
      const std::uint64_t bits = set.buffers[0].bits(i);
      EXPECT_EQ(out.bits(i), bits == sign_bit(GetParam()) ? 0 : bits);
    }
  }
}

// Merges at random until one sum is left.
State merged_at_random(const LeafSet& set, Random& random) {
  std::vector<State> parts;
  for (const Buffer& leaf : set.buffers) {
    if (parts.empty() || random() % 2 == 0) parts.emplace_back(set.count());
    add(parts[random() % parts.size()], leaf, set.dtype);
  }
  while (parts.size() > 1) {
    std::shuffle(parts.begin(), parts.end(), random);
    State from = parts.back();
    const State before = from;
    parts.pop_back();
    EXPECT_TRUE(binned_merge(parts.back().view(), from.view(), set.count()));
    EXPECT_EQ(from, before);
  }
  return parts[0];
}

TEST_P(BinnedTest, OrderAndTreeOfMergesDoNotMatter) {
  Random random(2);
  for (const Kind kind : kKinds) {
    LeafSet set = random_leaves(kind, GetParam(), 24, 40);
    const State wanted = state_of(set);
    for (int i = 0; i < 30; ++i) {
      std::shuffle(set.buffers.begin(), set.buffers.end(), random);
      EXPECT_EQ(state_of(set), wanted);
      EXPECT_EQ(merged_at_random(set, random), wanted);
    }
  }
}

TEST_P(BinnedTest, RaisingLetsAnIntegerSumMergeTheWorkers) {
  for (const Kind kind : kKinds) {
    const LeafSet set = random_leaves(kind, GetParam(), 12, 40);
    State wanted = state_of(set);
    std::vector<State> workers(4, State(40));
    for (std::size_t leaf = 0; leaf < 12; ++leaf) {
      add(workers[leaf % 4], set.buffers[leaf], GetParam());
    }
    State sum(40);
    for (const State& worker : workers) {
      for (std::size_t i = 0; i < 40; ++i) sum.top[i] = std::max(sum.top[i], worker.top[i]);
    }
    for (State& worker : workers) {
      ASSERT_TRUE(binned_raise(worker.view(), 40, sum.top.data()));
      for (std::size_t i = 0; i < 40; ++i) {
        sum.high[i] += worker.high[i];
        sum.low[i] += worker.low[i];
      }
    }
    EXPECT_EQ(sum, wanted);
  }
}

TEST_P(BinnedTest, RaisingToALowerBinChangesNothing) {
  State state = state_of(random_leaves(Kind::kWide, GetParam(), 5, 40));
  const State before = state;
  const std::vector<std::uint8_t> lower(40, 1);
  ASSERT_TRUE(binned_raise(state.view(), 40, lower.data()));
  EXPECT_EQ(state, before);
}

TEST_P(BinnedTest, TheErrorIsWithinItsBound) {
  for (const Kind kind : {Kind::kGaussian, Kind::kWide, Kind::kCancelling, Kind::kSomeDenormals}) {
    for (const std::size_t leaves : {2, 8, 64}) {
      const LeafSet set = random_leaves(kind, GetParam(), leaves, 300);
      State state = state_of(set);
      const Buffer out = decoded(state, 1, GetParam());
      for (std::size_t i = 0; i < 300; ++i) {
        long double sum = 0;
        double largest = 0;
        for (const std::uint64_t bits : set.element(i)) {
          sum += value_of(bits, GetParam());
          largest = std::max(largest, std::abs(value_of(bits, GetParam())));
        }
        const double got = value_of(out.bits(i), GetParam());
        if (!std::isfinite(got)) continue;
        const double next = value_of((out.bits(i) & ~sign_bit(GetParam())) + 1, GetParam());
        const double bound =
            std::ldexp(largest * static_cast<double>(leaves), -40) + (next - std::abs(got)) / 2;
        EXPECT_LE(std::abs(static_cast<double>(got - sum)), bound * (1 + 1e-9));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BinnedTest, testing::ValuesIn(kDtypes),
                         [](const auto& param) { return name_of(param.param); });

TEST(BinnedDecodeTest, SumsOfVeryManyLeavesAreRoundedOnce) {
  Random random(6);
  State state(300);
  for (std::size_t i = 0; i < 300; ++i) {
    state.top[i] = static_cast<std::uint8_t>(1 + random() % 7);
    state.high[i] = static_cast<std::int64_t>(random()) >> (1 + random() % 40);
    state.low[i] = static_cast<std::int64_t>(random()) >> (1 + random() % 40);
    if (state.top[i] == 1) state.low[i] = 0;
  }
  for (const Dtype dtype : kDtypes) {
    for (const std::uint32_t divisor : {1U, 3U, 65536U}) {
      const Buffer wanted = decode_oracle(state, divisor, dtype);
      for (const std::string_view target : base::simd_targets()) {
        ASSERT_TRUE(base::set_simd_target(target));
        EXPECT_TRUE(decoded(state, divisor, dtype) == wanted);
      }
    }
  }
  ASSERT_TRUE(base::set_simd_target(""));
}

TEST(BinnedArgumentsTest, WrongArgumentsAreErrors) {
  State state(1);
  const double x = 1;
  EXPECT_FALSE(binned_add(state.view(), 1, &x, Dtype::kF64));
  float out = 0;
  EXPECT_FALSE(binned_decode(state.view(), 1, 0, Dtype::kF32, &out));
  EXPECT_TRUE(binned_decode(state.view(), 0, 1, Dtype::kF32, nullptr));
}

}  // namespace
}  // namespace presum::reduce
