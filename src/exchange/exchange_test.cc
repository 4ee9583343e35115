// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace presum::exchange {
namespace {

TEST(ThreadExchange, DropsInsteadOfWaitingWhenFull) {
  ThreadExchange exchange(2);
  EXPECT_TRUE(exchange.send({{std::byte{1}}}));
  EXPECT_TRUE(exchange.send({{std::byte{2}}}));
  EXPECT_FALSE(exchange.send({{std::byte{3}}}));
  EXPECT_EQ(exchange.receive()->bytes.front(), std::byte{1});
  EXPECT_TRUE(exchange.send({{std::byte{4}}}));
  EXPECT_EQ(exchange.receive()->bytes.front(), std::byte{2});
  EXPECT_EQ(exchange.receive()->bytes.front(), std::byte{4});
  EXPECT_FALSE(exchange.receive());
}

TEST(ThreadExchange, LosesNothingBetweenThreads) {
  constexpr std::size_t kSenders = 8;
  constexpr std::size_t kEach = 500;
  ThreadExchange exchange(kSenders * kEach);
  std::vector<std::thread> senders;
  for (std::size_t s = 0; s < kSenders; ++s) {
    senders.emplace_back([&] {
      for (std::size_t i = 0; i < kEach; ++i) exchange.send({{std::byte{7}}});
    });
  }
  std::size_t received = 0;
  while (received < kSenders * kEach) received += exchange.receive().has_value();
  for (auto& s : senders) s.join();
  EXPECT_FALSE(exchange.receive());
}

}  // namespace
}  // namespace presum::exchange
