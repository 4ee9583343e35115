// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace presum::cli {
namespace {

TEST(Number, HasFourSignificantDigits) {
  EXPECT_EQ(number(0.123456), "0.1235");
  EXPECT_EQ(number(-12345.6), "-1.235e+04");
  EXPECT_EQ(number(8), "8");
}

TEST(Number, ShowsWhatIsNoNumber) {
  EXPECT_EQ(number(NAN), "-");
  EXPECT_EQ(number(INFINITY), "inf");
  EXPECT_EQ(number(-INFINITY), "-inf");
}

TEST(Number, CallsRoundingDustZero) {
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(-0.0), "0");
  EXPECT_EQ(number(1e-15), "0");
  EXPECT_EQ(number(1e-9), "1e-09");
}

TEST(Ranges, JoinNeighbors) {
  EXPECT_EQ(ranges({}), "-");
  EXPECT_EQ(ranges({3}), "3");
  EXPECT_EQ(ranges({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges({1, 3, 4, 6}), "1,3-4,6");
  EXPECT_EQ(ranges({4294967294U, 4294967295U}), "4294967294-4294967295");
}

TEST(Hosts, ThatDifferInTheirLastNumberAreOne) {
  EXPECT_EQ(hosts({}), "");
  EXPECT_EQ(hosts({"node7"}), "node7");
  EXPECT_EQ(hosts({"node0", "node1", "node10", "node3"}), "node[0-1,3], node10");
  EXPECT_EQ(hosts({"a098", "a099", "a100"}), "a[098-100]");
  EXPECT_EQ(hosts({"10.0.0.1", "10.0.0.2"}), "10.0.0.[1-2]");
  EXPECT_EQ(hosts({"", "login", "7"}), ", 7, login");
  EXPECT_EQ(hosts({"n12345678901234567890"}), "n12345678901234567890");
}

TEST(Hosts, ManyDifferentOnesAreCounted) {
  std::vector<std::string> names;
  for (char c = 'a'; c <= 'z'; ++c) names.emplace_back(3, c);
  EXPECT_EQ(hosts(names), "aaa, bbb, ccc, ddd, eee, fff, ggg, hhh, and 18 more");
  EXPECT_EQ(hosts({"\x1b[31m"}), "?[31m");
}

TEST(Ranks, AgreeInNumber) {
  EXPECT_EQ(ranks({3}), "rank 3");
  EXPECT_EQ(ranks({0, 1, 8}), "ranks 0-1,8");
}

TEST(Table, AlignsTheFirstColumnLeftAndTheOthersRight) {
  EXPECT_EQ(table({{"run", "steps"}, {"a-long-name", "7"}}),
            "run          steps\n"
            "a-long-name      7\n");
}

TEST(Printable, HidesControlCharacters) {
  EXPECT_EQ(printable("plain text"), "plain text");
  EXPECT_EQ(printable("a\x1b[31mb\nc\td\x7f"), "a?[31mb?c?d?");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, HidesControlCharactersAboveAscii) {
  EXPECT_EQ(printable("a\xC2\x9B"
                      "31mb"),
            "a?31mb");  // U+009B starts an escape sequence
}

TEST(Printable, HidesWhatIsNoUtf8) {
  EXPECT_EQ(printable("a\x9b"
                      "31mb"),
            "a?31mb")
      << "a terminal in 8-bit mode takes it for an escape sequence";
  EXPECT_EQ(printable("\xe6\xa2"), "??") << "cut off";
  EXPECT_EQ(printable("\xc0\xaf"), "??") << "longer than need be";
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "half of a surrogate pair";
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "????") << "above the last character";
}

TEST(Printable, HidesWhatTurnsTheDirectionOfTextOrIsNotSeen) {
  EXPECT_EQ(printable("rank\xe2\x80\xae 0"), "rank? 0");  // U+202E
  EXPECT_EQ(printable("a\xe2\x81\xa6z"), "a?z");          // U+2066
  EXPECT_EQ(printable("a\xe2\x80\x8bz"), "a?z");          // U+200B
  EXPECT_EQ(printable("a\xe2\x80\xa8z"), "a?z");          // U+2028
  EXPECT_EQ(printable("a\xf3\xa0\x81\x81z"), "a?z");      // U+E0041
}

TEST(Printable, KeepsOtherLetters) {
  const std::string name = "gr\xC3\xBC\xC3\x9F-\xE6\xA2\xAF\xE5\xBA\xA6-\xC2\xB5";
  EXPECT_EQ(printable(name), name);
}

}  // namespace
}  // namespace presum::cli
