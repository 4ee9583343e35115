// SPDX-License-Identifier: Apache-2.0
#include "detect/pair_panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace presum::detect {
namespace {

TEST(PairTail, IsFairOverAllPairs) {
  const auto unseen = [](std::uint32_t, std::uint32_t) { return Reading{}; };
  PairTail start;
  start.update(0, 1, 3, 0, unseen);
  const auto evidence = [](const PairTail& tail) {
    const auto& entries = tail.entries();
    const auto found =
        std::ranges::find_if(entries, [](const auto& e) { return e.i == 0 && e.j == 1; });
    return PairTail::evidence(*found);
  };
  double mean = 0;
  const std::array<std::array<std::uint32_t, 2>, 3> pairs = {{{0, 1}, {0, 2}, {1, 2}}};
  for (const auto& pair : pairs) {
    PairTail tail = start;
    tail.update(pair[0], pair[1], 3, 1, unseen);
    mean += evidence(tail) / 3;
  }
  EXPECT_NEAR(mean, evidence(start) + double(kPairStakes.size()), 1e-12);
}

TEST(PairTail, ForgetsPairsThatAreLikeAllOthersAgain) {
  const auto unseen = [](std::uint32_t, std::uint32_t) { return Reading{}; };
  PairTail tail;
  std::size_t most = 0;
  for (std::uint64_t s = 0; s < 5000; ++s) {
    const auto i = static_cast<std::uint32_t>(s % 500);
    tail.update(i, 600, 1e5, s, unseen);
    most = std::max(most, tail.entries().size());
  }
  EXPECT_LT(most, 250);
}

}  // namespace
}  // namespace presum::detect
