// SPDX-License-Identifier: Apache-2.0
#include "watch/pulse.h"

#include <gtest/gtest.h>

#include <variant>

namespace presum::watch {
namespace {

Heartbeat told(const Packet& packet) {
  const auto message = packet::decode(packet.bytes);
  EXPECT_TRUE(message);
  return std::get<packet::Beat>(*message).beat;
}

TEST(Pulse, TellsTheLastEventAndHowLongAgoItWas) {
  step::Activity activity;
  Pulse pulse({.identity = {0, 1, 0, 3, 4}, .host = "node7", .period = 2, .stall_seconds = 60},
              Seconds(0));
  activity.event(2, 17, 1, Phase::kBackward);
  activity.gradient(99);
  pulse.look(activity, Seconds(10));
  const Packet packet =
      pulse.beat(activity, {'S', 0.5}, {"all_reduce", "main() of train.py:8", "a\nb", "c"}, false,
                 Seconds(14));
  const auto message = packet::decode(packet.bytes);
  ASSERT_TRUE(message);
  const auto& beat = std::get<packet::Beat>(*message);
  EXPECT_EQ(beat.header.identity.rank, 3U);
  EXPECT_EQ(beat.header.identity.model_index, 2U);
  const Heartbeat& b = beat.beat;
  EXPECT_EQ(b.events, 2U);
  EXPECT_EQ(b.step, 17U);
  EXPECT_EQ(b.micro_batch, 1U);
  EXPECT_EQ(b.phase, Phase::kBackward);
  EXPECT_EQ(b.layer, 99U);
  EXPECT_EQ(b.still, 4);
  EXPECT_EQ(b.thread, 'S');
  EXPECT_NEAR(b.processor, 0.5 / 14, 1e-12);
  EXPECT_EQ(b.host, "node7");
  EXPECT_EQ(b.collective, "all_reduce");
  EXPECT_EQ(b.site, "main() of train.py:8");
  EXPECT_EQ(b.stack, "a\nb");
  EXPECT_EQ(b.recorder, "c");
  EXPECT_FALSE(b.waiting);
  EXPECT_FALSE(b.lock_held);
}

TEST(Pulse, RemembersTheLongestTimeWithoutAnEvent) {
  step::Activity activity;
  Pulse pulse({}, Seconds(0));
  activity.event(0, 0, 0, Phase::kForward);
  pulse.look(activity, Seconds(100));  // no training before the first event
  EXPECT_EQ(told(pulse.beat(activity, {}, {}, false, Seconds(100))).longest, 0);
  activity.event(0, 1, 0, Phase::kForward);
  pulse.look(activity, Seconds(107));
  activity.event(0, 2, 0, Phase::kForward);
  pulse.look(activity, Seconds(108));
  const Heartbeat b = told(pulse.beat(activity, {}, {}, true, Seconds(111)));
  EXPECT_EQ(b.longest, 7);
  EXPECT_EQ(b.still, 3);
  EXPECT_TRUE(b.lock_held);
}

}  // namespace
}  // namespace presum::watch
