// SPDX-License-Identifier: Apache-2.0
// What the parts of RunLog share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "presum/run_log.h"
#include "runlog/sqlite.h"

namespace presum {

struct RunLog::State {
  std::filesystem::path file;
  mutable runlog::Database db;
  std::uint64_t version = 0;  // of the schema
};

namespace runlog {

// Calls `read` for every row.
template <class Read>
Status for_each_row(Database& db, std::string_view sql, Read&& read) {
  auto statement = db.prepare(sql);
  if (!statement) return tl::unexpected(statement.error());
  while (true) {
    const auto row = statement->next();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    read(*statement);
  }
}

template <class T, class Read>
Result<std::vector<T>> read_all(Database& db, std::string_view sql, Read&& read) {
  std::vector<T> out;
  const auto done = for_each_row(db, sql, [&](const Statement& row) { out.push_back(read(row)); });
  if (!done) return tl::unexpected(done.error());
  return out;
}

}  // namespace runlog
}  // namespace presum
