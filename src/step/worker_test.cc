// SPDX-License-Identifier: Apache-2.0
#include "step/worker.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "packet/packet.h"

namespace presum::step {
namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

packet::Hello hello_of(const Worker& worker, const std::vector<GroupName>& groups = {}) {
  return std::get<packet::Hello>(*packet::decode(worker.hello(groups).bytes));
}

TEST(Worker, ItsPacketsNameItItsGroupsAndWhatIsWatched) {
  Worker worker(
      {.identity = {.model_index = 1, .replica = 2, .dp_group = 3, .rank = 9, .replicas = 4},
       .host = "node-1",
       .facts = {{"torch", "2.13.0"}}});
  worker.watch("ema");
  worker.watch("ema");
  const auto hello = hello_of(worker, {{.id = 5, .elements = 15, .name = "layers.0"}});
  EXPECT_EQ(hello.header.identity.rank, 9U);
  EXPECT_EQ(hello.header.identity.dp_group, 3U);
  EXPECT_EQ(hello.facts.host, "node-1");
  EXPECT_EQ(hello.facts.facts, (Facts{{"torch", "2.13.0"}}));
  ASSERT_EQ(hello.facts.groups.size(), 2U);
  EXPECT_EQ(hello.facts.groups[0].name, "layers.0");
  EXPECT_EQ(hello.facts.groups[0].elements, 15U);
  EXPECT_EQ(hello.facts.groups[1].name, "ema");
  const Packet note = worker.note({.text = "hm", .state = {}});
  EXPECT_EQ(std::get<packet::Note>(*packet::decode(note.bytes)).header.identity.rank, 9U);
}

TEST(Worker, AFactReplacesTheOneOfItsName) {
  Worker worker({.facts = {{"torch", "2.13.0"}}});
  worker.fact("sampler", "SequentialSampler");
  worker.fact("torch", "2.14.0");
  worker.fact("sampler", "");
  EXPECT_EQ(hello_of(worker).facts.facts, (Facts{{"torch", "2.14.0"}, {"sampler", ""}}));
}

TEST(Worker, CutsFactsThatAreTooLongToRead) {
  std::string text;
  while (text.size() < 5000) text += "\u00fc";  // two bytes each
  Worker worker({.facts = {{"given", text}}});
  worker.fact("later", text + "!");
  const auto facts = hello_of(worker).facts.facts;
  ASSERT_EQ(facts.size(), 2U);
  for (const auto& [key, value] : facts) {
    EXPECT_LE(value.size(), Worker::kFactBytesMax);
    EXPECT_TRUE(value.starts_with("\u00fc\u00fc"));
    const auto cut = value.find("...");
    ASSERT_NE(cut, std::string::npos);
    EXPECT_EQ(cut % 2, 0U) << "inside a character";
  }
  EXPECT_NE(facts[0].second.find("5000 bytes"), std::string::npos);
  EXPECT_NE(facts[0].second, facts[1].second) << "texts that begin alike stay two";
}

}  // namespace
}  // namespace presum::step
