// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "base/hash.h"
#include "base/testing.h"
#include "presum/fingerprint.h"

namespace presum {
namespace {

template <class T>
std::vector<std::uint64_t> hashes(const std::vector<T>& data, std::uint64_t rows,
                                  const std::vector<std::uint8_t>& mask = {}) {
  std::vector<std::uint64_t> out(rows);
  hash_rows({.data = data.data(),
             .rows = rows,
             .columns = rows == 0 ? 0 : data.size() / rows,
             .element_bytes = sizeof(T),
             .mask = mask.empty() ? nullptr : mask.data(),
             .mask_bytes = 1},
            out);
  return out;
}

// The definition in docs/packet_format.md, applied to the kept (column, element) pairs.
std::uint64_t by_definition(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& kept) {
  std::uint64_t sum = 0;
  for (const auto& [column, value] : kept) sum += mix64(value ^ splitmix64(column));
  return mix64(sum ^ mix64(kept.size()));
}

TEST(RowHash, IsTheDefinition) {
  EXPECT_EQ(hashes<std::int64_t>({5, 6, 7}, 1)[0], by_definition({{0, 5}, {1, 6}, {2, 7}}));
  EXPECT_EQ(hashes<std::uint16_t>({5, 65535}, 1)[0], by_definition({{0, 5}, {1, 65535}}));
}

TEST(RowHash, WidthsOfWholeNumbersAgree) {
  EXPECT_EQ(hashes<std::int64_t>({1, 2, 3, 100}, 2), hashes<std::int32_t>({1, 2, 3, 100}, 2));
  EXPECT_EQ(hashes<std::int64_t>({1, 2, 3, 100}, 2), hashes<std::uint8_t>({1, 2, 3, 100}, 2));
}

TEST(RowHash, PaddingIsLeftOut) {
  const auto bare = hashes<std::int64_t>({5, 6, 7}, 1)[0];
  EXPECT_EQ(hashes<std::int64_t>({5, 6, 7, 0, 0, 0}, 1)[0], bare);
  EXPECT_EQ(hashes<std::int64_t>({5, 6, 7, 9, 1}, 1, {1, 1, 1, 0, 0})[0], bare);
  EXPECT_NE(hashes<std::int64_t>({5, 6, 7, 8}, 1)[0], bare);
}

TEST(RowHash, ConstantRowsDiffer) {
  EXPECT_NE(hashes<std::int64_t>({0, 0, 0}, 1), hashes<std::int64_t>({1, 1, 1}, 1));
  EXPECT_EQ(hashes<std::int64_t>({0, 0, 0}, 1)[0], by_definition({{0, 0}}));
}

TEST(RowHash, OrderAndLeftPaddingMatter) {
  EXPECT_NE(hashes<std::int64_t>({1, 2, 3}, 1), hashes<std::int64_t>({2, 1, 3}, 1));
  EXPECT_EQ(hashes<std::int64_t>({0, 5, 6}, 1, {0, 1, 1})[0], by_definition({{1, 5}, {2, 6}}));
}

// The columns and elements of one row that the definition keeps; mask: null, or the row's mask.
template <class Element, class Mask>
std::vector<std::pair<std::uint64_t, std::uint64_t>> kept_of(const Element* row, const Mask* mask,
                                                             std::size_t columns) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> kept;
  for (std::size_t column = 0; column < columns; column += (columns + 4095) / 4096) {
    if (mask == nullptr || mask[column] != 0) kept.emplace_back(column, row[column]);
  }
  if (mask != nullptr || kept.size() < 2) return kept;
  const std::uint64_t last = kept.back().second;
  if (kept[kept.size() - 2].second != last) return kept;
  while (kept.size() > 1 && kept.back().second == last) kept.pop_back();
  return kept;
}

template <class Element, class Mask>
void expect_definition(std::size_t columns, bool masked, bool padded) {
  constexpr std::size_t kRows = 3;
  std::mt19937_64 random(columns);
  std::vector<Element> data(kRows * columns);
  std::vector<Mask> mask(kRows * columns);
  for (Element& element : data) element = static_cast<Element>(random());
  for (Mask& one : mask) one = static_cast<Mask>(random() % 3);
  std::vector<std::uint64_t> expected, found(kRows);
  for (std::size_t first = 0; first < data.size(); first += columns) {
    if (padded) std::fill_n(data.begin() + first + columns / 2, (columns + 1) / 2, Element{7});
    expected.push_back(by_definition(
        kept_of(data.data() + first, masked ? mask.data() + first : nullptr, columns)));
  }
  hash_rows({.data = data.data(),
             .rows = kRows,
             .columns = columns,
             .element_bytes = sizeof(Element),
             .mask = masked ? mask.data() : nullptr,
             .mask_bytes = sizeof(Mask)},
            found);
  EXPECT_EQ(found, expected) << columns << " columns of " << sizeof(Element) << " bytes, masked "
                             << masked << ", padded " << padded;
}

TEST(RowHash, EveryTargetGivesTheDefinition) {
  base::on_every_target([&] {
    for (const std::size_t columns : {1, 2, 7, 8, 9, 31, 511, 512, 513, 1030, 4096, 4097, 9001}) {
      for (const bool masked : {false, true}) {
        for (const bool padded : {false, true}) {
          expect_definition<std::uint8_t, std::uint64_t>(columns, masked, padded);
          expect_definition<std::uint16_t, std::uint32_t>(columns, masked, padded);
          expect_definition<std::uint32_t, std::uint16_t>(columns, masked, padded);
          expect_definition<std::uint64_t, std::uint8_t>(columns, masked, padded);
        }
      }
    }
  });
}

TEST(RowHash, NothingIsFine) {
  EXPECT_TRUE(hashes<std::int64_t>({}, 0).empty());
  EXPECT_EQ(hashes<std::int64_t>({}, 2), (std::vector<std::uint64_t>(2, by_definition({}))));
  EXPECT_EQ(hashes<std::int64_t>({1, 2}, 1, {0, 0})[0], by_definition({}));
}

TEST(RowHash, RandomRowsDoNotCollide) {
  std::mt19937_64 random(7);
  std::vector<std::int64_t> data(20'000 * 4);
  for (auto& x : data) x = static_cast<std::int64_t>(random() % 50'000);
  auto all = hashes(data, 20'000);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

}  // namespace
}  // namespace presum
