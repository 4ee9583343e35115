// SPDX-License-Identifier: Apache-2.0
#include "runlog/open_writer.h"

#include "runlog/salt.h"

namespace presum::runlog {

Result<Writer> open_writer(const std::filesystem::path& run, const MonotonicClock& clock) {
  std::error_code error;
  std::filesystem::create_directories(run, error);
  // Without the project's salt the samples of this run can be compared with no other run's.
  const std::uint64_t salt = project_salt(run).value_or(random_salt());
  const Journal journal = choose_journal(run);
  auto writer = Writer::open(run, clock, journal, salt);
  if (writer || journal == Journal::kWal || writer.error().code != ErrorCode::kIo) return writer;
  return Writer::open(run, clock, Journal::kLocalCopy, salt);
}

}  // namespace presum::runlog
