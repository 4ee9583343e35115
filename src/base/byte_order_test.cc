// SPDX-License-Identifier: Apache-2.0
#include "base/byte_order.h"

#include <gtest/gtest.h>

namespace presum {
namespace {

TEST(ByteOrder, WritesLittleEndianAndReadsItBack) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.put<std::uint32_t>(0x01020304);
  writer.put(-2.5);
  writer.patch<std::uint16_t>(0, 0xBEEF);
  EXPECT_EQ(bytes[0], std::byte{0xEF});
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint32_t>(), 0x0102BEEFU);
  EXPECT_EQ(reader.get<double>(), -2.5);
  EXPECT_EQ(reader.remaining(), 0U);
}

TEST(ByteOrder, NeverReadsPastTheEnd) {
  const std::vector<std::byte> bytes(7);
  ByteReader reader(bytes);
  EXPECT_FALSE(reader.get<std::uint64_t>());
  EXPECT_TRUE(reader.get<std::uint32_t>());
  EXPECT_FALSE(reader.take(4));
  EXPECT_TRUE(reader.take(3));
}

}  // namespace
}  // namespace presum
