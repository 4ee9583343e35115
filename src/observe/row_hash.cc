// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "presum/fingerprint.h"

namespace presum {
namespace {

constexpr std::uint64_t kSampledColumnsMax = 4096;

// Elements of 1, 2, 4 or 8 bytes, zero-extended.
class Elements {
 public:
  Elements(const void* data, std::uint32_t width)
      : bytes_(static_cast<const unsigned char*>(data)), width_(width) {}
  std::uint64_t operator[](std::uint64_t at) const {
    switch (width_) {
      case 1:
        return bytes_[at];
      case 2:
        return read<std::uint16_t>(at);
      case 4:
        return read<std::uint32_t>(at);
      default:
        return read<std::uint64_t>(at);
    }
  }

 private:
  template <class T>
  T read(std::uint64_t at) const {
    T value;
    std::memcpy(&value, bytes_ + at * sizeof value, sizeof value);
    return value;
  }

  const unsigned char* bytes_;
  std::uint32_t width_;
};

struct ColumnSample {
  std::uint64_t columns;
  std::uint64_t stride;
  std::uint64_t count() const { return (columns + stride - 1) / stride; }
};

// How many places are left when a run of equal elements at the end is taken away.
std::uint64_t without_padding(const Elements& row, std::uint64_t first,
                              const ColumnSample& sample) {
  const std::uint64_t count = sample.count();
  if (count < 2) return count;
  const std::uint64_t last = row[first + (count - 1) * sample.stride];
  std::uint64_t kept = count - 1;
  while (kept > 0 && row[first + (kept - 1) * sample.stride] == last) --kept;
  return kept + 1 == count ? count : std::max<std::uint64_t>(kept, 1);
}

std::uint64_t hash_row(const RowBatch& batch, std::uint64_t row, const ColumnSample& sample) {
  const Elements elements(batch.data, batch.element_bytes);
  const Elements mask(batch.mask, batch.mask_bytes);
  const std::uint64_t first = row * batch.columns;
  const std::uint64_t count =
      batch.mask != nullptr ? sample.count() : without_padding(elements, first, sample);
  std::uint64_t sum = 0;
  std::uint64_t kept = 0;
  for (std::uint64_t place = 0; place < count; ++place) {
    const std::uint64_t column = place * sample.stride;
    if (batch.mask != nullptr && mask[first + column] == 0) continue;
    sum += mix64(elements[first + column] ^ splitmix64(column));
    ++kept;
  }
  return mix64(sum ^ mix64(kept));
}

}  // namespace

void hash_rows(const RowBatch& batch, std::span<std::uint64_t> out) {
  const ColumnSample sample{
      batch.columns,
      std::max<std::uint64_t>(1, (batch.columns + kSampledColumnsMax - 1) / kSampledColumnsMax)};
  for (std::uint64_t row = 0; row < batch.rows; ++row) out[row] = hash_row(batch, row, sample);
}

}  // namespace presum
