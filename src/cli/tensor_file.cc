// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/try.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kNpyHeaderMax = 65'536;
constexpr std::uint64_t kSafetensorsHeaderMax = 16 << 20;
constexpr std::size_t kTensorsMax = 1'000'000;
constexpr int kDepthMax = 3;  // {"name": {"data_offsets": [0, 4]}}; what is deeper is left out

// a * b, or none beyond 2^62.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (b != 0 && a > kMost / b) return std::nullopt;
  return a * b;
}

// The text after `'key':` in a .npy header, up to its end; empty if the key is not there.
std::string_view after_key(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const auto at = header.find(fmt::format("{}{}{}", quote, key, quote));
    if (at == std::string_view::npos) continue;
    auto rest = header.substr(at + key.size() + 2);
    const auto value = rest.find_first_not_of(" :");
    return value == std::string_view::npos ? std::string_view() : rest.substr(value);
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n") - first + 1);
}

// At most 10 * 2^58; none for anything but digits.
std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || value > (std::uint64_t{1} << 58)) return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return text.empty() ? std::nullopt : std::optional(value);
}

// "(3, 4)" as numbers, as Python writes a tuple; none for anything else.
std::optional<std::vector<std::uint64_t>> shape_of(std::string_view text) {
  const auto end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) return std::nullopt;
  const auto after = trimmed(text.substr(end + 1));
  if (after.empty() || (after.front() != ',' && after.front() != '}')) return std::nullopt;
  std::vector<std::uint64_t> shape;
  bool comma = false;
  for (auto rest = trimmed(text.substr(1, end - 1)); !rest.empty();) {
    const auto stop = std::min(rest.find(','), rest.size());
    const auto number = digits(trimmed(rest.substr(0, stop)));
    if (!number) return std::nullopt;
    shape.push_back(*number);
    comma = stop < rest.size();
    rest = comma ? trimmed(rest.substr(stop + 1)) : std::string_view();
  }
  return shape.size() == 1 && !comma ? std::nullopt : std::optional(shape);  // (3) is a number
}

std::optional<std::uint64_t> count_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) {
    const auto more = product(count, n);
    if (!more) return std::nullopt;
    count = *more;
  }
  return count;
}

// The quoted word that a text begins with.
std::string_view quoted(std::string_view text) {
  if (text.empty() || (text.front() != '\'' && text.front() != '"')) return {};
  const auto end = text.find(text.front(), 1);
  return end == std::string_view::npos ? std::string_view() : text.substr(1, end - 1);
}

struct Named {
  const char* name;
  Dtype dtype;
};

template <std::size_t N>
std::optional<Dtype> find_named(const Named (&list)[N], std::string_view name) {
  for (const Named& n : list) {
    if (name == n.name) return n.dtype;
  }
  return std::nullopt;
}

constexpr Named kNames[] = {
    {"fp32", Dtype::kF32}, {"fp64", Dtype::kF64}, {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}};
constexpr Named kNpy[] = {{"<f4", Dtype::kF32}, {"<f8", Dtype::kF64}, {"<f2", Dtype::kF16}};
constexpr Named kSafetensors[] = {
    {"F32", Dtype::kF32}, {"F64", Dtype::kF64}, {"BF16", Dtype::kBF16}, {"F16", Dtype::kF16}};

// A null where it is missing, or `json` no object. A reference: copies of nested values recurse.
const Json& member(const Json& json, const char* key) {
  static const Json none;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? none : *found;
}

// What stands in the way of reading a path as a file; empty if nothing does.
std::string obstacle(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return status.type() == std::filesystem::file_type::not_found ? "no such file"
                                                                  : error.message();
  }
  if (std::filesystem::is_directory(status)) return "is a folder: give the files in it";
  if (!std::filesystem::is_regular_file(status)) {
    return "is a device or a pipe: give a file, which can be read in pieces";
  }
  return std::filesystem::is_empty(path, error) ? "empty file" : "";
}

