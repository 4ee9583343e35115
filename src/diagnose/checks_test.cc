// SPDX-License-Identifier: Apache-2.0
#include "diagnose/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>

namespace presum::diagnose {
namespace {

using enum Check;

TEST(Catalogue, TellsWhatEveryCheckLooksAtAndWhatToDo) {
  for (const CheckInfo& c : catalogue()) {
    EXPECT_FALSE(c.looks_at.empty()) << c.id;
    EXPECT_TRUE(c.remedy.ends_with('.')) << c.id;
    EXPECT_LT(c.remedy.size(), 320U) << c.id;
    EXPECT_TRUE(c.consequence.ends_with('.')) << c.id;
    EXPECT_TRUE(c.blind.ends_with('.')) << c.id;
    EXPECT_FALSE(c.code.empty()) << c.id;
    EXPECT_EQ(find_check(c.id), &c);
  }
  EXPECT_EQ(find_check("no-such-check"), nullptr);
}

TEST(Explains, ItselfAndWhatTheTableSays) {
  for (std::size_t c = 0; c < kChecks; ++c) {
    EXPECT_TRUE(explains(static_cast<Check>(c), static_cast<Check>(c)));
  }
  EXPECT_TRUE(explains(kNoReduction, kParameterDesync));
  EXPECT_FALSE(explains(kParameterDesync, kNoReduction));
}

// A rename of a type once went into the texts.
TEST(Catalogue, IsInWordsOfPeople) {
  const auto is_identifier = [](const std::string& word) {
    return std::ranges::adjacent_find(word, [](unsigned char a, unsigned char b) {
             return std::islower(a) != 0 && std::isupper(b) != 0;
           }) != word.end();
  };
  const std::set<std::string> names = {"NaN", "DistributedSampler", "BatchNorm", "SyncBatchNorm",
                                       "PyTorch"};
  for (const CheckInfo& check : catalogue()) {
    for (const std::string_view text : {check.looks_at, check.remedy}) {
      std::istringstream words{std::string(text)};
      for (std::string word; words >> word;) {
        if (word.find('`') != std::string::npos || word.find('/') != std::string::npos) continue;
        word.erase(std::remove_if(word.begin(), word.end(),
                                  [](unsigned char c) { return std::isalpha(c) == 0; }),
                   word.end());
        EXPECT_FALSE(is_identifier(word) && !names.contains(word)) << check.id << ": " << word;
      }
    }
  }
}

}  // namespace
}  // namespace presum::diagnose
