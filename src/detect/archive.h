// SPDX-License-Identifier: Apache-2.0
// Saving and restoring. A class lists its saved members: `auto kept() { return std::tie(...); }`. A
// vector of numbers is restored only into one of the same length; other vectors may have any
// length.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ranges>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/byte_order.h"

namespace presum::detect {

// Any bit pattern may be restored.
template <class T>
concept Scalar = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
template <class T>
concept Keeping = requires(T& value) {
  value.kept();
};

// Saves to bytes, or restores from them. Restoring stops at the first value that does not fit; `ok`
// is false from then on. Never allocates more than a small multiple of its input.
class Archive {
 public:
  explicit Archive(std::vector<std::byte>& out) : out_(out), in_({}) {}
  explicit Archive(std::span<const std::byte> in) : in_(in) {}
  void require(bool fits) { ok_ = ok_ && fits; }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.remaining() == 0; }

  template <Scalar T>
  void operator()(T& value) {
    pass(std::as_writable_bytes(std::span(&value, 1)));
  }
  template <Keeping T>
  void operator()(T& value) {
    each(value.kept());
  }
  template <std::ranges::range T>
  void operator()(T&& values) {
    for (auto& value : values) (*this)(value);
  }
  template <Scalar T>
  void operator()(std::vector<T>& values) {
    std::uint64_t count = values.size();
    (*this)(count);
    require(count == values.size());
    pass(std::as_writable_bytes(std::span(values)));
  }
  template <Keeping T>
  void operator()(std::vector<T>& values) {
    constexpr std::size_t kLeastBytes = 16;  // least size of a saved object
    std::uint64_t count = values.size();
    (*this)(count);
    if (!out_) {
      require(count <= in_.remaining() / kLeastBytes);
      values.assign(ok_ ? static_cast<std::size_t>(count) : 0, T{});
    }
    (*this)(std::span(values));
  }
  template <class... Parts>
  void each(std::tuple<Parts...> parts) {
    std::apply([&](auto&... part) { ((*this)(part), ...); }, parts);
  }

 private:
  void pass(std::span<std::byte> bytes) {
    if (out_) return out_->put_bytes(bytes);
    const auto read = ok_ ? in_.take(bytes.size()) : std::nullopt;
    ok_ = read.has_value();
    if (ok_ && !bytes.empty()) std::memcpy(bytes.data(), read->data(), bytes.size());
  }

  std::optional<ByteWriter> out_;
  ByteReader in_;
  bool ok_ = true;
};

}  // namespace presum::detect
