// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_layout.h"

#include <fmt/format.h>

#include <system_error>

#include "base/try.h"

namespace presum::cli {
namespace {

constexpr DtypeName kNames[] = {
    {"fp32", Dtype::kF32}, {"fp64", Dtype::kF64}, {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}};

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

}  // namespace

const char* dtype_name(Dtype dtype) {
  for (const DtypeName& n : kNames) {
    if (n.dtype == dtype) return n.name;
  }
  return "?";
}

std::optional<Dtype> dtype_of(std::string_view name) { return find_dtype(kNames, name); }

std::optional<Dtype> find_dtype(std::span<const DtypeName> names, std::string_view name) {
  for (const DtypeName& n : names) {
    if (name == n.name) return n.dtype;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (b != 0 && a > kMost / b) return std::nullopt;
  return a * b;
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

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  InputFile file;
  file.path_ = path;
  if (const auto why = obstacle(path); !why.empty()) {
    return file.error(ErrorCode::kNotFound, why).error();
  }
  std::error_code failure;
  file.size_ = std::filesystem::file_size(path, failure);
  file.in_.open(path, std::ios::binary);
  if (failure || !file.in_) return file.error(ErrorCode::kIo, "cannot be read").error();
  return file;
}

Status InputFile::read(std::uint64_t offset, std::uint64_t bytes, std::byte* out) {
  in_.clear();
  in_.seekg(static_cast<std::streamoff>(offset));
  in_.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(bytes));
  return in_ ? Status{} : error(ErrorCode::kIo, "cannot be read");
}

Result<std::string> InputFile::text(std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  PRESUM_TRY(read(offset, bytes, reinterpret_cast<std::byte*>(text.data())));
  return text;
}

Status InputFile::error(ErrorCode code, const std::string& what) const {
  return fail(code, fmt::format("{}: {}", path_.string(), what));
}

}  // namespace presum::cli
