// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "cli/tensor_layout.h"

namespace presum::cli {

// Whether a file that begins so is a .npy.
bool is_npy(std::string_view begin);
inline constexpr std::uint64_t kNpyMagicBytes = 6;

// One array. `raw`: what two raw bytes are, which is how bf16 is kept. Errors: kIo, kCorrupt (not a
// whole .npy), kUnsupported (another dtype or layout), kInvalidArgument (raw bytes of which nobody
// said what they are).
Result<TensorLayout> read_npy(InputFile& file, std::optional<Dtype> raw);

}  // namespace presum::cli
