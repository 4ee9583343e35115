// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace presum {

// What kind of thing went wrong; the message says what, where and what to do.
enum class ErrorCode {
  kInvalidArgument,  // the caller's input is wrong
  kNotFound,         // a file, folder or name does not exist
  kCorrupt,          // bytes or a database are damaged
  kIo,               // the operating system refused
  kUnsupported,      // valid, but made by a newer version or not possible here
};

struct Error {
  ErrorCode code;
  std::string message;  // one line, no trailing newline
};

// Errors of operation are returned, never thrown. A Result is as thread-safe as its T.
template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace presum
