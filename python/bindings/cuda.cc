// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"

#ifdef PRESUM_CUDA
#include "observe/cuda/gradient_pass.h"
#endif

namespace presum::python {
namespace {

#ifdef PRESUM_CUDA
template <class T = void>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// `reals` are two doubles (sum of squares, maximum), `counts` three integers of 64 bits
// (non-finite elements, fingerprint, zeros).
void cuda_gradient_pass(std::uintptr_t data, std::size_t count, int dtype, std::uintptr_t sketch,
                        std::uint32_t sketch_size, std::uint64_t seed, std::uintptr_t reals,
                        std::uintptr_t counts, std::uintptr_t workspace, std::uintptr_t stream) {
  auto* real = pointer<double>(reals);
  auto* integer = pointer<std::int64_t>(counts);
  unwrap(observe::cuda::gradient_pass(
      memory_at<void>(data, count), count, static_cast<Dtype>(dtype),
      {pointer<float>(sketch), sketch_size, seed},
      {real, real + 1, integer, pointer<std::uint64_t>(counts) + 1, integer + 2},
      pointer(workspace), pointer(stream)));
}

void bind_passes(nanobind::module_& m) {
  using nanobind::literals::operator""_a;
  m.def("cuda_workspace_bytes", &observe::cuda::workspace_bytes, "count"_a, "sketch_size"_a);
  m.def("cuda_gradient_pass", &cuda_gradient_pass, nanobind::kw_only(), "data"_a, "count"_a,
        "dtype"_a, "sketch"_a, "sketch_size"_a, "seed"_a, "reals"_a, "counts"_a, "workspace"_a,
        "stream"_a, "Queues the pass on a stream; all addresses are on the current device.");
  m.attr("has_cuda") = true;
}
#else
void bind_passes(nanobind::module_& m) { m.attr("has_cuda") = false; }
#endif

}  // namespace

void bind_cuda(nanobind::module_& m) { bind_passes(m); }

}  // namespace presum::python
