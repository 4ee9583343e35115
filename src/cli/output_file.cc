// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/try.h"

namespace presum::cli {

namespace {

Status failed(const std::filesystem::path& file, const std::string& why) {
  return fail(ErrorCode::kIo, fmt::format("cannot write {}: {}", file.string(), why));
}

// Refuses to replace anything but an empty file or one that begins with `start`.
Status check_target(const std::filesystem::path& file, std::string_view start) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::is_directory(status)) return failed(file, "it is a folder");
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) return failed(file, "it is no file");
  std::ifstream there(file, std::ios::binary);
  if (!there) return failed(file, "it exists and cannot be read, so it is left alone");
  std::string found(start.size(), '\0');
  there.read(found.data(), static_cast<std::streamsize>(found.size()));
  if (there.gcount() != 0 && found != start) {
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

Status replace_file(const std::filesystem::path& file, const std::string& text,
                    std::string_view start) {
  PRESUM_TRY(check_target(file, start));
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
