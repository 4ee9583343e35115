// SPDX-License-Identifier: Apache-2.0
// Columns of tables as data: what a column is called, what it means, and how it goes from a record
// into a row and back. Statements, views, frames and the document come from these.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/try.h"
#include "presum/run_log.h"
#include "runlog/sqlite.h"

namespace presum::runlog {

enum class Type : std::uint8_t { kInteger, kReal, kText, kBlob };

struct ColumnText {
  std::string_view meaning;
  std::string_view unit = {};
  std::string_view unknown = {};  // what NULL says
};

// How views and frames show a column.
enum class Display : std::uint8_t { kAsIs, kHex, kHidden };

template <class Record>
struct Column {
  const char* name = "";
  Type type = Type::kInteger;
  bool nullable = false;
  bool small = false;  // an integer of 32 bits or fewer
  ColumnText text = {};
  void (*bind)(Statement&, int at, const Record&) = nullptr;
  void (*read)(const Statement&, int at, Record&) = nullptr;
  Display shown = Display::kAsIs;
  std::span<const char* const> names = {};  // of 0, 1, ...: views show these

  Column hidden() const { return as(Display::kHidden); }
  Column hex() const { return as(Display::kHex); }

 private:
  Column as(Display how) const {
    Column out = *this;
    out.shown = how;
    return out;
  }
};

// How a value becomes a cell: NaN, an empty optional and an empty array are NULL.
template <class T>
struct Codec;

template <>
struct Codec<double> {
  static constexpr Type kType = Type::kReal;
  static constexpr bool kNullable = true;
  static void bind(Statement& row, int at, double value) { row.bind(at, value); }
  static double read(const Statement& row, int at) { return row.number(at); }
};

template <class T>
requires std::integral<T> || std::is_enum_v<T>
struct Codec<T> {
  static constexpr Type kType = Type::kInteger;
  static constexpr bool kNullable = false;
  static void bind(Statement& row, int at, T value) {
    row.bind(at, static_cast<std::uint64_t>(value));
  }
  // What is larger than T is read as its largest value.
  static T read(const Statement& row, int at) {
    if constexpr (std::is_unsigned_v<T> && !std::is_same_v<T, bool>) {
      return static_cast<T>(
          std::min<std::uint64_t>(row.integer(at), std::numeric_limits<T>::max()));
    } else {
      return static_cast<T>(row.integer(at));
    }
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static constexpr Type kType = Codec<T>::kType;
  static constexpr bool kNullable = true;
  static void bind(Statement& row, int at, const std::optional<T>& value) {
    if (value) Codec<T>::bind(row, at, *value);
  }
  static std::optional<T> read(const Statement& row, int at) {
    if (row.type(at) == SQLITE_NULL) return std::nullopt;
    return Codec<T>::read(row, at);
  }
};

template <>
struct Codec<std::string> {
  static constexpr Type kType = Type::kText;
  static constexpr bool kNullable = false;
  static void bind(Statement& row, int at, std::string_view value) { row.bind(at, value); }
  static std::string read(const Statement& row, int at) { return row.text(at); }
};

template <class T>
requires std::is_trivially_copyable_v<T>
struct Codec<std::vector<T>> {
  static constexpr Type kType = Type::kBlob;
  static constexpr bool kNullable = true;
  static void bind(Statement& row, int at, const std::vector<T>& values) {
    if (!values.empty()) row.bind_blob(at, std::as_bytes(std::span(values)));
  }
  static std::vector<T> read(const Statement& row, int at) {
    const auto bytes = row.blob(at);
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }
};

// The member at the end of a path of pointers to members.
template <auto First, auto... Rest>
auto& member(auto& record) {
  if constexpr (sizeof...(Rest) == 0) {
    return record.*First;
  } else {
    return member<Rest...>(record.*First);
  }
}

template <class Coded, class Record, auto... Path>
constexpr Column<Record> coded_column(const char* name, ColumnText text) {
  return {.name = name,
          .type = Coded::kType,
          .nullable = Coded::kNullable,
          .text = text,
          .bind = [](Statement& row, int at,
                     const Record& r) { Coded::bind(row, at, member<Path...>(r)); },
          .read = [](const Statement& row, int at,
                     Record& r) { member<Path...>(r) = Coded::read(row, at); }};
}

template <class Record, auto... Path>
constexpr Column<Record> column(const char* name, ColumnText text) {
  using Value = std::remove_cvref_t<decltype(member<Path...>(std::declval<Record&>()))>;
  auto out = coded_column<Codec<Value>, Record, Path...>(name, text);
  out.small = std::is_integral_v<Value> && sizeof(Value) <= sizeof(std::uint32_t);
  return out;
}

// An enumeration whose values are called Names: what is out of its range is read as the last one.
template <auto& Names, class Record, auto... Path>
constexpr Column<Record> enumeration(const char* name, ColumnText text) {
  auto out = column<Record, Path...>(name, text);
  out.names = Names;
  out.read = [](const Statement& row, int at, Record& r) {
    auto& value = member<Path...>(r);
    value = static_cast<std::remove_cvref_t<decltype(value)>>(
        std::min<std::uint64_t>(row.integer(at), Names.size() - 1));
  };
  return out;
}

template <class Record>
struct Table {
  const char* name = "";
  std::string_view meaning = {};
  std::vector<Column<Record>> columns;
  const char* key = "";  // what stands behind the columns
};

// Which columns a query reads: a matrix or a list may be long.
enum class ColumnSet : std::uint8_t { kAll, kWithoutBlobs };

template <class Record>
using ColumnList = std::vector<const Column<Record>*>;  // of a table that lives for ever

template <class Record>
ColumnList<Record> columns_of(const Table<Record>& table, ColumnSet set = ColumnSet::kAll) {
  ColumnList<Record> out;
  for (const Column<Record>& c : table.columns) {
    if (set == ColumnSet::kAll || c.type != Type::kBlob) out.push_back(&c);
  }
  return out;
}

template <class Record>
ColumnList<Record> columns_of(const Table<Record>& table,
                              std::initializer_list<std::string_view> names) {
  ColumnList<Record> out;
  for (const Column<Record>& c : table.columns) {
    if (std::ranges::find(names, c.name) != names.end()) out.push_back(&c);
  }
  return out;
}

template <class Record>
std::string names_of(const ColumnList<Record>& columns) {
  std::string out;
  for (const Column<Record>* c : columns) {
    out.append(out.empty() ? "\"" : ", \"").append(c->name).append("\"");
  }
  return out;
}

// Adds records to a table.
template <class Record>
class Insertion {
 public:
  // `how`: "INSERT", "INSERT OR REPLACE" or "INSERT OR IGNORE".
  static Result<Insertion> prepare(Database& db, const Table<Record>& table,
                                   std::string_view how = "INSERT") {
    std::string sql(how);
    sql.append(" INTO ").append(table.name).append(" (").append(names_of(columns_of(table)));
    sql.append(") VALUES (?");
    for (std::size_t c = 1; c < table.columns.size(); ++c) sql += ",?";
    PRESUM_ASSIGN(auto statement, db.prepare(sql + ")"));
    return Insertion(std::move(statement), &table);
  }
  Status run(const Record& record) {
    int at = 0;
    for (const Column<Record>& c : table_->columns) c.bind(statement_, ++at, record);
    return statement_.run();
  }

