// SPDX-License-Identifier: Apache-2.0
// Gradients that were saved: .npy and .safetensors. Files are hostile input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "presum/dtype.h"
#include "presum/status.h"

namespace presum::cli {

// An open file of numbers. Reads are of any piece; the file is never in memory as a whole.
// Not thread-safe.
class TensorFile {
 public:
  using Json = nlohmann::json;

  // `raw`: what two raw bytes are, which is how bf16 is kept in .npy. Errors: kNotFound (no file
  // with anything in it), kIo, kCorrupt (not a whole file of its kind; a .safetensors must follow
  // all rules of its format), kUnsupported (another dtype or layout), kInvalidArgument (raw bytes
  // of which nobody said what they are).
  static Result<TensorFile> open(const std::filesystem::path& path, std::optional<Dtype> raw);

  Dtype dtype() const { return dtype_; }
  // A .npy of two or more dimensions has rows; other files have one row of all elements.
  std::uint64_t rows() const { return rows_; }
  std::uint64_t row_elements() const { return elements_ / rows_; }
  std::uint64_t elements() const { return elements_; }  // of all rows
  bool is_named() const { return named_; }              // .safetensors

  // Elements from `first` on, counted over all rows. REQUIRES: they are inside; `out` has room.
  Status read(std::uint64_t first, std::uint64_t count, std::byte* out);

  // None if both files are of one kind and dtype and hold the same tensors, else what differs in
  // one line.
  static std::optional<std::string> difference(const TensorFile& a, const TensorFile& b);
  // The same, whatever their kinds and dtypes are.
  static std::optional<std::string> difference_of_tensors(const TensorFile& a, const TensorFile& b);

 private:
  struct Tensor {
    std::string name;
    std::uint64_t elements = 0;
    std::uint64_t offset = 0;  // in the file, in bytes
  };

  // Where a tensor's bytes are, counted from the end of the header.
  struct Extent {
    std::string name;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };

  Status read_npy(std::uint64_t size, std::optional<Dtype> raw);
  Status read_descr(std::string_view descr, std::optional<Dtype> raw);
  Status read_safetensors(std::uint64_t size);
  Status read_tensors(const Json& header, std::uint64_t begin, std::uint64_t bytes);
  Result<Extent> read_tensor(const std::string& name, const Json& tensor);
  Status check_cover(std::vector<Extent> extents, std::uint64_t bytes) const;
  Status bad(ErrorCode code, const std::string& what) const;
  Result<std::string> text_at(std::uint64_t offset, std::uint64_t bytes);

  std::filesystem::path path_;
  std::ifstream in_;
  Dtype dtype_ = Dtype::kF32;
  bool named_ = false;
  std::uint64_t rows_ = 1;
  std::uint64_t elements_ = 0;
  std::vector<Tensor> tensors_;
};

const char* dtype_name(Dtype dtype);  // "fp32", "fp64", "bf16", "fp16"
std::optional<Dtype> dtype_of(std::string_view name);

}  // namespace presum::cli
