// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cli/text.h"

namespace presum::cli {
namespace {

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

// "(3, 4)" as numbers; none for anything else.
std::optional<std::vector<std::uint64_t>> shape_of(std::string_view text) {
  const auto end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) return std::nullopt;
  std::vector<std::uint64_t> shape;
  bool digits = false;
  for (const char c : text.substr(1, end - 1)) {
    if (c >= '0' && c <= '9') {
      if (!digits) shape.push_back(0);
      digits = true;
      if (shape.back() > (std::uint64_t{1} << 58)) return std::nullopt;
      shape.back() = shape.back() * 10 + static_cast<std::uint64_t>(c - '0');
    } else if (c == ',' || c == ' ') {
      digits = false;
    } else {
      return std::nullopt;
    }
  }
  return shape;
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
const nlohmann::json& member(const nlohmann::json& json, const char* key) {
  static const nlohmann::json none;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? none : *found;
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

Result<TensorFile> TensorFile::open(const std::filesystem::path& path, std::optional<Dtype> said) {
  TensorFile file;
  file.path_ = path;
  const auto failed = [&](const Status& s) { return tl::unexpected(s.error()); };
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return failed(file.bad(ErrorCode::kNotFound, "no such file"));
  }
  const std::uint64_t size = std::filesystem::file_size(path, error);
  file.in_.open(path, std::ios::binary);
  if (error || !file.in_) return failed(file.bad(ErrorCode::kIo, "cannot be read"));
  const auto start = file.text_at(0, std::min<std::uint64_t>(size, 6));
  if (!start) return tl::unexpected(start.error());
  const bool npy = *start == "\x93NUMPY";
  if (!npy && path.extension() != ".safetensors") {
    return failed(file.bad(ErrorCode::kUnsupported, "neither .npy nor .safetensors"));
  }
  const Status read = npy ? file.read_npy(size, said) : file.read_safetensors(size);
  if (!read) return failed(read);
  if (said && file.dtype_ != *said) {
    return failed(file.bad(
        ErrorCode::kInvalidArgument,
        fmt::format("holds {}, and --dtype says {}", dtype_name(file.dtype_), dtype_name(*said))));
  }
  return file;
}

Result<std::string> TensorFile::text_at(std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  in_.clear();
  in_.seekg(static_cast<std::streamoff>(offset));
  in_.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in_) return tl::unexpected(bad(ErrorCode::kIo, "cannot be read").error());
  return text;
}

Status TensorFile::read_npy(std::uint64_t size, std::optional<Dtype> said) {
  const auto cut = [&] { return bad(ErrorCode::kCorrupt, "cut off: the .npy is not whole"); };
  if (size < 12) return cut();
  const auto fixed = text_at(0, 12);
  if (!fixed) return tl::unexpected(fixed.error());
  const bool one = (*fixed)[6] == 1;
  std::uint64_t length = 0;
  std::memcpy(&length, fixed->data() + 8, one ? 2 : 4);
  const std::uint64_t begin = one ? 10 : 12;
  if (length > kNpyHeaderMax) return bad(ErrorCode::kCorrupt, "the .npy header is too long");
  if (size < begin + length) return cut();
  const auto header = text_at(begin, length);
  if (!header) return tl::unexpected(header.error());

  const auto shape = shape_of(after_key(*header, "shape"));
  if (!shape) return bad(ErrorCode::kCorrupt, "the .npy header cannot be read");
  if (auto s = read_descr(quoted(after_key(*header, "descr")), said); !s) return s;
  if (shape->size() > 1 && after_key(*header, "fortran_order").starts_with("True")) {
    return bad(ErrorCode::kUnsupported, "stored by columns; save numpy.ascontiguousarray(x)");
  }
  const auto count = count_of(*shape);
  const auto bytes = count ? product(*count, element_bytes(dtype_)) : std::nullopt;
  if (!bytes || size - begin - length < *bytes) return cut();
  elements_ = *count;
  rows_ = shape->size() > 1 && elements_ > 0 ? shape->front() : 1;
  tensors_ = {{"", elements_, begin + length}};
  return {};
}

Status TensorFile::read_descr(std::string_view descr, std::optional<Dtype> said) {
  if (const auto known = find_named(kNpy, descr)) {
    dtype_ = *known;
    return {};
  }
  if (!is_raw16(descr)) {
    return bad(ErrorCode::kUnsupported,
               fmt::format("holds {}; fp32, fp64, fp16 and bf16 are possible", printable(descr)));
  }
  if (!said || element_bytes(*said) != 2) {
    return bad(ErrorCode::kInvalidArgument,
               "two bytes an element: say what they are with --dtype bf16");
  }
  dtype_ = *said;
  return {};
}

Status TensorFile::read_safetensors(std::uint64_t size) {
  const auto corrupt = [&](const std::string& what) { return bad(ErrorCode::kCorrupt, what); };
  std::uint64_t length = 0;
  if (size < 8) return corrupt("cut off: the .safetensors is not whole");
  const auto fixed = text_at(0, 8);
  if (!fixed) return tl::unexpected(fixed.error());
  std::memcpy(&length, fixed->data(), 8);
  if (length > kSafetensorsHeaderMax) return corrupt("the .safetensors header is too long");
  if (size - 8 < length) return corrupt("cut off: the .safetensors is not whole");
  const auto text = text_at(8, length);
  if (!text) return tl::unexpected(text.error());
  const Json header = Json::parse(
      *text, [](int depth, Json::parse_event_t, const Json&) { return depth <= kDepthMax; }, false);
  if (!header.is_object()) return corrupt("the .safetensors header is no JSON object");

  for (const auto& [name, tensor] : header.items()) {  // by name
    if (name == "__metadata__") continue;
    if (tensors_.size() >= kTensorsMax) return corrupt("too many tensors");
    if (auto s = read_tensor(name, tensor, 8 + length, size - 8 - length); !s) return s;
  }
  return tensors_.empty() ? corrupt("no tensor in it") : Status{};
}

Status TensorFile::read_tensor(const std::string& name, const Json& tensor, std::uint64_t begin,
                               std::uint64_t bytes) {
  const auto wrong = [&](const std::string& what) {
    return bad(ErrorCode::kCorrupt, fmt::format("tensor {}: {}", printable(name), what));
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
  const auto first = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (first > end || end > bytes || (end - first) % element_bytes(dtype_) != 0) {
    return wrong("data_offsets outside the file, or not whole elements");
  }
  tensors_.push_back({name, (end - first) / element_bytes(dtype_), begin + first});
  elements_ += tensors_.back().elements;
  return {};
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
  if (a.dtype_ != b.dtype_) {
    return say(fmt::format("{} and {}", dtype_name(a.dtype_), dtype_name(b.dtype_)));
  }
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
