// SPDX-License-Identifier: Apache-2.0
#include "audit/scan.h"

#include <gtest/gtest.h>

#include <cstring>

#include "audit/testing.h"
#include "base/float_environment.h"
#include "base/hash.h"
#include "base/testing.h"

namespace presum::audit {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Kinds of damage to a result.
enum class Damage { kNone, kHops, kOther, kSpecial };

struct Case {
  std::uint32_t workers;
  Dtype dtype;
  std::uint32_t divisor;
  std::size_t count;
  Distribution distribution;
  Damage damage;
};

Buffers buffers_of(const Case& c) {
  std::vector<std::vector<double>> values(c.workers, std::vector<double>(c.count));
  for (std::uint32_t w = 0; w < c.workers; ++w) {
    generate(c.distribution, 1, w, 0, values[w]);
    for (std::size_t i = 0; i < c.count && c.damage == Damage::kSpecial; ++i) {
      const std::uint64_t draw = splitmix64(i * 1024 + w);
      if (draw % 97 == 0) values[w][i] = 0x1p-140 * static_cast<double>(draw % 999);
      if (draw % 101 == 0) values[w][i] = kNaN;
      if (draw % 103 == 0) values[w][i] = kInf;
      if (draw % 107 == 0) values[w][i] = 3e38;
      if (i % 11 == 0) values[w][i] = 0;
    }
  }
  return {c.dtype, values};
}

std::vector<std::byte> result_of(const Case& c, const Buffers& buffers) {
  const Dtype format = c.damage == Damage::kHops ? Dtype::kBF16 : Dtype::kF32;
  auto sums = summed(buffers, format, [&](std::size_t i) { return arrival(c.workers, i); });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = static_cast<float>(sums[i]) / static_cast<float>(c.divisor);
    if (c.damage == Damage::kOther) sums[i] = buffers.at(0, (i + 1) % sums.size());
    if (c.damage == Damage::kSpecial && i % 31 == 0) sums[i] = i % 2 == 0 ? kNaN : 0;
  }
  return buffers.packed(sums);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Dtype dtype : kDtypes) {
    for (const std::uint32_t workers : {1U, 2U, 3U, 8U, 17U, 64U}) {
      for (const std::uint32_t divisor : {1U, workers}) {
        for (const auto distribution : {Distribution::kGradients, Distribution::kWide}) {
          for (const auto damage :
               {Damage::kNone, Damage::kHops, Damage::kOther, Damage::kSpecial}) {
            out.push_back({workers, dtype, divisor, 2500, distribution, damage});
          }
        }
      }
    }
  }
  for (const std::size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025}) {
    out.push_back({8, Dtype::kF32, 8, count, Distribution::kGaussian, Damage::kSpecial});
  }
  return out;
}

Scan<float>::Result scanned(const Case& c, const Buffers& buffers,
                            const std::vector<std::byte>& result) {
  const base::DefaultFloatEnvironment environment;
  Scan<float> scan(c.workers, c.dtype, c.divisor);
  const auto leaves = buffers.pointers();
  scan.add(leaves, c.count, result.data());
  return scan.result();
}

// The definition, element by element.
struct Definition {
  Measures measures;
  std::vector<std::uint64_t> counts;
};
Definition defined(const Case& c, const Buffers& buffers, const std::vector<std::byte>& result) {
  const Bounds bounds = Bounds::of_any_division(c.workers, c.dtype, c.divisor);
  Definition out{{}, std::vector<std::uint64_t>(bounds.counts())};
  Rows<float> rows(c.workers);
  Exact<float> exact(c.workers, c.dtype, c.divisor);
  for (std::size_t first = 0; first < c.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, c.count - first);
    read_rows(buffers.pointers(), c.dtype, first, count, rows);
    std::vector<float> actual(count);
    unpack(result.data(), first, c.dtype, std::span(actual));
    const auto& truth = exact.truth(rows);
    out.measures.add<float>(actual, truth, c.dtype, c.divisor);
    for (std::size_t i = 0; i < count; ++i) {
      bounds.count<float>({actual[i], truth.sums.high[i], truth.sums.low[i], truth.sums.sum_abs[i],
                           are_finite(rows, i)},
                          out.counts);
    }
  }
  return out;
}