// The first key that a .safetensors header has twice, which a parsed object no longer shows.
class Repeated {
 public:
  void look(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kDepthMax - 1 || event != Json::parse_event_t::key) return;
    const auto& key = parsed.get_ref<const std::string&>();
    if (depth == 1) inner_.clear();
    if (depth == 1) tensor_ = key;
    const bool is_new = (depth == 1 ? outer_ : inner_).insert(key).second;
    if (!is_new && !found_) found_ = depth == 1 ? key : tensor_ + ": " + key;
  }
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::unordered_set<std::string> outer_, inner_;
  std::string tensor_;
  std::optional<std::string> found_;
};

// Elements of a .safetensors shape; none for what is no list of counts.
std::optional<std::uint64_t> count_of(const Json& shape) {
  if (!shape.is_array()) return std::nullopt;
  std::vector<std::uint64_t> counts;
  for (const Json& n : shape) {
    if (!n.is_number_unsigned()) return std::nullopt;
    counts.push_back(n.get<std::uint64_t>());
  }
  return count_of(counts);
}

// Two bytes without a meaning of their own.
bool is_raw16(std::string_view descr) {
  return descr == "<V2" || descr == "|V2" || descr == "<u2" || descr == "<i2";
}

}  // namespace

const char* dtype_name(Dtype dtype) {
  for (const Named& n : kNames) {
    if (n.dtype == dtype) return n.name;
  }
  return "?";
}

std::optional<Dtype> dtype_of(std::string_view name) { return find_named(kNames, name); }

Status TensorFile::bad(ErrorCode code, const std::string& what) const {
  return fail(code, fmt::format("{}: {}", path_.string(), what));
}

Result<TensorFile> TensorFile::open(const std::filesystem::path& path, std::optional<Dtype> raw) {
  TensorFile file;
  file.path_ = path;
  const auto failed = [&](const Status& s) { return s.error(); };
  if (const auto why = obstacle(path); !why.empty()) {
    return failed(file.bad(ErrorCode::kNotFound, why));
  }
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  file.in_.open(path, std::ios::binary);
  if (error || !file.in_) return failed(file.bad(ErrorCode::kIo, "cannot be read"));
  PRESUM_ASSIGN(const auto start, file.text_at(0, std::min<std::uint64_t>(size, 6)));
  const bool npy = start == "\x93NUMPY";
  if (!npy && path.extension() != ".safetensors") {
    return failed(file.bad(ErrorCode::kUnsupported, "neither .npy nor .safetensors"));
  }
  const Status read = npy ? file.read_npy(size, raw) : file.read_safetensors(size);
  if (!read) return failed(read);
  return file;
}

Result<std::string> TensorFile::text_at(std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  in_.clear();
  in_.seekg(static_cast<std::streamoff>(offset));
  in_.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in_) return bad(ErrorCode::kIo, "cannot be read").error();
  return text;
}

Status TensorFile::read_npy(std::uint64_t size, std::optional<Dtype> raw) {
  const auto cut = [&] { return bad(ErrorCode::kCorrupt, "cut off: the .npy is not whole"); };
  if (size < 12) return cut();
  PRESUM_ASSIGN(const auto fixed, text_at(0, 12));
  const auto version = static_cast<unsigned char>((fixed)[6]);
  if (version < 1 || version > 3) return bad(ErrorCode::kUnsupported, "an unknown .npy version");
  const bool one = version == 1;
  std::uint64_t length = 0;
  std::memcpy(&length, fixed.data() + 8, one ? 2 : 4);
  const std::uint64_t begin = one ? 10 : 12;
  if (length > kNpyHeaderMax) return bad(ErrorCode::kCorrupt, "the .npy header is too long");
  if (size < begin + length) return cut();
  PRESUM_ASSIGN(const auto header, text_at(begin, length));

  const auto shape = shape_of(after_key(header, "shape"));
  const auto order = after_key(header, "fortran_order");
  const bool by_columns = order.starts_with("True");
  if (!shape || (!by_columns && !order.starts_with("False"))) {
    return bad(ErrorCode::kCorrupt, "the .npy header cannot be read");
  }
  PRESUM_TRY(read_descr(quoted(after_key(header, "descr")), raw));
  if (shape->size() > 1 && by_columns) {
    return bad(ErrorCode::kUnsupported, "stored by columns; save numpy.ascontiguousarray(x)");
  }
  const auto count = count_of(*shape);
  const auto bytes = count ? product(*count, element_bytes(dtype_)) : std::nullopt;
  const std::uint64_t there = size - begin - length;
  if (!bytes || there < *bytes) return cut();
  if (there > *bytes) {
    return bad(
        ErrorCode::kCorrupt,
        fmt::format("{} bytes behind the array: more than one array, or damaged", there - *bytes));
  }
  elements_ = *count;
  rows_ = shape->size() > 1 && elements_ > 0 ? shape->front() : 1;
  tensors_ = {{"", elements_, begin + length}};
  return {};
}

