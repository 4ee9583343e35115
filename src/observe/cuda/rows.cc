// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/rows.h"

#include <algorithm>

#include "device/host_grid.h"
#include "observe/cuda/row_threads.h"

namespace presum::observe::cuda {
namespace {

using device::each;
using device::Order;

// The grid of kernels.cu on the host.
std::uint64_t hash_row(const Rows& rows, std::uint32_t row, Order order) {
  std::uint64_t left = rows.places();
  if (rows.mask == nullptr) {
    std::uint64_t other = 0;
    each(kRowThreads, order,
         [&](unsigned t) { other = std::max(other, last_other(rows, row, t)); });
    left = without_padding(rows, other);
  }
  RowShare whole{0, 0};
  each(kRowThreads, order, [&](unsigned t) {
    const RowShare share = row_share(rows, row, left, t);
    whole = {whole.sum + share.sum, whole.kept + share.kept};
  });
  return row_hash(whole);
}

void hash_all_rows(const void* argument, std::uint32_t blocks, Order order) {
  const Rows& rows = *static_cast<const Rows*>(argument);
  each(blocks, order, [&](std::uint32_t row) { rows.hashes[row] = hash_row(rows, row, order); });
}

constexpr device::Kernel kKernel = {"observe", "presum_rows", kRowThreads, hash_all_rows};

}  // namespace

Status hash_rows(device::Launcher& launcher, const RowBatch& batch, std::uint64_t* hashes,
                 void* stream) {
  if (batch.rows == 0) return {};
  if (batch.rows > 0x7FFFFFFF) {
    return fail(ErrorCode::kInvalidArgument, "CUDA: too many rows for one launch");
  }
  const Rows rows{batch.data,          batch.mask,       batch.columns,
                  batch.element_bytes, batch.mask_bytes, hashes};
  const std::uint64_t bytes = std::uint64_t{batch.element_bytes} * (batch.mask != nullptr ? 1 : 2) +
                              (batch.mask != nullptr ? batch.mask_bytes : 0);
  return launcher.start({kKernel,
                         &rows,
                         static_cast<std::uint32_t>(batch.rows),
                         0,
                         {0, batch.rows * (rows.places() * bytes + sizeof(*hashes))}},
                        stream);
}

}  // namespace presum::observe::cuda