 private:
  Insertion(Statement statement, const Table<Record>* table)
      : statement_(std::move(statement)), table_(table) {}
  Statement statement_;
  const Table<Record>* table_;
};

// Reads records of a table.
template <class Record>
class Selection {
 public:
  // `rest`: what stands behind FROM and the table.
  static Result<Selection> prepare(Database& db, const Table<Record>& table, std::string_view rest,
                                   ColumnSet set = ColumnSet::kAll) {
    return prepare(db, table, rest, columns_of(table, set));
  }
  static Result<Selection> prepare(Database& db, const Table<Record>& table, std::string_view rest,
                                   ColumnList<Record> columns) {
    std::string sql = "SELECT " + names_of(columns);
    sql.append(" FROM ").append(table.name).append(" ").append(rest);
    PRESUM_ASSIGN(auto statement, db.prepare(sql));
    return Selection(std::move(statement), std::move(columns));
  }
  // Begins anew with these values in the places of `rest`.
  template <class... Values>
  Selection& with(const Values&... values) {
    statement_.with(values...);
    return *this;
  }
  // None after the last row; then the selection is ready for another use.
  Result<std::optional<Record>> next() {
    PRESUM_ASSIGN(const auto row, statement_.next());
    if (!row) return std::optional<Record>();
    std::optional<Record> out(std::in_place);
    int at = 0;
    for (const Column<Record>* c : columns_) c->read(statement_, at++, *out);
    return out;
  }
  Result<std::vector<Record>> all() {
    std::vector<Record> out;
    PRESUM_TRY(each([&](Record&& record) { out.push_back(std::move(record)); }));
    return out;
  }
  // Calls `visit` with every record.
  template <class Visit>
  Status each(Visit&& visit) {
    while (true) {
      PRESUM_ASSIGN(auto record, next());
      if (!record) return {};
      visit(std::move(*record));
    }
  }

 private:
  Selection(Statement statement, ColumnList<Record> columns)
      : statement_(std::move(statement)), columns_(std::move(columns)) {}
  Statement statement_;
  ColumnList<Record> columns_;
};

template <class Record>
Result<std::vector<Record>> read_all(Database& db, const Table<Record>& table,
                                     std::string_view rest, ColumnSet set = ColumnSet::kAll) {
  PRESUM_ASSIGN(auto rows, (Selection<Record>::prepare(db, table, rest, set)));
  return rows.all();
}

}  // namespace presum::runlog
