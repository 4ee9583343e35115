// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace presum::base {
namespace {

TEST(Utf8, CharactersOfEveryLengthStay) {
  const std::string text = "a\u00e9\u20ac\U0001F600";
  EXPECT_EQ(valid_utf8(text), text);
  EXPECT_EQ(valid_utf8(""), "");
  EXPECT_EQ(first_character("\u20acx").code, U'\u20ac');
  EXPECT_EQ(first_character("\u20acx").bytes, 3U);
}

TEST(Utf8, WhatIsNoCharacterIsReplacedByteByByte) {
  EXPECT_EQ(valid_utf8("a\x80z"), "a\uFFFDz") << "a continuation alone";
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\uFFFD\uFFFD") << "cut off";
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\uFFFD\uFFFD") << "too long a form";
  EXPECT_EQ(valid_utf8("\xed\xa0\x80").size(), 9U) << "a surrogate";
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80").size(), 12U) << "above the last one";
}

}  // namespace
}  // namespace presum::base
