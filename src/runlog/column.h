// SPDX-License-Identifier: Apache-2.0
// Table columns as data: a column's name, its meaning, and how it is written to a row from a record
// and read back. Statements, views, frames and the document are generated from these.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
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
inline constexpr std::array kTypeNames = {"integer", "real", "text", "blob"};
static_assert(kTypeNames.size() == static_cast<std::size_t>(Type::kBlob) + 1);

struct ColumnText {
  std::string_view meaning;
  std::string_view unit = {};
  std::string_view unknown = {};  // what NULL means
};

// How views and frames show a column.
enum class Display : std::uint8_t { kAsIs, kHex, kHidden };

struct ColumnShape {
  const char* name = "";
  Type type = Type::kInteger;
  bool nullable = false;
  bool small = false;  // an integer of at most 32 bits
  ColumnText text = {};
  Display shown = Display::kAsIs;
  std::span<const char* const> names = {};  // names of the values 0, 1, ...; views show these
};

template <class Record>
struct Column : ColumnShape {
  void (*bind)(Statement&, int at, const Record&) = nullptr;
  void (*read)(const Statement&, int at, Record&) = nullptr;
};

template <Type T, bool Nullable>
struct CellOf {
  static constexpr Type kType = T;
  static constexpr bool kNullable = Nullable;
};

// How a value becomes a cell: NaN, an empty optional and an empty array become NULL.
template <class T>
struct Codec;

template <>
struct Codec<double> : CellOf<Type::kReal, true> {
  static void bind(Statement& row, int at, double value) { row.bind(at, value); }
  static double read(const Statement& row, int at) { return row.number(at); }
};

template <class T>
requires std::integral<T> || std::is_enum_v<T>
struct Codec<T> : CellOf<Type::kInteger, false> {
  static void bind(Statement& row, int at, T value) {
    row.bind(at, static_cast<std::uint64_t>(value));
  }
  // A value too large for T is read as T's maximum.
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
struct Codec<std::optional<T>> : CellOf<Codec<T>::kType, true> {
  static void bind(Statement& row, int at, const std::optional<T>& value) {
    if (value) Codec<T>::bind(row, at, *value);
  }
  static std::optional<T> read(const Statement& row, int at) {
    if (row.type(at) == SQLITE_NULL) return std::nullopt;
    return Codec<T>::read(row, at);
  }
};

template <>
struct Codec<std::string> : CellOf<Type::kText, false> {
  static void bind(Statement& row, int at, std::string_view value) { row.bind(at, value); }
  static std::string read(const Statement& row, int at) { return row.text(at); }
};

template <class T>
requires std::is_trivially_copyable_v<T>
struct Codec<std::vector<T>> : CellOf<Type::kBlob, true> {
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

// Returns the end of a path whose parts are pointers to members or other callables.
template <auto First, auto... Rest>
auto& member(auto& record) {
  if constexpr (sizeof...(Rest) == 0) {
    return std::invoke(First, record);
  } else {
    return member<Rest...>(std::invoke(First, record));
  }
}

template <class Record, class Value>
Record record_of(Value Record::*);

template <auto First, auto... Rest>
auto member_of() {
  using Record = decltype(record_of(First));
  return std::remove_cvref_t<decltype(member<First, Rest...>(std::declval<Record&>()))>();
}

template <auto... Path>
using MemberAt = decltype(member_of<Path...>());

// A column of any record type that has a member at the end of the path.
template <class Coded, auto... Path>
struct MemberColumn : ColumnShape {
  MemberColumn hidden() const { return as(Display::kHidden); }
  MemberColumn hex() const { return as(Display::kHex); }

  template <class Record>
  operator Column<Record>() const {  // NOLINT(google-explicit-constructor)
    return {
        *this,
        [](Statement& row, int at, const Record& r) { Coded::bind(row, at, member<Path...>(r)); },
        [](const Statement& row, int at, Record& r) { member<Path...>(r) = Coded::read(row, at); }};
  }

