// SPDX-License-Identifier: Apache-2.0
#include "runlog/sqlite.h"

#include <fmt/format.h>

#include <cctype>

namespace presum::runlog {
namespace {

constexpr const char* kCopyAgain = "copy it again from where it was written, or from a backup";
constexpr const char* kWriteElsewhere = "move it away, and record to a new run folder";

const char* remedy_for(Database::Mode mode) {
  return mode == Database::Mode::kWrite ? kWriteElsewhere : kCopyAgain;
}

// What SQLite says of a file, as one line that says what to do about it.
tl::unexpected<Error> failure(int code, const std::string& file, const char* said,
                              Database::Mode mode) {
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_TOOBIG:  // a length that nobody wrote
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is damaged: {} ({})", file, remedy_for(mode), said));
    case SQLITE_NOTADB:
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is not a presum run log, or is damaged: name a run folder or its "
                              "presum.db; if it is one, {} ({})",
                              file, remedy_for(mode), said));
    default:
      return fail(ErrorCode::kIo, fmt::format("{}: {}", file, said));
  }
}

tl::unexpected<Error> failure(int code, sqlite3* database) {
  const char* file = sqlite3_db_filename(database, "main");
  const bool reads = sqlite3_db_readonly(database, "main") == 1;
  return failure(code, file == nullptr || *file == '\0' ? "run log" : file,
                 sqlite3_errmsg(database), reads ? Database::Mode::kRead : Database::Mode::kWrite);
}

tl::unexpected<Error> failure(sqlite3* database) {
  return failure(sqlite3_extended_errcode(database), database);
}

// A name of a file as a part of a URI.
std::string uri_of(const std::filesystem::path& file) {
  std::string out = "file:";
  for (const char c : std::filesystem::absolute(file).string()) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace

Result<bool> Statement::next() {
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      sqlite3_reset(statement_.get());
      sqlite3_clear_bindings(statement_.get());
      return false;
    default: {
      auto error = failure(sqlite3_db_handle(statement_.get()));
      sqlite3_reset(statement_.get());
      return error;
    }
  }
}

Status Statement::run() {
  const auto row = next();
  if (!row) return tl::unexpected(row.error());
  return {};
}

double Statement::number(int column) const {
  if (sqlite3_column_type(statement_.get(), column) == SQLITE_NULL) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return sqlite3_column_double(statement_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* text = sqlite3_column_text(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  return text == nullptr
             ? std::string()
             : std::string(reinterpret_cast<const char*>(text), static_cast<std::size_t>(bytes));
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const int count = sqlite3_column_bytes(statement_.get(), column);
  return bytes == nullptr ? std::span<const std::byte>()
                          : std::span(bytes, static_cast<std::size_t>(count));
}

Result<Database> Database::open(const std::filesystem::path& file, Mode mode) {
  constexpr int kBusyTimeoutMs = 5'000;
  const int flags =
      mode == Mode::kWrite ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  const bool alone = mode == Mode::kReadFileAlone;
  const auto name = alone ? uri_of(file) + "?immutable=1" : file.string();
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(
      name.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX | (alone ? SQLITE_OPEN_URI : 0), nullptr);
  Database database;
  database.database_.reset(raw);
  if (code != SQLITE_OK) {
    return failure(code, file.string(), sqlite3_errstr(code), mode);
  }
  sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  return database;
}

void Database::leave_the_file_alone() {
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

Status Database::execute(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return failure(database_.get());
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int code =
      sqlite3_prepare_v2(database_.get(), sql.data(), static_cast<int>(sql.size()), &raw, nullptr);
  if (code == SQLITE_ERROR) {  // a table or column that every run log has is missing
    return failure(SQLITE_CORRUPT, database_.get());
  }
  if (code != SQLITE_OK) return failure(database_.get());
  return Statement(raw);
}

Result<std::uint64_t> Database::query_integer(std::string_view sql) {
  auto statement = prepare(sql);
  if (!statement) return tl::unexpected(statement.error());
  const auto row = statement->next();
  if (!row) return tl::unexpected(row.error());
  return *row ? statement->integer(0) : 0;
}

}  // namespace presum::runlog
