// SPDX-License-Identifier: Apache-2.0
#include "runlog/file_watch.h"

#include <utility>

namespace presum::runlog {

FileWatch::FileWatch(std::filesystem::path file, bool wal) : file_(std::move(file)) {
  if (wal) log_ = file_.string() + "-wal";
  remember();
}

std::optional<FileWatch::Seen> FileWatch::see(const std::filesystem::path& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0 || info.st_nlink == 0) return std::nullopt;
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return Seen{info.st_dev, info.st_ino, info.st_size,
              info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec};
}

void FileWatch::remember() {
  seen_ = see(file_);
  if (!log_.empty()) seen_log_ = see(log_);
}

FileWatch::State FileWatch::look() const {
  const auto same = [](const Seen& before, const std::optional<Seen>& now) {
    return now && now->device == before.device && now->inode == before.inode;
  };
  const auto now = see(file_);
  if (!seen_ || !same(*seen_, now) || now->size < seen_->size) return State::kGone;
  if (seen_log_ && !same(*seen_log_, see(log_))) return State::kGone;
  const bool written = !log_.empty() && now->modified_ns != seen_->modified_ns;
  return written ? State::kTouched : State::kOurs;
}

}  // namespace presum::runlog
