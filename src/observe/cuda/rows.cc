// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/rows.h"

#include "observe/cuda/row_threads.h"

namespace presum::observe::cuda {

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
  return launcher.start({rows_kernel(),
                         &rows,
                         static_cast<std::uint32_t>(batch.rows),
                         0,
                         {0, batch.rows * (rows.places() * bytes + sizeof(*hashes))}},
                        stream);
}

}  // namespace presum::observe::cuda
