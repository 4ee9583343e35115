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

// What is there already and must stay: all but an empty file and one that begins with `first`, as
// every `kind` does.
Status check_target(const std::filesystem::path& file, char first, const char* kind) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::is_directory(status)) return failed(file, "it is a folder");
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) return failed(file, "it is no file");
  std::ifstream there(file);
  if (there && there.peek() != first && there.peek() != EOF) {
    return failed(file, fmt::format("it exists and is no {}, so it is left alone", kind));
  }
  return {};
}

Status write_part(const std::filesystem::path& part, const std::filesystem::path& file,
                  const WriteTo& write) {
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  if (out) PRESUM_TRY(write(out));
  out.close();
  if (!out.fail()) return {};
  return failed(file, std::error_code(errno, std::generic_category()).message());
}

// See check_target().
Status replace_file(const std::filesystem::path& file, char first, const char* kind,
                    const WriteTo& write) {
  PRESUM_TRY(check_target(file, first, kind));
  const auto part = part_of(file);
  auto done = write_part(part, file, write);
  std::error_code error;
  if (done) std::filesystem::rename(part, file, error);
  if (error) done = failed(file, error.message());
  if (!done) std::filesystem::remove(part, error);
  return done;
}

}  // namespace

Status write_page_file(const std::filesystem::path& file, const std::string& text) {
  return replace_file(file, '<', "page", [&](std::ostream& out) {
    out << text;
    return Status();
  });
}

Status write_json_file(const std::filesystem::path& file, const WriteTo& write) {
  return replace_file(file, '{', "JSON object", write);
}

}  // namespace presum::cli
