// SPDX-License-Identifier: Apache-2.0
#include "cli/page_file.h"

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

std::filesystem::path part_of(const std::filesystem::path& file) {
  auto part = file;
  part += fmt::format(".{}.part", getpid());
  return part;
}

// What is there already and must stay.
Status check_target(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::is_directory(status)) return failed(file, "it is a folder");
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) return failed(file, "it is no file");
  std::ifstream there(file);
  if (there && there.peek() != '<' && there.peek() != EOF) {
    return failed(file, "it exists and is no page, so it is left alone");
  }
  return {};
}

// Empty if it went well.
std::error_code write_part(const std::filesystem::path& part, const std::string& text) {
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  return out.fail() ? std::error_code(errno, std::generic_category()) : std::error_code();
}

}  // namespace

Status write_page_file(const std::filesystem::path& file, const std::string& text) {
  PRESUM_TRY(check_target(file));
  const auto part = part_of(file);
  std::error_code error = write_part(part, text);
  if (!error) std::filesystem::rename(part, file, error);
  if (!error) return {};
  const auto why = error.message();
  std::filesystem::remove(part, error);
  return failed(file, why);
}

Status check_can_write(const std::filesystem::path& file) {
  PRESUM_TRY(check_target(file));
  const auto part = part_of(file);
  const std::error_code error = write_part(part, "");
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  return error ? failed(file, error.message()) : Status{};
}

}  // namespace presum::cli
