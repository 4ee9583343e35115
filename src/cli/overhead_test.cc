// SPDX-License-Identifier: Apache-2.0
#include "cli/times.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace presum::cli {
namespace {

Fact fact(std::uint32_t segment, std::uint32_t rank, std::string key, std::string value,
          std::uint32_t model_index = 0) {
  return {segment, rank, std::move(key), std::move(value), model_index};
}

std::vector<Fact> told(std::uint32_t segment, std::uint32_t rank, std::string own,
                       std::uint32_t model_index = 0) {
  return {fact(segment, rank, "overhead_ms", std::move(own), model_index),
          fact(segment, rank, "step_ms", "200.000", model_index)};
}

std::vector<Fact> operator+(std::vector<Fact> a, const std::vector<Fact>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Overhead, IsThatOfTheRankWhereItIsMostInTheLastSegment) {
  const auto times =
      overheads(told(1, 0, "150") + told(2, 0, "1") + told(2, 5, "4.5") + told(2, 1, "3", 1));
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times.at(0).rank, 5U);
  EXPECT_DOUBLE_EQ(times.at(0).share(), 0.0225);
  EXPECT_EQ(times.at(1).rank, 1U);
}

TEST(Overhead, IsNotKnownOfWhatIsNoSuchNumber) {
  for (const char* value : {"", "nan", "-1", "0", "inf", "1e999", "3 ms"}) {
    EXPECT_TRUE(overheads(told(1, 0, value)).empty()) << value;
  }
  EXPECT_TRUE(overheads(std::vector{fact(1, 0, "overhead_ms", "3")}).empty());
  EXPECT_TRUE(overheads({}).empty());
}

TEST(Overhead, SaysWhatThereIsToDoWhereItIsMuch) {
  EXPECT_EQ(
      overhead_text({.rank = 3, .overhead_ms = 4.5, .step_ms = 200}),
      "presum took 4.50 ms of a step of 200.0 ms on rank 3: 2.25 %; Record(every=n) reads the "
      "gradients of one step in n");
  EXPECT_EQ(overhead_text({.rank = 3, .overhead_ms = 0.4512, .step_ms = 200}),
            "presum took 0.45 ms of a step of 200.0 ms on rank 3: 0.23 %");
}

}  // namespace
}  // namespace presum::cli
