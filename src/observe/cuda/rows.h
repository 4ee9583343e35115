// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/kernel.h"
#include "presum/fingerprint.h"
#include "presum/status.h"

namespace presum::observe::cuda {

// presum::hash_rows for a batch in device memory, with one launch and the same bits. Writes one
// hash per row to `hashes`, also in device memory. Launches nothing if there are no rows. Fails
// with kInvalidArgument for more than 2^31 - 1 rows.
Status hash_rows(device::Launcher& launcher, const RowBatch& batch, std::uint64_t* hashes,
                 void* stream);

}  // namespace presum::observe::cuda
