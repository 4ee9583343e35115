// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/hash.h"
#include "base/simd_dispatch.h"
#include "presum/fingerprint.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "observe/row_hash.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

#ifndef PRESUM_OBSERVE_ROW_HASH_ONCE
#define PRESUM_OBSERVE_ROW_HASH_ONCE

namespace presum {
namespace {

template <class Element>
Element element_at(const std::uint8_t* elements, std::size_t at) {
  Element element;
  std::memcpy(&element, elements + at * sizeof element, sizeof element);
  return element;
}

struct Mixed {
  std::uint64_t sum = 0;
  std::uint64_t kept = 0;

  void add_word(const std::uint8_t* words, const std::uint64_t* keys, const std::uint8_t* flags,
                std::size_t at) {
    if (flags != nullptr && element_at<std::uint64_t>(flags, at) == 0) return;
    sum += mix64(element_at<std::uint64_t>(words, at) ^ keys[at]);
    ++kept;
  }
};

}  // namespace
}  // namespace presum

#endif  // PRESUM_OBSERVE_ROW_HASH_ONCE

HWY_BEFORE_NAMESPACE();
namespace presum {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using namespace base::HWY_NAMESPACE;

// Modulo 2^64.
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE hn::Vec<LongWords> product(hn::Vec<LongWords> x, std::uint64_t factor) {
  return hn::Mul(x, hn::Set(LongWords(), factor));
}
#else
HWY_INLINE hn::Vec<LongWords> product(hn::Vec<LongWords> x, std::uint64_t factor) {
  const Words d;
  const auto words = hn::BitCast(d, x);
  const auto lower = hn::BitCast(d, hn::Set(LongWords(), factor & 0xFFFFFFFF));
  const auto upper = hn::BitCast(d, hn::Set(LongWords(), factor >> 32));
  // Swaps instead of shifting: processors have more units for that.
  const auto crossed =
      hn::Add(hn::MulEven(words, upper), hn::MulEven(hn::Shuffle2301(words), lower));
  return hn::Add(hn::MulEven(words, lower), hn::ShiftLeft<32>(crossed));
}
#endif

HWY_INLINE hn::Vec<LongWords> mixed(hn::Vec<LongWords> x) {
  x = product(hn::Xor(x, hn::ShiftRight<30>(x)), 0xBF58476D1CE4E5B9ULL);
  x = product(hn::Xor(x, hn::ShiftRight<27>(x)), 0x94D049BB133111EBULL);
  return hn::Xor(x, hn::ShiftRight<31>(x));
}

template <bool kFlags>
HWY_INLINE Mixed sum_with(const std::uint8_t* words, const std::uint64_t* keys,
                          const std::uint8_t* flags, std::size_t count) {
  const LongWords d;
  const std::size_t in_vectors = count / kDoubleLanes * kDoubleLanes;
  auto sums = hn::Zero(d), left_out = hn::Zero(d);
  for (std::size_t i = 0; i < in_vectors; i += kDoubleLanes) {
    const auto x = load(d, words + i * sizeof *keys);
    auto one = mixed(hn::Xor(x, hn::LoadU(d, keys + i)));
    if constexpr (kFlags) {
      const auto zero = hn::Eq(load(d, flags + i * sizeof *keys), hn::Zero(d));
      one = hn::IfThenZeroElse(zero, one);
      left_out = hn::Sub(left_out, hn::VecFromMask(d, zero));
    }
    sums = hn::Add(sums, one);
  }
  Mixed all{hn::GetLane(hn::SumOfLanes(d, sums)),
            in_vectors - hn::GetLane(hn::SumOfLanes(d, left_out))};
  for (std::size_t i = in_vectors; i < count; ++i) all.add_word(words, keys, flags, i);
  return all;
}

// The sum of mix64 of each word with its key, over the words whose flag is nonzero (all words if
// `flags` is null). Words and flags may be misaligned.
Mixed sum_of_mixed(const std::uint8_t* words, const std::uint64_t* keys, const std::uint8_t* flags,
                   std::size_t count) {
  return flags == nullptr ? sum_with<false>(words, keys, flags, count)
                          : sum_with<true>(words, keys, flags, count);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum {
namespace {

HWY_EXPORT(sum_of_mixed);

constexpr std::uint64_t kSampledColumnsMax = 4096;
constexpr std::size_t kBlock = 512;  // places that are gathered together, in the first-level cache

// Calls `work` with a value of the unsigned type of 1, 2, 4 or 8 bytes.
template <class Work>
auto with_width(std::uint32_t bytes, const Work& work) {
  switch (bytes) {
    case 1:
      return work(std::uint8_t{});
    case 2:
      return work(std::uint16_t{});
    case 4:
      return work(std::uint32_t{});
    default:
      return work(std::uint64_t{});
  }
}

// Elements of 1, 2, 4 or 8 bytes, possibly misaligned, of which each stride-th is read.
struct Elements {
  const std::uint8_t* bytes;
  std::uint32_t width;
  std::size_t stride;

  // The elements from a place on.
  Elements from(std::size_t place) const { return {bytes + place * stride * width, width, stride}; }

  // The number of places without a run of equal elements at the end.
  std::size_t without_padding(std::size_t places) const {
    if (places < 2) return places;
    return with_width(width, [&](auto type) {
      using Element = decltype(type);
      const auto last = element_at<Element>(bytes, (places - 1) * stride);
      std::size_t kept = places - 1;
      while (kept > 0 && element_at<Element>(bytes, (kept - 1) * stride) == last) --kept;
      return kept + 1 == places ? places : std::max<std::size_t>(kept, 1);
    });
  }

  // The first `count` elements as words; converted into `room` unless they already are words in
  // memory.
  const std::uint8_t* words(std::size_t count, std::uint64_t* room) const {
    if (width == sizeof *room && stride == 1) return bytes;
    with_width(width, [&](auto type) {
      using Element = decltype(type);
      for (std::size_t i = 0; i < count; ++i) room[i] = element_at<Element>(bytes, i * stride);
    });
    return reinterpret_cast<const std::uint8_t*>(room);
  }
};

class RowHasher {
 public:
  explicit RowHasher(const RowBatch& batch)
      : batch_(batch),
        stride_(std::max<std::uint64_t>(
            1, (batch.columns + kSampledColumnsMax - 1) / kSampledColumnsMax)),
        places_((batch.columns + stride_ - 1) / stride_) {
    for (std::size_t place = 0; place < places_; ++place) {
      keys_[place] = splitmix64(place * stride_);
    }
  }

  std::uint64_t hash(std::uint64_t row) const {
    const Elements elements = row_of(batch_.data, batch_.element_bytes, row);
    const Elements mask = row_of(batch_.mask, batch_.mask_bytes, row);
    const std::size_t places = batch_.mask != nullptr ? places_ : elements.without_padding(places_);
    std::uint64_t sum = 0, kept = 0;
    for (std::size_t place = 0; place < places; place += kBlock) {
      std::array<std::uint64_t, kBlock> words, flags;
      const std::size_t size = std::min(kBlock, places - place);
      const Mixed part = PRESUM_SIMD_DISPATCH(sum_of_mixed)(
          elements.from(place).words(size, words.data()), keys_.data() + place,
          batch_.mask != nullptr ? mask.from(place).words(size, flags.data()) : nullptr, size);
      sum += part.sum;
      kept += part.kept;
    }
    return mix64(sum ^ mix64(kept));
  }

 private:
  Elements row_of(const void* data, std::uint32_t width, std::uint64_t row) const {
    const std::uint64_t first = data == nullptr ? 0 : row * batch_.columns * width;
    return {static_cast<const std::uint8_t*>(data) + first, width, stride_};
  }

  const RowBatch& batch_;
  std::size_t stride_;
  std::size_t places_;
  std::array<std::uint64_t, kSampledColumnsMax> keys_;  // splitmix64 of the column of each place
};

}  // namespace

void hash_rows(const RowBatch& batch, std::span<std::uint64_t> out) {
  const RowHasher hasher(batch);
  for (std::uint64_t row = 0; row < batch.rows; ++row) out[row] = hasher.hash(row);
}

}  // namespace presum

#endif  // HWY_ONCE
