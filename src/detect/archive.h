// SPDX-License-Identifier: Apache-2.0
// Saving and restoring. A class names what is kept of it: `auto kept() { return std::tie(...); }`.
// Restored are vectors of numbers into ones of the same length, other vectors with any length.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/byte_order.h"

namespace presum::detect {

template <class T>
concept Scalar = std::is_arithmetic_v<T>;
template <class T>
concept Keeping = requires(T& value) {
  value.kept();
};

template <class Archive, class... Parts>
void visit_each(Archive& archive, std::tuple<Parts...> parts) {
  std::apply([&](auto&... part) { (archive(part), ...); }, parts);
}

class SavingArchive {
 public:
  explicit SavingArchive(std::vector<std::byte>& out) : out_(out) {}
  void require(bool /*fits*/) {}
  bool ok() const { return true; }

  template <Scalar T>
  void operator()(T& value) {
    out_.put(value);
  }
  template <Keeping T>
  void operator()(T& value) {
    visit_each(*this, value.kept());
  }
  template <std::ranges::range T>
  void operator()(T&& values) {
    for (auto& value : values) (*this)(value);
  }
  template <Scalar T>
  void operator()(std::vector<T>& values) {
    out_.put(std::uint64_t{values.size()});
    out_.put_bytes(std::as_bytes(std::span(values)));
  }
  template <Keeping T>
  void operator()(std::vector<T>& values) {
    out_.put(std::uint64_t{values.size()});
    (*this)(std::span(values));
  }

 private:
  ByteWriter out_;
};

// Stops at the first thing that does not fit; `ok` says whether there was none. Never allocates
// more than a small multiple of what it is given.
class RestoringArchive {
 public:
  explicit RestoringArchive(std::span<const std::byte> bytes) : in_(bytes) {}
  void require(bool fits) { ok_ = ok_ && fits; }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.remaining() == 0; }

  template <Scalar T>
  void operator()(T& value) {
    const auto read = ok_ ? in_.get<T>() : std::nullopt;
    ok_ = read.has_value();
    if (ok_) value = *read;
  }
  template <Keeping T>
  void operator()(T& value) {
    visit_each(*this, value.kept());
  }
  template <std::ranges::range T>
  void operator()(T&& values) {
    for (auto& value : values) (*this)(value);
  }
  template <Scalar T>
  void operator()(std::vector<T>& values) {
    std::uint64_t count = 0;
    (*this)(count);
    require(count == values.size());
    const auto bytes = ok_ ? in_.take(values.size() * sizeof(T)) : std::nullopt;
    ok_ = bytes.has_value();
    if (ok_ && !values.empty()) std::memcpy(values.data(), bytes->data(), bytes->size());
  }
  template <Keeping T>
  void operator()(std::vector<T>& values) {
    constexpr std::size_t kLeastBytes = 16;  // of a saved object
    std::uint64_t count = 0;
    (*this)(count);
    require(count <= in_.remaining() / kLeastBytes);
    values.assign(ok_ ? static_cast<std::size_t>(count) : 0, T{});
    (*this)(std::span(values));
  }

 private:
  ByteReader in_;
  bool ok_ = true;
};

}  // namespace presum::detect
