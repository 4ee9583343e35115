// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace presum {

// The kind of an error. The message says what went wrong, where, and what to do.
enum class ErrorCode {
  kInvalidArgument,  // the caller's input is invalid
  kNotFound,         // a file, folder or name does not exist
  kCorrupt,          // bytes or a database are damaged
  kIo,               // the operating system refused
  kUnsupported,      // valid, but written by a newer version or not possible here
};

struct Error {
  ErrorCode code;
  std::string message;  // one line, no trailing newline
};

inline Error fail(ErrorCode code, std::string message) { return {code, std::move(message)}; }

// A value, or the error in its place. Errors of operation are returned, never thrown. As
// thread-safe as T; owns its content. After a move, the value is a moved-from T.
template <class T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T> && !std::same_as<T, Error>);

 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const noexcept { return state_.index() == 0; }

  // REQUIRES: it holds a value.
  const T& operator*() const& { return held(*this); }
  T& operator*() & { return held(*this); }
  T&& operator*() && { return std::move(held(*this)); }
  const T* operator->() const { return &held(*this); }
  T* operator->() { return &held(*this); }

  template <class U>
  T value_or(U&& other) const& {
    return *this ? **this : static_cast<T>(std::forward<U>(other));
  }
  template <class U>
  T value_or(U&& other) && {
    return *this ? *std::move(*this) : static_cast<T>(std::forward<U>(other));
  }

  // Returns whether it holds a value equal to `value`.
  template <class U>
  friend bool operator==(const Result& result, const U& value) {
    return result && *result == value;
  }

  // REQUIRES: it holds an error.
  const Error& error() const {
    const Error* const found = std::get_if<1>(&state_);
    assert(found != nullptr);
    return *found;
  }

 private:
  template <class Self>
  static auto& held(Self& self) {
    auto* const found = std::get_if<0>(&self.state_);
    assert(found != nullptr);
    return *found;
  }

  std::variant<T, Error> state_;
};

// Success, or an error.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  explicit operator bool() const noexcept { return !error_; }

  // REQUIRES: it holds an error.
  const Error& error() const {
    assert(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace presum
