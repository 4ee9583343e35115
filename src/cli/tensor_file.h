// SPDX-License-Identifier: Apache-2.0
// Gradients that were saved: .npy and .safetensors. Files are hostile input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "cli/tensor_layout.h"
#include "presum/dtype.h"
#include "presum/status.h"

namespace presum::cli {

// An open file of numbers. Reads are of any piece; the file is never in memory as a whole.
// Not thread-safe.
class TensorFile {
 public:
  // `raw`: what two raw bytes are, which is how bf16 is kept in .npy. Errors: kNotFound (no file
  // with anything in it), kIo, kCorrupt (not a whole file of its kind; a .safetensors must follow
  // all rules of its format), kUnsupported (another dtype or layout), kInvalidArgument (raw bytes
  // of which nobody said what they are).
  static Result<TensorFile> open(const std::filesystem::path& path, std::optional<Dtype> raw);

  Dtype dtype() const { return layout_.dtype; }
  // A .npy of two or more dimensions has rows; other files have one row of all elements.
  std::uint64_t rows() const { return layout_.rows; }
  std::uint64_t row_elements() const { return layout_.elements / layout_.rows; }
  std::uint64_t elements() const { return layout_.elements; }  // of all rows
  bool is_named() const { return layout_.named; }              // .safetensors

  // Elements from `first` on, counted over all rows. REQUIRES: they are inside; `out` has room.
  Status read(std::uint64_t first, std::uint64_t count, std::byte* out);

  // None if both files are of one kind and dtype and hold the same tensors, else what differs in
  // one line.
  static std::optional<std::string> difference(const TensorFile& a, const TensorFile& b);
  // The same, whatever their kinds and dtypes are.
  static std::optional<std::string> difference_of_tensors(const TensorFile& a, const TensorFile& b);

 private:
  TensorFile(InputFile file, TensorLayout layout)
      : file_(std::move(file)), layout_(std::move(layout)) {}

  InputFile file_;
  TensorLayout layout_;
};

}  // namespace presum::cli
