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

namespace presum::runlog {
namespace {

std::string random_text() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

Error no_salt(const std::filesystem::path& file) {
  return fail(ErrorCode::kIo, fmt::format("cannot make {}: {} (PRESUM_SALT replaces it)",
                                          file.string(), std::generic_category().message(errno)));
}

// Made under a name of its own and linked into place: another process may do the same.
Status make_file(const std::filesystem::path& file) {
  auto part = file;
  part += fmt::format(".{}", random_text());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return no_salt(part);
  const std::string text = random_text();
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

}  // namespace

Result<std::uint64_t> project_salt(const std::filesystem::path& run) {
  const char* given = std::getenv("PRESUM_SALT");
  if (given != nullptr && *given != '\0') return name_hash(given);
  std::error_code error;
  const auto file = std::filesystem::absolute(run, error).lexically_normal();
  const auto folder = file.has_filename() ? file.parent_path() : file.parent_path().parent_path();
  const auto salt = folder / ".presum-salt";
  // One that is empty was left by a write that failed, by presum 0.1.0 or by something else.
  const auto bytes = std::filesystem::file_size(salt, error);
  if (!error && bytes == 0) std::filesystem::remove(salt, error);
  if (!std::filesystem::exists(salt, error)) {
    if (auto s = make_file(salt); !s) return s.error();
  }
  std::string text;
  if (!(std::ifstream(salt) >> text)) return no_salt(salt);
  return name_hash(text);
}

std::uint64_t random_salt() { return name_hash(random_text()); }

}  // namespace presum::runlog
