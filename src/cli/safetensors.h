// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/tensor_layout.h"

namespace presum::cli {

// All tensors of a .safetensors, by name. Errors: kIo, kCorrupt (it breaks a rule of the format, or
// has tensors of several dtypes, or of another one).
Result<TensorLayout> read_safetensors(InputFile& file);

}  // namespace presum::cli
