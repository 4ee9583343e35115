// SPDX-License-Identifier: Apache-2.0
#include "runlog/file_watch.h"

#include <utility>

namespace presum::runlog {

FileWatch::FileWatch(std::filesystem::path file, bool wal) : file_(std::move(file)) {
  if (wal) {
    log_ = file_.string() + "-wal";
    index_ = file_.string() + "-shm";
  }
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
  if (log_.empty()) return;
  seen_log_ = see(log_);
  seen_index_ = see(index_);
}

FileWatch::State FileWatch::look() const {
  const auto same = [](const Seen& before, const std::optional<Seen>& now) {
    return now && now->device == before.device && now->inode == before.inode;
  };
  const auto whole = [&](const std::optional<Seen>& before, const std::optional<Seen>& now) {
    return !before || (same(*before, now) && now->size >= before->size);
  };
  const auto now = see(file_);
  if (!seen_ || !whole(seen_, now)) return State::kGone;
  if (log_.empty()) return State::kOurs;
  const auto log = see(log_);
  if (!whole(seen_index_, see(index_)) || (seen_log_ && !same(*seen_log_, log))) {
    return State::kGone;
  }
  const bool cut = seen_log_ && log->size < seen_log_->size;
  return cut || now->modified_ns != seen_->modified_ns ? State::kTouched : State::kOurs;
}

}  // namespace presum::runlog
