// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hash.h"
#include "device/host_device.h"

// What each thread of the CUDA kernel that hashes a batch's rows does (docs/packet_format.md, "Row
// hash"). Each row has one block of threads; thread t handles the sampled places t, t +
// kRowThreads, ... All arithmetic is on integers, so the order of threads does not matter.
namespace presum::observe::cuda {

inline constexpr unsigned kRowThreads = 256;
inline constexpr std::uint64_t kRowPlaces = 4096;

struct Rows {
  const void* data;  // contiguous, elements of 1, 2, 4 or 8 bytes
  const void* mask;  // same shape as the data; nullptr: no mask
  std::uint64_t columns;
  std::uint32_t element_bytes;
  std::uint32_t mask_bytes;
  std::uint64_t* hashes;  // one per row

  std::uint64_t stride() const {
    return columns <= kRowPlaces ? 1 : (columns + kRowPlaces - 1) / kRowPlaces;
  }
  std::uint64_t places() const { return (columns + stride() - 1) / stride(); }
};

inline std::uint64_t element_at(const void* data, std::uint32_t width, std::uint64_t i) {
  switch (width) {
    case 1:
      return static_cast<const std::uint8_t*>(data)[i];
    case 2:
      return static_cast<const std::uint16_t*>(data)[i];
    case 4:
      return static_cast<const std::uint32_t*>(data)[i];
    default:
      return static_cast<const std::uint64_t*>(data)[i];
  }
}

inline std::uint64_t row_element(const Rows& rows, std::uint64_t row, std::uint64_t place) {
  return element_at(rows.data, rows.element_bytes, row * rows.columns + place * rows.stride());
}

// One plus the thread's last place whose element differs from that of the last place.
inline std::uint64_t last_other(const Rows& rows, std::uint64_t row, unsigned thread) {
  const std::uint64_t places = rows.places();
  if (places == 0) return 0;
  const std::uint64_t last = row_element(rows, row, places - 1);
  std::uint64_t found = 0;
  for (std::uint64_t place = thread; place < places; place += kRowThreads) {
    if (row_element(rows, row, place) != last) found = place + 1;
  }
  return found;
}

// The number of places without a run of equal elements at the end; `other` is the largest
// last_other() of all threads.
inline std::uint64_t without_padding(const Rows& rows, std::uint64_t other) {
  const std::uint64_t places = rows.places();
  if (places < 2 || other + 1 == places) return places;
  return other == 0 ? 1 : other;
}

struct RowShare {
  std::uint64_t sum, kept;
};

// One thread's share of a row's first `left` places; with a mask, of those that it keeps.
inline RowShare row_share(const Rows& rows, std::uint64_t row, std::uint64_t left,
                          unsigned thread) {
  RowShare share{0, 0};
  for (std::uint64_t place = thread; place < left; place += kRowThreads) {
    const std::uint64_t column = place * rows.stride();
    if (rows.mask != nullptr &&
        element_at(rows.mask, rows.mask_bytes, row * rows.columns + column) == 0) {
      continue;
    }
    share.sum += mix64(row_element(rows, row, place) ^ splitmix64(column));
    ++share.kept;
  }
  return share;
}

inline std::uint64_t row_hash(const RowShare& whole) {
  return mix64(whole.sum ^ mix64(whole.kept));
}

}  // namespace presum::observe::cuda
