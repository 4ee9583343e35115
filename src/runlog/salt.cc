// SPDX-License-Identifier: Apache-2.0
#include "runlog/salt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <system_error>

#include "base/hash.h"
#include "base/try.h"

namespace presum::runlog {
namespace {

using Path = std::filesystem::path;

std::string random_text() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

Error no_salt(const std::filesystem::path& file) {
  return fail(ErrorCode::kIo, fmt::format("cannot make {}: {} (PRESUM_SALT replaces it)",
                                          file.string(), std::generic_category().message(errno)));
}

// Creates the file under a temporary name and links it into place, because another process may do
// the same.
Status make_file(const Path& file, const std::string& text) {
  auto part = file;
  part += fmt::format(".{}", random_text());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return no_salt(part);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = ::close(fd) == 0;
  const bool linked = written && closed &&
                      (::link(part.c_str(), file.c_str()) == 0 || errno == EEXIST ||
                       ::rename(part.c_str(), file.c_str()) == 0);
  const Error why = no_salt(file);
  static_cast<void>(::unlink(part.c_str()));
  if (!linked) return why;
  return {};
}

bool is_there(const Path& file) {
  std::error_code error;
  // An empty file was left by a failed write, by presum 0.1.0 or by something else.
  const auto bytes = std::filesystem::file_size(file, error);
  if (!error && bytes == 0) std::filesystem::remove(file, error);
  return std::filesystem::exists(file, error);
}

Result<std::string> read_file(const Path& file) {
  std::string text;
  if (!(std::ifstream(file) >> text)) return no_salt(file);
  return text;
}

// The file next to the run folder.
Path file_of_folder(const Path& run) {
  std::error_code error;
  const auto file = std::filesystem::absolute(run, error).lexically_normal();
  const auto folder = file.has_filename() ? file.parent_path() : file.parent_path().parent_path();
  return folder / ".presum-salt";
}

// Empty if the user has no folder for it.
Path file_of_user() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? Path() : Path(value);
  };
  const Path config = variable("XDG_CONFIG_HOME");
  if (config.is_absolute()) return config / "presum" / "salt";
  const Path home = variable("HOME");
  return home.is_absolute() ? home / ".config" / "presum" / "salt" : Path();
}

// Creates the user's file if it is absent. Then it also creates the one next to the run folder,
// because the home folder may be temporary, as in a container.
Result<std::string> salt_of_user(const Path& of_folder) {
  const Path file = file_of_user();
  if (file.empty()) return fail(ErrorCode::kIo, "no home");
  if (is_there(file)) return read_file(file);
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  PRESUM_TRY(make_file(file, random_text()));
  PRESUM_ASSIGN(const auto text, read_file(file));
  static_cast<void>(make_file(of_folder, text));
  return text;
}

Result<std::string> salt_text(const Path& of_folder) {
  if (!is_there(of_folder)) {
    if (auto text = salt_of_user(of_folder)) return text;
    PRESUM_TRY(make_file(of_folder, random_text()));
  }
  return read_file(of_folder);
}

}  // namespace

Result<std::uint64_t> project_salt(const std::filesystem::path& run) {
  const char* given = std::getenv("PRESUM_SALT");
  if (given != nullptr && *given != '\0') return name_hash(given);
  PRESUM_ASSIGN(const auto text, salt_text(file_of_folder(run)));
  return name_hash(text);
}

std::uint64_t random_salt() { return name_hash(random_text()); }

}  // namespace presum::runlog
