// SPDX-License-Identifier: Apache-2.0
#include "runlog/file_checks.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "base/try.h"
#include "runlog/schema.h"

namespace presum::runlog {
namespace {

constexpr const char* kRemedy =
    "name a run folder or its presum.db; if it is one, copy it again from where it was written";

// "table" or "view", the name, and one column of a table or the statement of a view; a table also
// has an entry with "".
using Shape = std::set<std::tuple<std::string, std::string, std::string>>;

Result<Shape> shape_of(Database& db) {
  // A virtual table is in sqlite_schema but not in pragma_table_list. A hidden column is computed.
  PRESUM_ASSIGN(
      auto rows,
      db.prepare("WITH t AS (SELECT s.type, s.name, s.sql FROM sqlite_schema s JOIN "
                 "pragma_table_list l ON l.schema = 'main' AND l.name = s.name AND l.type = s.type)"
                 "SELECT type, name, iif(type = 'view', sql, '') FROM t UNION ALL "
                 "SELECT t.type, t.name, c.name FROM t JOIN pragma_table_xinfo(t.name) c "
                 "WHERE t.type = 'table' AND c.hidden = 0"));
  Shape out;
  while (true) {
    PRESUM_ASSIGN(const auto row, rows.next());
    if (!row) return out;
    out.emplace(rows.text(0), rows.text(1), rows.text(2));
  }
}

// Computed once: the shape of a newly created database.
const Shape& expected() {
  static const Shape shape = [] {
    auto db = Database::open(":memory:", Database::Mode::kWrite);
    if (!db || !db->execute(schema().c_str())) return Shape();
    return shape_of(*db).value_or(Shape());
  }();
  return shape;
}

std::string bytes_at(const std::filesystem::path& file, std::streamoff at, std::size_t count) {
  std::string out(count, '\0');
  std::ifstream in(file, std::ios::binary);
  if (!in.seekg(at) || !in.read(out.data(), static_cast<std::streamsize>(count))) return "";
  return out;
}

// The name of a super-journal is at the end of a journal, before these bytes.
bool ends_with(const std::filesystem::path& file, std::string_view bytes) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  if (error || size < bytes.size()) return false;
  return bytes_at(file, static_cast<std::streamoff>(size - bytes.size()), bytes.size()) == bytes;
}

// The first difference from the expected shape; empty if there is none.
std::string difference(const Shape& found) {
  for (const auto& part : expected()) {
    if (found.contains(part)) continue;
    const auto& [type, name, column] = part;
    if (type == "view") return fmt::format("view {} is another", name);
    if (column.empty()) return fmt::format("{} is not a table", name);
    return fmt::format("table {} has other columns", name);
  }
  return "";
}

// A file that is not being written consists of whole pages. SQLite reads over a page that is cut.
bool is_cut(const std::filesystem::path& file, std::uintmax_t size) {
  constexpr std::size_t kPageSizeAt = 16;
  const std::string bytes = bytes_at(file, 0, kPageSizeAt + 2);
  if (!bytes.starts_with("SQLite format 3")) return false;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const std::uintmax_t page = byte(kPageSizeAt + 1) == 1 ? 65536U : 256U * byte(kPageSizeAt);
  std::error_code error;
  for (const char* suffix : {"-journal", "-wal"}) {
    if (std::filesystem::exists(file.string() + suffix, error)) return false;
  }
  return page > 0 && size % page != 0;
}

}  // namespace

Status check_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::is_regular_file(status)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is not a presum run log: it is not a regular file", file.string()));
  }
  PRESUM_TRY(check_side_files(file));
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error) return {};
  if (size == 0) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is not a presum run log: it is empty; {}", file.string(), kRemedy));
  }
  if (is_cut(file, size)) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("{} is damaged: its end is missing; copy it again from where it was "
                            "written",
                            file.string()));
  }
  return {};
}

Status check_side_files(const std::filesystem::path& file) {
  for (const char* suffix : {"-journal", "-wal", "-shm"}) {
    const auto beside = std::filesystem::path(file.string() + suffix);
    std::error_code error;
    const auto status = std::filesystem::status(beside, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("{} is not a presum run log: {} is not a regular file", file.string(),
                              beside.filename().string()));
    }
  }
  return {};
}

Status check_journal(const std::filesystem::path& file) {
  const auto journal = std::filesystem::path(file.string() + "-journal");
  const bool names_another = ends_with(journal, {"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8});
  constexpr std::size_t kApplicationIdAt = 68;
  if (!names_another && bytes_at(file, kApplicationIdAt, 4) == "pres") return {};
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{} is not a presum run log, or its journal is not: {}", file.string(), kRemedy));
}

Status check_identity(Database& db, const std::filesystem::path& file) {
  const auto id = db.query_integer("PRAGMA application_id");
  const auto version = db.query_integer("PRAGMA user_version");
  if (!id) return id.error();
  if (!version) return version.error();
  if (*id != kApplicationId) {
    return fail(ErrorCode::kCorrupt, fmt::format("{} is not a presum run log, or is damaged: {}",
                                                 file.string(), kRemedy));
  }
  if (*version == kSchemaVersion) return {};
  const bool newer = *version > kSchemaVersion;
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} was written by {} presum (schema {}, this one knows {}); {}",
                          file.string(), newer ? "a newer" : "an older", *version, kSchemaVersion,
                          newer ? "update presum" : "read it with that one, or record it again"));
}

Status check_shape(Database& db, const std::filesystem::path& file) {
  PRESUM_ASSIGN(const auto found, shape_of(db));
  const auto wrong = difference(found);
  if (wrong.empty()) return {};
  return fail(ErrorCode::kCorrupt, fmt::format("{} is not a presum run log, or is damaged: {} ({})",
                                               file.string(), kRemedy, wrong));
}

}  // namespace presum::runlog
