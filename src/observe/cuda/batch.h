// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/kernel.h"
#include "observe/cuda/pass_threads.h"
#include "presum/dtype.h"
#include "presum/status.h"

// The pass of observe/gradient_pass.h over gradients in the memory of a CUDA device, many at a
// time: a launch for every batch, and one at the end of the step that adds up. Fingerprint, maximum
// and counts are the same bits as those of the CPU. The sum of squares keeps 1e-12, a sketch 1e-5
// of its size (relative): orders of additions differ, but depend on the gradients' lengths and
// batches only, so that every GPU gives the same bits.
//
// The caller brings all memory; nothing is allocated on a device, and nothing waits.
namespace presum::observe::cuda {

// Gradients of one dtype that are read by one launch. Not thread-safe.
class GradientBatch {
 public:
  // Of a sketch: 0, or a power of two from 64 to 65,536; else kInvalidArgument.
  static Result<GradientBatch> create(Dtype dtype, std::uint32_t sketch_size);

  // A contiguous gradient in device memory, aligned to an element; any count, 0 included.
  void add(const void* data, std::uint64_t count, std::uint64_t seed);

  // What the launch needs beside the gradients, in bytes of device memory.
  std::size_t list_bytes() const { return items_.size() * sizeof(Item); }
  std::size_t partials_bytes() const { return (blocks() + items_.size()) * sizeof(Partial); }
  // Sketches that blocks leave; those of several launches on a stream may share their memory.
  std::uint32_t blocks() const;
  // At most this many for any batch.
  static std::uint32_t most_blocks(std::uint32_t sketch_size);

  // The list, to be uploaded.
  const Item* list() const { return items_.data(); }

  struct Memory {  // on the device
    const Item* list = nullptr;
    Partial* partials = nullptr;
    float* rows = nullptr;          // blocks() sketches
    std::uint32_t rows_in_use = 0;  // which hold what earlier launches on this stream left
  };
  // Where the parts of each gradient will lie once it has run, in the order of add().
  std::vector<Parts> parts(const Partial* partials) const;

  // Does nothing for a batch without an element.
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

// Adds up what a step's launches left; `traffic` is in bytes. Nothing is launched for nothing.
Status finish(device::Launcher& launcher, const Step& step, std::uint64_t traffic, void* stream);

}  // namespace presum::observe::cuda
