// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/try.h"

namespace presum::cli {

namespace {

Status failed(const std::filesystem::path& file, const std::string& why) {
  return fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", file.string(), why));
}

// Refuses to replace anything but an empty file or one that begins like the new one.
Status check_target(const std::filesystem::path& file, char first) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::is_directory(status)) return failed(file, "it is a folder");
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) return failed(file, "it is no file");
  std::ifstream there(file);
  if (there && there.peek() != first && there.peek() != EOF) {
    return failed(file, "it exists and holds something else, so it is left alone");
  }
  return {};
}

Status write_part(const std::filesystem::path& part, const std::filesystem::path& file,
                  const std::string& text) {
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  if (!out.fail()) return {};
  return failed(file, std::error_code(errno, std::generic_category()).message());
}

}  // namespace

Status replace_file(const std::filesystem::path& file, const std::string& text) {
  PRESUM_TRY(check_target(file, text.front()));
  auto part = file;
  part += fmt::format(".{}.part", getpid());
  auto done = write_part(part, file, text);
  std::error_code error;
  if (done) std::filesystem::rename(part, file, error);
  if (error) done = failed(file, error.message());
  if (!done) std::filesystem::remove(part, error);
  return done;
}

}  // namespace presum::cli
