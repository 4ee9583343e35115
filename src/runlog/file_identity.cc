// SPDX-License-Identifier: Apache-2.0
#include "runlog/file_identity.h"

#include <utility>

namespace presum::runlog {

FileIdentity::FileIdentity(std::filesystem::path file, bool wal) : file_(std::move(file)) {
  if (wal) {
    log_ = file_.string() + "-wal";
    index_ = file_.string() + "-shm";
  }
  remember();
}

std::optional<FileIdentity::Stamp> FileIdentity::stamp_of(const std::filesystem::path& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0 || info.st_nlink == 0) return std::nullopt;
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return Stamp{info.st_dev, info.st_ino, info.st_size,
               info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec};
}

void FileIdentity::remember() {
  stamp_ = stamp_of(file_);
  if (log_.empty()) return;
  log_stamp_ = stamp_of(log_);
  index_stamp_ = stamp_of(index_);
}

FileIdentity::State FileIdentity::state() const {
  const auto same = [](const Stamp& before, const std::optional<Stamp>& now) {
    return now && now->device == before.device && now->inode == before.inode;
  };
  const auto whole = [&](const std::optional<Stamp>& before, const std::optional<Stamp>& now) {
    return !before || (same(*before, now) && now->size >= before->size);
  };
  const auto now = stamp_of(file_);
  if (!stamp_ || !whole(stamp_, now)) return State::kGone;
  if (log_.empty()) return State::kOurs;
  const auto log = stamp_of(log_);
  if (!whole(index_stamp_, stamp_of(index_)) || (log_stamp_ && !same(*log_stamp_, log))) {
    return State::kGone;
  }
  const bool cut = log_stamp_ && log->size < log_stamp_->size;
  return cut || now->modified_ns != stamp_->modified_ns ? State::kTouched : State::kOurs;
}

}  // namespace presum::runlog