bool same_bits(const Measures& a, const Measures& b) {
  const auto numbers = [](const Measures& m) {
    return std::vector{m.relative_l2(),
                       m.error_mean(),
                       m.error_max,
                       static_cast<double>(m.differing),
                       static_cast<double>(m.ulps.percentile(0.5)),
                       static_cast<double>(m.ulps.percentile(0.99)),
                       static_cast<double>(m.ulps.largest())};
  };
  const auto x = numbers(a), y = numbers(b);
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

// Ignores errors far below the last bit of a double.
bool near(double a, double b) {
  return a == b || (a != a && b != b) || std::abs(a - b) <= 1e-9 * std::abs(b) + 1e-15;
}

TEST(Scan, MeasuresWhatTheDefinitionsSay) {
  for (const Case& c : cases()) {
    const Buffers buffers = buffers_of(c);
    const auto result = result_of(c, buffers);
    const auto found = scanned(c, buffers, result);
    const Definition truth = defined(c, buffers, result);
    const std::string what =
        std::to_string(c.workers) + " ranks, dtype " + std::to_string(static_cast<int>(c.dtype)) +
        ", by " + std::to_string(c.divisor) + ", damage " +
        std::to_string(static_cast<int>(c.damage)) + ", count " + std::to_string(c.count);
    const Measures& m = found.measures;
    EXPECT_EQ(m.elements, truth.measures.elements) << what;
    EXPECT_EQ(m.differing, truth.measures.differing) << what;
    EXPECT_EQ(m.nonfinite, truth.measures.nonfinite) << what;
    EXPECT_TRUE(near(m.relative_l2(), truth.measures.relative_l2()))
        << what << ' ' << m.relative_l2() << ' ' << truth.measures.relative_l2();
    EXPECT_TRUE(near(m.error_max, truth.measures.error_max)) << what;
    EXPECT_TRUE(near(m.error_mean(), truth.measures.error_mean())) << what;
    EXPECT_EQ(m.ulps.count(), truth.measures.ulps.count()) << what;
    EXPECT_EQ(m.ulps.largest(), truth.measures.ulps.largest()) << what;
    for (const double share : {0.1, 0.5, 0.9, 0.99}) {
      EXPECT_EQ(m.ulps.percentile(share), truth.measures.ulps.percentile(share)) << what;
    }
    const Excess expected = excess_of(c.dtype, truth.counts);
    EXPECT_EQ(found.excess.beyond, expected.beyond) << what;
    EXPECT_EQ(found.excess.far, expected.far) << what;
  }
}

TEST(Scan, GivesTheSameBitsOnEveryTarget) {
  for (const Case& c : cases()) {
    const Buffers buffers = buffers_of(c);
    const auto result = result_of(c, buffers);
    const auto best = scanned(c, buffers, result);
    base::on_every_target([&] {
      const auto found = scanned(c, buffers, result);
      EXPECT_TRUE(same_bits(found.measures, best.measures));
      EXPECT_EQ(found.excess.beyond, best.excess.beyond);
      EXPECT_EQ(found.excess.far, best.excess.far);
    });
  }
}

TEST(Scan, GivesTheSameBitsHoweverBuffersAreCutAndWhereverTheyBegin) {
  const Case c{3, Dtype::kF32, 1, 5000, Distribution::kGradients, Damage::kNone};
  const Buffers buffers = buffers_of(c);
  const auto result = result_of(c, buffers);
  const auto whole = scanned(c, buffers, result);
  Scan<float> cut(c.workers, c.dtype, c.divisor);
  std::vector<std::vector<std::byte>> parts(4);
  for (std::size_t first = 0, count = 0; first < c.count; first += count) {
    count = std::min<std::size_t>(c.count - first, 1 + first % 2100);
    std::vector<const void*> leaves = buffers.pointers();
    leaves.push_back(result.data());
    for (std::size_t row = 0; row < leaves.size(); ++row) {
      parts[row].resize(4 * count + 1);
      std::memcpy(parts[row].data() + 1, static_cast<const std::byte*>(leaves[row]) + 4 * first,
                  4 * count);
      leaves[row] = parts[row].data() + 1;
    }
    cut.add(std::span(leaves).first(3), count, leaves.back());
  }
  const auto found = cut.result();
  EXPECT_TRUE(same_bits(found.measures, whole.measures));
}

}  // namespace
}  // namespace presum::audit
