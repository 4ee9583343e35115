// SPDX-License-Identifier: Apache-2.0
#include "cli/write_whole.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

namespace presum::cli {

Status write_whole(const std::filesystem::path& file, const std::string& text) {
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", file.string(), why));
  };
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) return failed("it is a folder");
  if (std::ifstream there(file); there && there.peek() != '<' && there.peek() != EOF) {
    return failed("it exists and is no page, so it is left alone");
  }
  auto part = file;
  part += fmt::format(".{}.part", getpid());
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  if (out.fail()) {
    error = std::error_code(errno, std::generic_category());
  } else {
    std::filesystem::rename(part, file, error);
  }
  if (!error) return {};
  const auto why = error.message();
  std::filesystem::remove(part, error);
  return failed(why);
}

}  // namespace presum::cli
