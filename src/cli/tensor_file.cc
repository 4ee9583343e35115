// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "cli/npy.h"
#include "cli/safetensors.h"
#include "cli/text.h"

namespace presum::cli {

Result<TensorFile> TensorFile::open(const std::filesystem::path& path, std::optional<Dtype> raw) {
  PRESUM_ASSIGN(auto file, InputFile::open(path));
  PRESUM_ASSIGN(const auto begin,
                file.text(0, std::min<std::uint64_t>(file.size(), kNpyMagicBytes)));
  const bool npy = is_npy(begin);
  if (!npy && path.extension() != ".safetensors") {
    return file.error(ErrorCode::kUnsupported, "neither .npy nor .safetensors").error();
  }
  PRESUM_ASSIGN(auto layout, npy ? read_npy(file, raw) : read_safetensors(file));
  return TensorFile(std::move(file), std::move(layout));
}

Status TensorFile::read(std::uint64_t first, std::uint64_t count, std::byte* out) {
  const std::size_t width = element_bytes(layout_.dtype);
  for (const TensorLayout::Tensor& tensor : layout_.tensors) {
    if (count == 0) break;
    if (first >= tensor.elements) {
      first -= tensor.elements;
      continue;
    }
    const std::uint64_t here = std::min(count, tensor.elements - first);
    PRESUM_TRY(file_.read(tensor.offset + first * width, here * width, out));
    out += here * width;
    count -= here;
    first = 0;
  }
  return {};
}

std::optional<std::string> TensorFile::difference(const TensorFile& a, const TensorFile& b) {
  const auto say = [&](const std::string& what) {
    return fmt::format("{} and {}: {}", a.file_.path().string(), b.file_.path().string(), what);
  };
  if (a.is_named() != b.is_named()) {
    return say("one is .npy and one .safetensors; give files of one kind");
  }
  if (a.layout_.dtype != b.layout_.dtype) {
    return say(fmt::format("{} and {}", dtype_name(a.layout_.dtype), dtype_name(b.layout_.dtype)));
  }
  return difference_of_tensors(a, b);
}

std::optional<std::string> TensorFile::difference_of_tensors(const TensorFile& a,
                                                             const TensorFile& b) {
  const auto say = [&](const std::string& what) {
    return fmt::format("{} and {}: {}", a.file_.path().string(), b.file_.path().string(), what);
  };
  const auto same = [](const TensorLayout::Tensor& x, const TensorLayout::Tensor& y) {
    return x.name == y.name && x.elements == y.elements;
  };
  const auto [x, y] = std::mismatch(a.layout_.tensors.begin(), a.layout_.tensors.end(),
                                    b.layout_.tensors.begin(), b.layout_.tensors.end(), same);
  if (x == a.layout_.tensors.end() && y == b.layout_.tensors.end()) return std::nullopt;
  if (x == a.layout_.tensors.end() || y == b.layout_.tensors.end())
    return say("not the same tensors");
  if (x->name != y->name) {
    return say(fmt::format("tensors {} and {}", printable(x->name), printable(y->name)));
  }
  return say(fmt::format("{} and {} elements{}", x->elements, y->elements,
                         x->name.empty() ? "" : " of " + printable(x->name)));
}

}  // namespace presum::cli