 private:
  MemberColumn as(Display how) const {
    MemberColumn out = *this;
    out.shown = how;
    return out;
  }
};

template <class Coded, auto... Path>
MemberColumn<Coded, Path...> coded_column(const char* name, ColumnText text) {
  return {{.name = name, .type = Coded::kType, .nullable = Coded::kNullable, .text = text}};
}

template <auto... Path>
auto column(const char* name, ColumnText text) {
  using Value = MemberAt<Path...>;
  auto out = coded_column<Codec<Value>, Path...>(name, text);
  out.small = std::is_integral_v<Value> && sizeof(Value) <= sizeof(std::uint32_t);
  return out;
}

// The values of an enumeration, named by Names. A value out of range is read as the last one.
template <auto& Names, class Enum>
struct NamedCodec : Codec<Enum> {
  static Enum read(const Statement& row, int at) {
    return static_cast<Enum>(std::min<std::uint64_t>(row.integer(at), Names.size() - 1));
  }
};

template <auto& Names, auto... Path>
auto enumeration(const char* name, ColumnText text) {
  auto out = coded_column<NamedCodec<Names, MemberAt<Path...>>, Path...>(name, text);
  out.names = Names;
  return out;
}

template <class Record>
struct Table {
  const char* name = "";
  std::string_view meaning = {};
  std::vector<Column<Record>> columns;
  const char* key = ")";  // what follows the columns
};

template <class Record>
using ColumnList = std::vector<const Column<Record>*>;  // columns of a table with static lifetime

template <class Record>
ColumnList<Record> columns_of(const Table<Record>& table) {
  ColumnList<Record> out;
  for (const Column<Record>& c : table.columns) out.push_back(&c);
  return out;
}

// Leaves out matrices and lists, which may be long.
template <class Record>
ColumnList<Record> without_blobs(const Table<Record>& table) {
  ColumnList<Record> out;
  for (const Column<Record>& c : table.columns) {
    if (c.type != Type::kBlob) out.push_back(&c);
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
  Insertion(Statement statement, const Table<Record>& table)
      : statement_(std::move(statement)), table_(&table) {}
  Status run(const Record& record) {
    int at = 0;
    for (const Column<Record>& c : table_->columns) c.bind(statement_, ++at, record);
    return statement_.run();
  }

 private:
  Statement statement_;
  const Table<Record>* table_;
};

// `how`: "INSERT", "INSERT OR REPLACE" or "INSERT OR IGNORE".
template <class Record>
Result<Insertion<Record>> insertion(Database& db, const Table<Record>& table,
                                    std::string_view how = "INSERT") {
  std::string places = "?";
  for (std::size_t c = 1; c < table.columns.size(); ++c) places += ",?";
  PRESUM_ASSIGN(auto statement,
                db.prepare(fmt::format("{} INTO {} ({}) VALUES ({})", how, table.name,
                                       names_of(columns_of(table)), places)));
  return Insertion<Record>(std::move(statement), table);
}

// Reads a table's records.
template <class Record>
class Selection {
 public:
  Selection(Statement statement, ColumnList<Record> columns)
      : statement_(std::move(statement)), columns_(std::move(columns)) {}
  // Restarts with these values for its parameters.
  template <class... Values>
  Selection& with(const Values&... values) {
    statement_.with(values...);
    return *this;
  }
  // Returns nothing after the last row; the selection can then be used again.
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
  Statement statement_;
  ColumnList<Record> columns_;
};

// `rest`: what follows FROM and the table.
template <class Record>
Result<Selection<Record>> selection(Database& db, const Table<Record>& table, std::string_view rest,
                                    ColumnList<Record> columns) {
  std::string sql = "SELECT " + names_of(columns);
  sql.append(" FROM ").append(table.name).append(" ").append(rest);
  PRESUM_ASSIGN(auto statement, db.prepare(sql));
  return Selection<Record>(std::move(statement), std::move(columns));
}

template <class Record>
Result<Selection<Record>> selection(Database& db, const Table<Record>& table,
                                    std::string_view rest) {
  return selection(db, table, rest, columns_of(table));
}

template <class Record>
Result<std::vector<Record>> read_all(Database& db, const Table<Record>& table,
                                     std::string_view rest) {
  PRESUM_ASSIGN(auto rows, selection(db, table, rest));
  return rows.all();
}

}  // namespace presum::runlog
