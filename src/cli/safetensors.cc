// SPDX-License-Identifier: Apache-2.0
#include "cli/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/try.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kHeaderMax = 16 << 20;
constexpr std::size_t kTensorsMax = 1'000'000;
constexpr int kDepthMax = 3;  // {"name": {"data_offsets": [0, 4]}}; what is deeper is left out
constexpr DtypeName kDtypes[] = {
    {"F32", Dtype::kF32}, {"F64", Dtype::kF64}, {"BF16", Dtype::kBF16}, {"F16", Dtype::kF16}};

// A null where it is missing, or `json` no object. A reference: copies of nested values recurse.
const Json& member(const Json& json, const char* key) {
  static const Json none;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found == json.end() ? none : *found;
}

// The first key that a .safetensors header has twice, which a parsed object no longer shows.
class RepeatedKey {
 public:
  void add(int depth, Json::parse_event_t event, const Json& parsed) {
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
  return cli::count_of(counts);
}

// Reads the tensors of a header, and checks each.
class HeaderReader {
 public:
  // `begin`: the offset of the first tensor's bytes in the file.
  HeaderReader(const InputFile& file, std::uint64_t begin) : file_(file), begin_(begin) {
    layout_.named = true;
  }
  Result<TensorLayout> read(const Json& header);

 private:
  // Where a tensor's bytes are, counted from the end of the header.
  struct Extent {
    std::string name;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  Result<Extent> read_tensor(const std::string& name, const Json& tensor);
  Status check_cover(std::vector<Extent> extents) const;
  Status bad(const std::string& what) const { return file_.error(ErrorCode::kCorrupt, what); }

  const InputFile& file_;
  std::uint64_t begin_;
  TensorLayout layout_;
};

Result<TensorLayout> HeaderReader::read(const Json& header) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : header.items()) {  // by name
    if (name == "__metadata__") continue;
    if (layout_.tensors.size() >= kTensorsMax) return bad("too many tensors").error();
    PRESUM_ASSIGN(const auto extent, read_tensor(name, tensor));
    layout_.tensors.push_back(
        {name, (extent.end - extent.first) / element_bytes(layout_.dtype), begin_ + extent.first});
    layout_.elements += layout_.tensors.back().elements;
    extents.push_back(extent);
  }
  if (layout_.tensors.empty()) return bad("no tensor in it").error();
  PRESUM_TRY(check_cover(std::move(extents)));
  return std::move(layout_);
}

Result<HeaderReader::Extent> HeaderReader::read_tensor(const std::string& name,
                                                       const Json& tensor) {
  const auto wrong = [&](const std::string& what) {
    return bad(fmt::format("tensor {}: {}", printable(name), what)).error();
  };
  const Json& type = member(tensor, "dtype");
  const Json& offsets = member(tensor, "data_offsets");
  if (!type.is_string() || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return wrong("no dtype, or no two data_offsets");
  }
  const auto dtype = find_dtype(kDtypes, type.get<std::string>());
  if (!dtype || (!layout_.tensors.empty() && layout_.dtype != *dtype)) {
    return wrong(fmt::format("{}; all tensors must be of one of fp32, fp64, fp16, bf16",
                             printable(type.get<std::string>())));
  }
  layout_.dtype = *dtype;
  const auto count = count_of(member(tensor, "shape"));
  if (!count) return wrong("the shape is no list of counts");
  const Extent extent{name, offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  if (extent.first > extent.end) return wrong("data_offsets end before they begin");
  const auto bytes = product(*count, element_bytes(layout_.dtype));
  if (!bytes || extent.end - extent.first != *bytes) {
    return wrong(fmt::format("data_offsets span {} bytes, and its shape is of {} {} elements",
                             extent.end - extent.first, *count, dtype_name(layout_.dtype)));
  }
  return extent;
}

// Tensors must cover the rest of the file without a hole, and without sharing a byte.
Status HeaderReader::check_cover(std::vector<Extent> extents) const {
  const std::uint64_t bytes = file_.size() - begin_;
  const auto wrong = [&](const Extent& e, const std::string& what) {
    return bad(fmt::format("tensor {}: {}", printable(e.name), what));
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

}  // namespace

Result<TensorLayout> read_safetensors(InputFile& file) {
  const std::uint64_t size = file.size();
  const auto corrupt = [&](const std::string& what) {
    return file.error(ErrorCode::kCorrupt, what).error();
  };
  std::uint64_t length = 0;
  if (size < 8) return corrupt("cut off: the .safetensors is not whole");
  PRESUM_ASSIGN(const auto fixed, file.text(0, 8));
  std::memcpy(&length, fixed.data(), 8);
  if (length > kHeaderMax) return corrupt("the .safetensors header is too long");
  if (size - 8 < length) return corrupt("cut off: the .safetensors is not whole");
  PRESUM_ASSIGN(const auto text, file.text(8, length));
  RepeatedKey repeated;
  const auto keep = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    repeated.add(depth, event, parsed);
    return depth <= kDepthMax;
  };
  const Json header = Json::parse(text, keep, false);
  if (!header.is_object()) return corrupt("the .safetensors header is no JSON object");
  if (repeated.found()) {
    return corrupt("tensor " + printable(*repeated.found()) + ": twice in the header");
  }
  return HeaderReader(file, 8 + length).read(header);
}

}  // namespace presum::cli
