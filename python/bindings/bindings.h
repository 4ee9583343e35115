// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/kernel.h"
#include "presum/dtype.h"
#include "presum/finding.h"
#include "presum/packet.h"
#include "presum/status.h"

namespace presum::python {

void bind_enums(nanobind::module_& m);  // before all others
void bind_observer(nanobind::module_& m);
void bind_snapshots(nanobind::module_& m);  // after bind_observer
void bind_rows(nanobind::module_& m);
void bind_value_sample(nanobind::module_& m);
void bind_aggregator(nanobind::module_& m);
void bind_runlog(nanobind::module_& m);
void bind_cli(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_reduce(nanobind::module_& m);
void bind_audit(nanobind::module_& m);  // after bind_observer
void bind_tap(nanobind::module_& m);
void bind_parameter_hook(nanobind::module_& m);  // after bind_observer
void bind_plain_tensor(nanobind::module_& m);    // likewise
void bind_watch(nanobind::module_& m);

inline nanobind::bytes to_bytes(const Packet& packet) {
  return nanobind::bytes(packet.bytes.data(), packet.bytes.size());
}

// Fields of presum.findings.Finding by name, one dict a finding.
nanobind::list to_list(const std::vector<Finding>& findings);

// Borrows: valid while `bytes` lives.
inline std::span<const std::byte> as_span(const nanobind::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

// An address in the memory of a device.
template <class T>
T* device_pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// A tensor's or array's data_ptr() as a pointer; the caller holds it during the call. Raises
// ValueError for address 0 with elements: what has no memory must not be read.
template <class T>
T* memory_at(std::uintptr_t address, std::size_t count) {
  if (address == 0 && count > 0) {
    throw nanobind::value_error("presum: a buffer with elements has the address 0");
  }
  return reinterpret_cast<T*>(address);
}
std::vector<const void*> memory_at(const std::vector<std::uintptr_t>& addresses, std::size_t count);

// Contiguous values in host memory: NumPy's, torch's, or anything that exports a buffer. Arguments
// are never converted, so what is written is the caller's own.
using Array = nanobind::ndarray<nanobind::ro, nanobind::device::cpu, nanobind::c_contig>;
using Room = nanobind::ndarray<nanobind::device::cpu, nanobind::c_contig>;
template <class T>
using ArrayOf = nanobind::ndarray<const T, nanobind::device::cpu, nanobind::c_contig>;
template <class T>
using RoomOf = nanobind::ndarray<T, nanobind::device::cpu, nanobind::c_contig>;

// Where an array lies. Raises ValueError for one that has elements and no memory.
template <class Any>
auto* memory_of(const Any& array) {
  if (array.data() == nullptr && array.size() > 0) {
    throw nanobind::value_error("presum: an array with elements has the address 0");
  }
  return array.data();
}

std::optional<Dtype> known_dtype(nanobind::dlpack::dtype dtype);
// Raises ValueError for what is no Dtype.
Dtype dtype_of(nanobind::dlpack::dtype dtype);
// Raises ValueError for another number of elements.
void require_size(std::size_t count, std::size_t wanted);
// Their memory: leaves of one sum. Raises ValueError for another dtype, or number of elements.
std::vector<const void*> memory_of(const std::vector<Array>& leaves, Dtype dtype,
                                   std::size_t count);

// An Error becomes ValueError (the caller's input) or OSError.
[[noreturn]] void raise(const Error& error);
template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  return *std::move(result);
}
inline void unwrap(const Status& status) {
  if (!status) raise(status.error());
}

// Runs `work` with the GIL released; it must not touch Python.
template <class Work>
auto without_gil(Work&& work) {
  nanobind::gil_scoped_release release;
  return work();
}

// Of the current device, or of the host's grid, where that stands in for it.
Result<device::Launcher*> cuda_launcher();

// A launch on it, with the GIL released: a launch may wait for others.
template <class Launch>
Status on_device(Launch&& launch) {
  return without_gil([&]() -> Status {
    const Result<device::Launcher*> launcher = cuda_launcher();
    return launcher ? launch(**launcher) : Status(launcher.error());
  });
}

}  // namespace presum::python
