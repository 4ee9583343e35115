// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "checks/engine/check.h"
#include "presum/version.h"

namespace presum::python {

void raise(const Error& error) {
  const bool callers = error.code == ErrorCode::kInvalidArgument;
  // A message may name what a file holds, which may be no text.
  const auto text = nanobind::steal(PyUnicode_DecodeUTF8(
      error.message.data(), static_cast<Py_ssize_t>(error.message.size()), "replace"));
  PyErr_SetObject(callers ? PyExc_ValueError : PyExc_OSError, text.ptr());
  throw nanobind::python_error();
}

std::vector<const void*> memory_at(const std::vector<std::uintptr_t>& addresses,
                                   std::size_t count) {
  std::vector<const void*> out;
  out.reserve(addresses.size());
  for (const std::uintptr_t address : addresses) {
    out.push_back(memory_at<const void>(address, count));
  }
  return out;
}

std::optional<Dtype> known_dtype(nanobind::dlpack::dtype dtype) {
  using Code = nanobind::dlpack::dtype_code;
  if (dtype.lanes == 1) {
    const bool bfloat = dtype.code == static_cast<std::uint8_t>(Code::Bfloat);
    const bool real = dtype.code == static_cast<std::uint8_t>(Code::Float);
    if (bfloat && dtype.bits == 16) return Dtype::kBF16;
    if (real && dtype.bits == 16) return Dtype::kF16;
    if (real && dtype.bits == 32) return Dtype::kF32;
    if (real && dtype.bits == 64) return Dtype::kF64;
  }
  return std::nullopt;
}

Dtype dtype_of(nanobind::dlpack::dtype dtype) {
  if (const auto known = known_dtype(dtype)) return *known;
  throw nanobind::value_error("presum: elements must be float32, float64, bfloat16 or float16");
}

void require_size(std::size_t count, std::size_t wanted) {
  if (count == wanted) return;
  raise({ErrorCode::kInvalidArgument, "presum: an array of " + std::to_string(count) +
                                          " elements, where it must have " +
                                          std::to_string(wanted)});
}

std::vector<const void*> memory_of(const std::vector<Array>& leaves, Dtype dtype,
                                   std::size_t count) {
  std::vector<const void*> out;
  out.reserve(leaves.size());
  for (const Array& leaf : leaves) {
    if (dtype_of(leaf.dtype()) != dtype) {
      throw nanobind::value_error("presum: leaves must be of one dtype");
    }
    require_size(leaf.size(), count);
    out.push_back(memory_of(leaf));
  }
  return out;
}

}  // namespace presum::python

NB_MODULE(_core, m) {
  // A monitor may live until the interpreter ends, in the user's globals: that is no leak.
  nanobind::set_leak_warnings(false);
  m.attr("__version__") = presum::version();
  m.def("check_ids", [] {
    std::vector<std::string> out;
    for (const presum::checks::Check check : presum::checks::catalog()) out.emplace_back(check->id);
    return out;
  });
  presum::python::bind_enums(m);
  presum::python::bind_observer(m);
  presum::python::bind_snapshots(m);
  presum::python::bind_rows(m);
  presum::python::bind_value_sample(m);
  presum::python::bind_aggregator(m);
  presum::python::bind_runlog(m);
  presum::python::bind_cli(m);
  presum::python::bind_cuda(m);
  presum::python::bind_reduce(m);
  presum::python::bind_audit(m);
  presum::python::bind_tap(m);
  presum::python::bind_parameter_hook(m);
  presum::python::bind_plain_tensor(m);
  presum::python::bind_watch(m);
}
