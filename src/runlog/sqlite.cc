// SPDX-License-Identifier: Apache-2.0
#include "runlog/sqlite.h"

#include <fmt/format.h>

#include <cctype>

#include "base/try.h"
#include "base/utf8.h"

namespace presum::runlog {
namespace {

constexpr const char* kCopyAgain = "copy it again from where it was written, or from a backup";
constexpr const char* kWriteElsewhere = "move it away, and record to a new run folder";

const char* remedy_for(Database::Mode mode) {
  return mode == Database::Mode::kWrite ? kWriteElsewhere : kCopyAgain;
}

// SQLite's message may quote a whole statement from the file.
std::string one_line(std::string_view said) {
  constexpr std::size_t kBytesMax = 200;
  std::string out;
  for (const char c : said.substr(0, kBytesMax)) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space || (!out.empty() && out.back() != ' ')) out += space ? ' ' : c;
  }
  return said.size() > kBytesMax ? out + "..." : out;
}

// SQLite's error about a file, as one line that says what to do.
Error failure(int code, const std::string& file, const char* message, Database::Mode mode) {
  const auto said = one_line(message);
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_TOOBIG:  // a damaged length
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is damaged: {} ({})", file, remedy_for(mode), said));
    case SQLITE_NOTADB:
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is not a presum run log, or is damaged: name a run folder or its "
                              "presum.db; if it is one, {} ({})",
                              file, remedy_for(mode), said));
    case SQLITE_BUSY:
      if (mode != Database::Mode::kRead) break;
      return fail(ErrorCode::kIo,
                  fmt::format("{} is in use: on a network file system, a run can be read when it "
                              "has ended ({})",
                              file, said));
    case SQLITE_INTERRUPT:
      return fail(
          ErrorCode::kCorrupt,
          fmt::format("{} is damaged, or too large: no answer within the time that a row may take",
                      file));
    default:
      break;
  }
  return fail(ErrorCode::kIo, fmt::format("{}: {}", file, said));
}

Error failure(int code, sqlite3* database) {
  const char* file = sqlite3_db_filename(database, "main");
  const bool reads = sqlite3_db_readonly(database, "main") == 1;
  return failure(code, file == nullptr || *file == '\0' ? "run log" : file,
                 sqlite3_errmsg(database), reads ? Database::Mode::kRead : Database::Mode::kWrite);
}

Error failure(sqlite3* database) { return failure(sqlite3_extended_errcode(database), database); }

// A file name as part of a URI.
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
  if (deadline_) deadline_->at = std::chrono::steady_clock::now() + deadline_->patience;
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
      sqlite3_clear_bindings(statement_.get());
      return error;
    }
  }
}

Status Statement::run() {
  PRESUM_TRY(next());
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
  if (text == nullptr) return "";
  return base::valid_utf8({reinterpret_cast<const char*>(text), static_cast<std::size_t>(bytes)});
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  const int count = sqlite3_column_bytes(statement_.get(), column);
  return bytes == nullptr ? std::span<const std::byte>()
                          : std::span(bytes, static_cast<std::size_t>(count));
}

Result<Database> Database::open(const std::filesystem::path& file, Mode mode,
                                std::chrono::milliseconds patience) {
  const int busy_timeout_ms = mode == Mode::kRead ? 2'000 : 5'000;
  const int flags = mode == Mode::kWrite     ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE
                    : mode == Mode::kRecover ? SQLITE_OPEN_READWRITE
                                             : SQLITE_OPEN_READONLY;
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
  sqlite3_busy_timeout(raw, busy_timeout_ms);
  if (mode != Mode::kWrite) database.distrust(patience);
  return database;
}

void Database::distrust(std::chrono::milliseconds patience) {
  constexpr int kBytesMax = 256 << 20;  // limit for one value
  constexpr int kStatementBytesMax = 1 << 20;
  constexpr int kInstructions = 100'000;  // between two checks of the clock
  sqlite3* const db = database_.get();
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kBytesMax);
  sqlite3_limit(db, SQLITE_LIMIT_SQL_LENGTH, kStatementBytesMax);
  sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_limit(db, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
  deadline_ = std::make_shared<Deadline>(Deadline{.patience = patience});
  const auto is_late = [](void* deadline) {
    return std::chrono::steady_clock::now() > static_cast<const Deadline*>(deadline)->at ? 1 : 0;
  };
  sqlite3_progress_handler(db, kInstructions, is_late, deadline_.get());
}

void Database::leave_the_file_alone() {
  sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

bool Database::is_to_be_recovered() const {
  const int code = sqlite3_errcode(database_.get()) & 0xFF;
  return code == SQLITE_READONLY || code == SQLITE_CANTOPEN;
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
  return Statement(raw, deadline_);
}

Result<std::uint64_t> Database::query_integer(std::string_view sql) {
  PRESUM_ASSIGN(auto statement, prepare(sql));
  PRESUM_ASSIGN(const auto row, statement.next());
  return row ? statement.integer(0) : 0;
}

}  // namespace presum::runlog
