// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "observe/gradient_pass.h"
#include "presum/dtype.h"
#include "presum/status.h"

// The pass of observe/gradient_pass.h over a gradient in the memory of a CUDA device; there only
// where presum was built with PRESUM_CUDA. Fingerprint, maximum and count are the same bits as
// those of the CPU. The sum of squares keeps 1e-12, a sketch 1e-5 of its size (relative): orders of
// additions differ, but are fixed, so that every GPU gives the same bits.
namespace presum::observe::cuda {

// Where the results go, in device memory.
struct Results {
  double* sum_squares;
  double* max_abs;
  std::int64_t* nonfinite;
  std::uint64_t* fingerprint;
  std::int64_t* zeros;
};

// Bytes of device memory that gradient_pass needs for itself: at most 16.1 MiB.
std::size_t workspace_bytes(std::size_t count, std::uint32_t sketch_size);

// Queues the pass on `stream`, a cudaStream_t of the current device, and returns; nothing waits,
// nothing is allocated. The sketch is added to sketch.values. All pointers are device memory that
// must stay as it is until the stream has come so far; `workspace` is aligned to 16 bytes, `data`
// to an element. Any count, 0 included. Thread-safe, as long as no two passes that are under way
// share results, sketch or workspace. Fails with kInvalidArgument where the sketch's size is none,
// with kIo where CUDA refuses the launch; failures on the device show later, in the stream.
Status gradient_pass(const void* data, std::size_t count, Dtype dtype, SketchSpan sketch,
                     Results results, void* workspace, void* stream);

}  // namespace presum::observe::cuda
