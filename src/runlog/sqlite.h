// SPDX-License-Identifier: Apache-2.0
// SQLite's C interface with owning types, and with Results instead of codes. One thread at a time.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "presum/status.h"

namespace presum::runlog {

// How long a read may search for its next row before it is aborted: an untrusted file may contain
// an endless query.
inline constexpr std::chrono::milliseconds kRowPatience{60'000};

// When to abort the current statement. Shared by a database and its statements.
struct Deadline {
  std::chrono::milliseconds patience = kRowPatience;
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::time_point::max();
};

// A prepared statement. Unbound parameters are NULL. NaN is stored as NULL; NULL is read as NaN.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement, std::shared_ptr<Deadline> deadline = nullptr)
      : statement_(statement), deadline_(std::move(deadline)) {}

  void bind(int at, double value) { sqlite3_bind_double(statement_.get(), at, value); }
  void bind(int at, std::uint64_t value) {
    sqlite3_bind_int64(statement_.get(), at, static_cast<sqlite3_int64>(value));
  }
  void bind(int at, std::uint32_t value) { bind(at, std::uint64_t{value}); }
  void bind(int at, std::string_view value) {
    sqlite3_bind_text(statement_.get(), at, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
  }
  // An empty blob is not NULL.
  void bind_blob(int at, std::span<const std::byte> bytes) {
    if (bytes.empty()) {
      sqlite3_bind_zeroblob(statement_.get(), at, 0);
      return;
    }
    sqlite3_bind_blob(statement_.get(), at, bytes.data(), static_cast<int>(bytes.size()),
                      SQLITE_TRANSIENT);
  }
  // Binds the values in order, starting at parameter 1.
  template <class... Values>
  Statement& with(const Values&... values) {
    int at = 0;
    (bind(++at, values), ...);
    return *this;
  }

  // True: a row is available. False: no more rows; the statement can then be used again.
  Result<bool> next();
  // Runs a statement that returns no rows.
  Status run();

  double number(int column) const;
  std::uint64_t integer(int column) const {
    return static_cast<std::uint64_t>(sqlite3_column_int64(statement_.get(), column));
  }
  std::uint32_t small(int column) const { return static_cast<std::uint32_t>(integer(column)); }
  std::string text(int column) const;  // valid UTF-8; "" for NULL
  int columns() const { return sqlite3_column_count(statement_.get()); }
  // SQLITE_INTEGER, SQLITE_FLOAT, SQLITE_TEXT or SQLITE_NULL.
  int type(int column) const { return sqlite3_column_type(statement_.get(), column); }
  // Valid until the next call of next(). Empty for NULL.
  std::span<const std::byte> blob(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  std::shared_ptr<Deadline> deadline_;  // null: no time limit
};

class Database {
 public:
  // kReadFileAlone: ignores the write-ahead log. kRecover: like kRead, but may roll back a journal.
  enum class Mode { kRead, kWrite, kReadFileAlone, kRecover };
  static Result<Database> open(const std::filesystem::path& file, Mode mode,
                               std::chrono::milliseconds patience = kRowPatience);

  // Closing will neither write to the file nor delete its log.
  void leave_the_file_alone();

  // Whether the last statement failed because this connection is read-only and a journal must be
  // rolled back or a log must be read.
  bool is_to_be_recovered() const;

  Status execute(const char* sql);
  Result<Statement> prepare(std::string_view sql);
  Result<std::uint64_t> query_integer(std::string_view sql);
  std::uint64_t last_row() const {
    return static_cast<std::uint64_t>(sqlite3_last_insert_rowid(database_.get()));
  }

 private:
  struct Close {
    void operator()(sqlite3* d) const { sqlite3_close_v2(d); }
  };
  // Restricts what an untrusted file can do while it is read: run functions, grow without bound,
  // run forever.
  void distrust(std::chrono::milliseconds patience);

  std::unique_ptr<sqlite3, Close> database_;
  std::shared_ptr<Deadline> deadline_;  // for databases opened for reading
};

}  // namespace presum::runlog