Status TensorFile::read_descr(std::string_view descr, std::optional<Dtype> raw) {
  if (const auto known = find_named(kNpy, descr)) {
    dtype_ = *known;
    return {};
  }
  if (descr.starts_with('>')) {
    return bad(ErrorCode::kUnsupported, fmt::format("big-endian ({}); save x.astype('<{}')",
                                                    printable(descr), printable(descr.substr(1))));
  }
  if (!is_raw16(descr)) {
    return bad(ErrorCode::kUnsupported,
               fmt::format("holds {}; fp32, fp64, fp16 and bf16 are possible", printable(descr)));
  }
  if (!raw || element_bytes(*raw) != 2) {
    return bad(ErrorCode::kInvalidArgument,
               "two bytes an element: say what they are with --dtype bf16");
  }
  dtype_ = *raw;
  return {};
}

Status TensorFile::read_safetensors(std::uint64_t size) {
  const auto corrupt = [&](const std::string& what) { return bad(ErrorCode::kCorrupt, what); };
  std::uint64_t length = 0;
  if (size < 8) return corrupt("cut off: the .safetensors is not whole");
  PRESUM_ASSIGN(const auto fixed, text_at(0, 8));
  std::memcpy(&length, fixed.data(), 8);
  if (length > kSafetensorsHeaderMax) return corrupt("the .safetensors header is too long");
  if (size - 8 < length) return corrupt("cut off: the .safetensors is not whole");
  PRESUM_ASSIGN(const auto text, text_at(8, length));
  Repeated repeated;
  const auto keep = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    repeated.look(depth, event, parsed);
    return depth <= kDepthMax;
  };
  const Json header = Json::parse(text, keep, false);
  if (!header.is_object()) return corrupt("the .safetensors header is no JSON object");
  if (repeated.found()) {
    return corrupt("tensor " + printable(*repeated.found()) + ": twice in the header");
  }
  named_ = true;
  return read_tensors(header, 8 + length, size - 8 - length);
}

Status TensorFile::read_tensors(const Json& header, std::uint64_t begin, std::uint64_t bytes) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : header.items()) {  // by name
    if (name == "__metadata__") continue;
    if (tensors_.size() >= kTensorsMax) return bad(ErrorCode::kCorrupt, "too many tensors");
    PRESUM_ASSIGN(const auto extent, read_tensor(name, tensor));
    tensors_.push_back(
        {name, (extent.end - extent.first) / element_bytes(dtype_), begin + extent.first});
    elements_ += tensors_.back().elements;
    extents.push_back(extent);
  }
  if (tensors_.empty()) return bad(ErrorCode::kCorrupt, "no tensor in it");
  return check_cover(std::move(extents), bytes);
}

