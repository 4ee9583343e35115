// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/kernel.h"
#include "presum/fingerprint.h"
#include "presum/status.h"

namespace presum::observe::cuda {

// presum::hash_rows of a batch in device memory, into `hashes` there, one a row: one launch, and
// the same bits. Nothing is launched for no row. Fails with kInvalidArgument for more than
// 2^31 - 1 rows.
Status hash_rows(device::Launcher& launcher, const RowBatch& batch, std::uint64_t* hashes,
                 void* stream);

}  // namespace presum::observe::cuda
