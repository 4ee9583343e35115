// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/batch.h"

#include <algorithm>
#include <bit>

namespace presum::observe::cuda {
namespace {

constexpr std::uint32_t kMaxBlocks = 256;
constexpr std::uint32_t kMaxSums = 1U << 20;  // of all blocks together: 4 MiB
constexpr std::uint32_t kFewBlocks = 32;      // that a small batch has all the same
// A block reads and writes its sketch once a launch; it has so many bytes of gradients for each.
constexpr std::uint64_t kBytesPerSketchByte = 12;

bool is_size(std::uint32_t size) {
  return size == 0 || (std::has_single_bit(size) && size >= 64 && size <= 65536);
}

}  // namespace

Result<GradientBatch> GradientBatch::create(Dtype dtype, std::uint32_t sketch_size) {
  if (!is_size(sketch_size) || element_bytes(dtype) == 0) {
    return fail(ErrorCode::kInvalidArgument, "CUDA pass: no such sketch size or dtype");
  }
  return GradientBatch(dtype, sketch_size);
}

void GradientBatch::add(const void* data, std::uint64_t count, std::uint64_t seed) {
  items_.push_back({data, count, seed, spans_});
  spans_ += count / kSpan + (count % kSpan != 0 ? 1 : 0);
  elements_ += count;
}

std::uint32_t GradientBatch::most_blocks(std::uint32_t sketch_size) {
  return std::min(kMaxBlocks, kMaxSums / std::max(sketch_size, 1U));
}

std::uint32_t GradientBatch::blocks() const {
  const std::uint64_t sketch_bytes = std::uint64_t{2} * sketch_size_ * sizeof(float);
  const std::uint64_t worth =
      sketch_size_ == 0 ? kMaxBlocks
                        : elements_ * element_bytes(dtype_) / (kBytesPerSketchByte * sketch_bytes);
  const std::uint64_t wanted = std::max<std::uint64_t>(worth, kFewBlocks);
  return static_cast<std::uint32_t>(
      std::min({wanted, spans_, std::uint64_t{most_blocks(sketch_size_)}}));
}

Batch GradientBatch::batch(const Memory& memory) const {
  return {memory.list,
          memory.partials,
          memory.rows,
          spans_,
          static_cast<std::uint32_t>(items_.size()),
          blocks(),
          memory.rows_in_use,
          sketch_size_};
}

std::vector<Parts> GradientBatch::parts(const Partial* partials) const {
  const Batch whole = batch({});
  std::vector<Parts> found;
  found.reserve(items_.size());
  std::uint32_t block = 0;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    const std::uint64_t begin = items_[i].first_span;
    const std::uint64_t end = i + 1 < items_.size() ? items_[i + 1].first_span : spans_;
    if (begin == end) {
      found.push_back({nullptr, 0});
      continue;
    }
    while (whole.first_span(block + 1) <= begin) ++block;
    std::uint32_t last = block;
    while (whole.first_span(last + 1) < end) ++last;
    found.push_back({partials + block + i, last - block + 1});
    block = last;
  }
  return found;
}

Status GradientBatch::launch(device::Launcher& launcher, const Memory& memory, void* stream) const {
  if (spans_ == 0) return {};
  const Batch argument = batch(memory);
  const std::uint32_t taken = std::min(memory.rows_in_use, blocks());
  const std::uint64_t rows = blocks() + taken;  // written and read
  const std::size_t shared = argument.in_shared() ? argument.sums() * sizeof(float) : 0;
  const device::Traffic traffic{
      elements_ * element_bytes(dtype_),
      list_bytes() + partials_bytes() + rows * sketch_size_ * sizeof(float)};
  return launcher.start({pass_kernel(dtype_, argument.in_shared()), &argument, argument.blocks,
                         static_cast<std::uint32_t>(shared), traffic},
                        stream);
}

Status finish(device::Launcher& launcher, const Step& step, std::uint64_t traffic, void* stream) {
  const std::uint32_t blocks = step.gradient_blocks() + step.sketch_blocks();
  if (blocks == 0) return {};
  return launcher.start({finish_kernel(), &step, blocks, 0, {0, traffic}}, stream);
}

}  // namespace presum::observe::cuda