Result<TensorFile::Extent> TensorFile::read_tensor(const std::string& name, const Json& tensor) {
  const auto wrong = [&](const std::string& what) {
    return bad(ErrorCode::kCorrupt, fmt::format("tensor {}: {}", printable(name), what)).error();
  };
  const Json& type = member(tensor, "dtype");
  const Json& offsets = member(tensor, "data_offsets");
  if (!type.is_string() || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return wrong("no dtype, or no two data_offsets");
  }
  const auto dtype = find_named(kSafetensors, type.get<std::string>());
  if (!dtype || (!tensors_.empty() && dtype_ != *dtype)) {
    return wrong(fmt::format("{}; all tensors must be of one of fp32, fp64, fp16, bf16",
                             printable(type.get<std::string>())));
  }
  dtype_ = *dtype;
  const auto count = count_of(member(tensor, "shape"));
  if (!count) return wrong("the shape is no list of counts");
  const Extent extent{name, offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  if (extent.first > extent.end) return wrong("data_offsets end before they begin");
  const auto bytes = product(*count, element_bytes(dtype_));
  if (!bytes || extent.end - extent.first != *bytes) {
    return wrong(fmt::format("data_offsets span {} bytes, and its shape is of {} {} elements",
                             extent.end - extent.first, *count, dtype_name(dtype_)));
  }
  return extent;
}

// Tensors must cover the rest of the file without a hole, and without sharing a byte.
Status TensorFile::check_cover(std::vector<Extent> extents, std::uint64_t bytes) const {
  const auto wrong = [&](const Extent& e, const std::string& what) {
    return bad(ErrorCode::kCorrupt, fmt::format("tensor {}: {}", printable(e.name), what));
  };
  std::ranges::sort(extents, {}, [](const Extent& e) { return std::pair(e.first, e.end); });
  std::uint64_t covered = 0;
  for (const Extent& e : extents) {
    if (e.end > bytes) return wrong(e, "data_offsets outside the file");
    if (e.first < covered) return wrong(e, "data_offsets overlap those of another tensor");
    if (e.first > covered) {
      return wrong(e, fmt::format("a hole of {} bytes before its data", e.first - covered));
    }
    covered = e.end;
  }
  if (covered == bytes) return {};
  return wrong(
      extents.back(),
      fmt::format("{} bytes behind its data, which is the last of the file", bytes - covered));
}

Status TensorFile::read(std::uint64_t first, std::uint64_t count, std::byte* out) {
  const std::size_t width = element_bytes(dtype_);
  for (const Tensor& tensor : tensors_) {
    if (count == 0) break;
    if (first >= tensor.elements) {
      first -= tensor.elements;
      continue;
    }
    const std::uint64_t here = std::min(count, tensor.elements - first);
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(tensor.offset + first * width));
    in_.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(here * width));
    if (!in_) return bad(ErrorCode::kIo, "cannot be read");
    out += here * width;
    count -= here;
    first = 0;
  }
  return {};
}

std::optional<std::string> TensorFile::difference(const TensorFile& a, const TensorFile& b) {
  const auto say = [&](const std::string& what) {
    return fmt::format("{} and {}: {}", a.path_.string(), b.path_.string(), what);
  };
  if (a.is_named() != b.is_named()) {
    return say("one is .npy and one .safetensors; give files of one kind");
  }
  if (a.dtype_ != b.dtype_) {
    return say(fmt::format("{} and {}", dtype_name(a.dtype_), dtype_name(b.dtype_)));
  }
  return difference_of_tensors(a, b);
}

std::optional<std::string> TensorFile::difference_of_tensors(const TensorFile& a,
                                                             const TensorFile& b) {
  const auto say = [&](const std::string& what) {
    return fmt::format("{} and {}: {}", a.path_.string(), b.path_.string(), what);
  };
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.name == y.name && x.elements == y.elements;
  };
  const auto [x, y] = std::mismatch(a.tensors_.begin(), a.tensors_.end(), b.tensors_.begin(),
                                    b.tensors_.end(), same);
  if (x == a.tensors_.end() && y == b.tensors_.end()) return std::nullopt;
  if (x == a.tensors_.end() || y == b.tensors_.end()) return say("not the same tensors");
  if (x->name != y->name) {
    return say(fmt::format("tensors {} and {}", printable(x->name), printable(y->name)));
  }
  return say(fmt::format("{} and {} elements{}", x->elements, y->elements,
                         x->name.empty() ? "" : " of " + printable(x->name)));
}

}  // namespace presum::cli
