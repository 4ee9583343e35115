// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"
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

}  // namespace presum::python

NB_MODULE(_core, m) {
  // A monitor may live until the interpreter ends, in the user's globals: that is no leak.
  nanobind::set_leak_warnings(false);
  m.attr("__version__") = presum::version();
  presum::python::bind_observer(m);
  presum::python::bind_moments(m);
  presum::python::bind_rows(m);
  presum::python::bind_value_sample(m);
  presum::python::bind_aggregator(m);
  presum::python::bind_runlog(m);
  presum::python::bind_cli(m);
  presum::python::bind_cuda(m);
  presum::python::bind_cuda_sums(m);
  presum::python::bind_reduce(m);
  presum::python::bind_audit(m);
  presum::python::bind_tap(m);
}
