// SPDX-License-Identifier: Apache-2.0
// Where a file keeps the numbers of its tensors. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "presum/dtype.h"
#include "presum/status.h"

namespace presum::cli {

const char* dtype_name(Dtype dtype);  // "fp32", "fp64", "bf16", "fp16"
std::optional<Dtype> dtype_of(std::string_view name);

// A name of a dtype in one of the formats.
struct DtypeName {
  const char* name;
  Dtype dtype;
};
std::optional<Dtype> find_dtype(std::span<const DtypeName> names, std::string_view name);

struct TensorLayout {
  struct Tensor {
    std::string name;  // empty in a .npy
    std::uint64_t elements = 0;
    std::uint64_t offset = 0;  // in the file, in bytes
  };
  Dtype dtype = Dtype::kF32;
  bool named = false;          // .safetensors
  std::uint64_t rows = 1;      // of a .npy of two or more dimensions, else 1
  std::uint64_t elements = 0;  // of all tensors
  std::vector<Tensor> tensors;
};

// a * b, or none beyond 2^62.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b);
// The elements of a shape; none beyond 2^62.
std::optional<std::uint64_t> count_of(const std::vector<std::uint64_t>& shape);

// A file that is read in pieces. Not thread-safe.
class InputFile {
 public:
  // Errors: kNotFound (no file with anything in it), kIo.
  static Result<InputFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Error: kIo, also where the file ends before.
  Status read(std::uint64_t offset, std::uint64_t bytes, std::byte* out);
  Result<std::string> text(std::uint64_t offset, std::uint64_t bytes);
  // An error that begins with the path.
  Status error(ErrorCode code, const std::string& what) const;

 private:
  std::filesystem::path path_;
  std::ifstream in_;
  std::uint64_t size_ = 0;
};

}  // namespace presum::cli
