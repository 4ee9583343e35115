// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/kernel.h"
#include "observe/cuda/pass_threads.h"
#include "presum/dtype.h"
#include "presum/status.h"

// The pass of observe/gradient_pass.h over gradients in CUDA device memory, many at a time: one
// launch per batch, and one at the end of the step that adds up the parts. Fingerprint, maximum and
// counts have the same bits as on the CPU. The sum of squares is accurate to 1e-12 and a sketch to
// 1e-5 of its size (relative), because the additions have another order. That order depends only on
// the gradients' lengths and batches, so every GPU gives the same bits.
//
// The caller provides all memory; nothing here allocates on the device or waits.
namespace presum::observe::cuda {

// Gradients of one dtype for one launch. Not thread-safe.
class GradientBatch {
 public:
  // `sketch_size` is 0 or a power of two from 64 to 65,536; otherwise kInvalidArgument.
  static Result<GradientBatch> create(Dtype dtype, std::uint32_t sketch_size);

  // Adds a contiguous gradient in device memory, aligned to its element; any count, including 0.
  void add(const void* data, std::uint64_t count, std::uint64_t seed);

  // Device memory in bytes that the launch needs besides the gradients.
  std::size_t list_bytes() const { return items_.size() * sizeof(Item); }
  std::size_t partials_bytes() const { return (blocks() + items_.size()) * sizeof(Partial); }
  // Number of sketches that the blocks write. Launches on one stream may share their memory.
  std::uint32_t blocks() const;
  // Upper bound of blocks() for any batch.
  static std::uint32_t most_blocks(std::uint32_t sketch_size);

  // The list to upload.
  const Item* list() const { return items_.data(); }

  struct Memory {  // on the device
    const Item* list = nullptr;
    Partial* partials = nullptr;
    float* rows = nullptr;          // blocks() sketches
    std::uint32_t rows_in_use = 0;  // the number that earlier launches on this stream have written
  };
  // The locations of the parts of each gradient after the launch, in the order of add().
  std::vector<Parts> parts(const Partial* partials) const;

  // Does nothing for a batch without elements.
  Status launch(device::Launcher& launcher, const Memory& memory, void* stream) const;

 private:
  GradientBatch(Dtype dtype, std::uint32_t sketch_size)
      : dtype_(dtype), sketch_size_(sketch_size) {}

  Batch batch(const Memory& memory) const;

  Dtype dtype_;
  std::uint32_t sketch_size_;
  std::uint64_t spans_ = 0;
  std::uint64_t elements_ = 0;
  std::vector<Item> items_;
};

// Adds up the results of a step's launches; `traffic` is in bytes. Launches nothing if there is
// nothing to add.
Status finish(device::Launcher& launcher, const Step& step, std::uint64_t traffic, void* stream);

}  // namespace presum::observe::cuda
