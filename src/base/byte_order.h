// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace presum {

static_assert(std::endian::native == std::endian::little,
              "presum stores bytes in little-endian order");

// Appends little-endian scalars to a borrowed byte vector.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(T value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
  void put_bytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const std::size_t at = out_.size();
    out_.resize(at + bytes.size());
    std::memcpy(out_.data() + at, bytes.data(), bytes.size());
  }
  std::size_t size() const { return out_.size(); }

  // REQUIRES: offset + sizeof(T) <= size().
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void patch(std::size_t offset, T value) { std::memcpy(out_.data() + offset, &value, sizeof(T)); }

 private:
  std::vector<std::byte>& out_;
};

// Reads little-endian scalars from borrowed bytes; never reads past the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  requires std::is_trivially_copyable_v<T> std::optional<T> get() {
    const auto bytes = take(sizeof(T));
    if (!bytes) return std::nullopt;
    T value;
    std::memcpy(&value, bytes->data(), sizeof(T));
    return value;
  }
  std::optional<std::span<const std::byte>> take(std::size_t count) {
    if (count > rest_.size()) return std::nullopt;
    const auto head = rest_.first(count);
    rest_ = rest_.subspan(count);
    return head;
  }
  std::size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace presum
