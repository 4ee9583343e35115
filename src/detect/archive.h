// SPDX-License-Identifier: Apache-2.0
// Saving and restoring: one `visit` per class, called with a writer or with a reader.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/byte_order.h"

namespace presum::detect {

template <class T>
concept Scalar = std::is_arithmetic_v<T>;
template <class T, class Archive>
concept Visitable = requires(T& value, Archive& archive) {
  value.visit(archive);
};

class SavingArchive {
 public:
  explicit SavingArchive(std::vector<std::byte>& out) : out_(out) {}

  template <Scalar T>
  void operator()(T& value) {
    out_.put(value);
  }
  template <Scalar T>
  void operator()(std::vector<T>& values) {
    out_.put(std::uint64_t{values.size()});
    out_.put_bytes(std::as_bytes(std::span(values)));
  }
  template <Visitable<SavingArchive> T>
  void operator()(T& value) {
    value.visit(*this);
  }
  template <Visitable<SavingArchive> T>
  void operator()(std::vector<T>& values) {
    out_.put(std::uint64_t{values.size()});
    for (T& value : values) value.visit(*this);
  }

 private:
  ByteWriter out_;
};

// Stops at the first thing that does not fit; `ok` says whether there was none. Never allocates
// more than a small multiple of what it is given.
class RestoringArchive {
 public:
  explicit RestoringArchive(std::span<const std::byte> bytes) : in_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return in_.remaining() == 0; }

  template <Scalar T>
  void operator()(T& value) {
    const auto read = ok_ ? in_.get<T>() : std::nullopt;
    ok_ = read.has_value();
    if (ok_) value = *read;
  }
  template <Scalar T>
  void operator()(std::vector<T>& values) {
    const std::size_t count = length(sizeof(T));
    const auto bytes = ok_ ? in_.take(count * sizeof(T)) : std::nullopt;
    ok_ = bytes.has_value();
    values.assign(ok_ ? count : 0, T{});
    if (!values.empty()) std::memcpy(values.data(), bytes->data(), bytes->size());
  }
  template <Visitable<RestoringArchive> T>
  void operator()(T& value) {
    value.visit(*this);
  }
  template <Visitable<RestoringArchive> T>
  void operator()(std::vector<T>& values) {
    values.assign(length(kLeastBytes), T{});
    for (T& value : values) value.visit(*this);
  }

 private:
  std::size_t length(std::size_t bytes_each) {
    std::uint64_t count = 0;
    (*this)(count);
    ok_ = ok_ && count <= in_.remaining() / bytes_each;
    return ok_ ? static_cast<std::size_t>(count) : 0;
  }

  static constexpr std::size_t kLeastBytes = 16;  // of a saved object

  ByteReader in_;
  bool ok_ = true;
};

}  // namespace presum::detect
