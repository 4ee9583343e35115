// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "device/driver.h"
#include "device/host_grid.h"
#include "observe/cuda/batch.h"
#include "observe/cuda/rows.h"

namespace presum::python {
namespace {

using device::HostGrid;
using device::Launcher;
using observe::cuda::GradientBatch;

// Where set, kernels run on the host's grid, in host memory, and are written down.
std::unique_ptr<HostGrid>& host_grid() {
  static std::unique_ptr<HostGrid> grid;
  return grid;
}

// Why kernels cannot be started on the current device; nothing where they can.
std::optional<std::string> cuda_lacks() {
  const Result<Launcher*> found = without_gil([] { return cuda_launcher(); });
  if (found) return std::nullopt;
  return found.error().message;
}

void cuda_on_host(bool on) { host_grid() = on ? std::make_unique<HostGrid>() : nullptr; }

using Launched = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t>;

std::vector<Launched> cuda_launched() {
  std::vector<Launched> launched;
  if (host_grid() == nullptr) return launched;
  for (const auto& one : host_grid()->launched()) {
    launched.emplace_back(one.kernel->name, one.blocks, one.traffic.gradient_bytes,
                          one.traffic.other_bytes);
  }
  return launched;
}

// The sums of a step: what its batches left, in their order.
class DeviceSums {
 public:
  explicit DeviceSums(std::uint32_t sketch_size) : sketch_size_(sketch_size) {}

  // Launches a batch on a stream, to whose sketches `rows` belong.
  void read(const GradientBatch& batch, std::uintptr_t list, std::uintptr_t partials,
            std::uintptr_t rows, std::uint32_t rows_in_use, std::uintptr_t stream) {
    auto* places = device_pointer<observe::cuda::Partial>(partials);
    unwrap(on_device([&](Launcher& launcher) {
      return batch.launch(launcher,
                          {device_pointer<observe::cuda::Item>(list), places,
                           device_pointer<float>(rows), rows_in_use},
                          device_pointer<void>(stream));
    }));
    const std::vector<observe::cuda::Parts> parts = batch.parts(places);
    parts_.insert(parts_.end(), parts.begin(), parts.end());
    traffic_ += batch.partials_bytes();
  }

  // The sketches that launches on one stream left.
  void add_sketches(std::uintptr_t rows, std::uint64_t count) {
    sketches_.push_back({device_pointer<float>(rows), count});
    traffic_ += count * sketch_size_ * sizeof(float);
  }

  std::size_t gradients() const { return parts_.size(); }
  std::size_t list_bytes() const {
    return parts_.size() * sizeof(parts_[0]) + sketches_.size() * sizeof(sketches_[0]);
  }

  void write_list(std::uintptr_t to) const {
    auto* bytes = memory_at<std::byte>(to, list_bytes());
    const std::size_t parts = parts_.size() * sizeof(parts_[0]);
    if (parts > 0) std::memcpy(bytes, parts_.data(), parts);
    const std::size_t sketches = sketches_.size() * sizeof(sketches_[0]);
    if (sketches > 0) std::memcpy(bytes + parts, sketches_.data(), sketches);
  }

  // `found` takes five words of 64 bits a gradient (sum of squares and maximum as doubles, then
  // non-finite elements, fingerprint, zeros).
  void finish(std::uintptr_t list, std::uintptr_t found, std::uintptr_t sketch,
              std::uintptr_t stream) const {
    const std::uintptr_t sketches = list + parts_.size() * sizeof(parts_[0]);
    const observe::cuda::Step step{device_pointer<observe::cuda::Parts>(list),
                                   device_pointer<observe::cuda::Sketches>(sketches),
                                   device_pointer<observe::cuda::Partial>(found),
                                   device_pointer<float>(sketch),
                                   static_cast<std::uint32_t>(parts_.size()),
                                   static_cast<std::uint32_t>(sketches_.size()),
                                   sketch_size_};
    unwrap(on_device([&](Launcher& launcher) {
      return observe::cuda::finish(launcher, step, traffic_ + list_bytes(),
                                   device_pointer<void>(stream));
    }));
  }

 private:
  std::uint32_t sketch_size_;
  std::vector<observe::cuda::Parts> parts_;
  std::vector<observe::cuda::Sketches> sketches_;
  std::uint64_t traffic_ = 0;
};

GradientBatch create_batch(Dtype dtype, std::uint32_t sketch_size) {
  return unwrap(GradientBatch::create(dtype, sketch_size));
}

void add_to_batch(GradientBatch& batch, std::uintptr_t address, std::uint64_t count,
                  std::uint64_t seed) {
  batch.add(memory_at<void>(address, count), count, seed);
}

void write_list(const GradientBatch& batch, std::uintptr_t to) {
  if (batch.list_bytes() == 0) return;
  std::memcpy(memory_at<void>(to, batch.list_bytes()), batch.list(), batch.list_bytes());
}

void hash_rows_on_device(std::uintptr_t data, std::uint64_t rows, std::uint64_t columns,
                         std::uint32_t element_bytes, std::uintptr_t mask, std::uint32_t mask_bytes,
                         std::uintptr_t hashes, std::uintptr_t stream) {
  const RowBatch batch{.data = memory_at<const void>(data, rows * columns),
                       .rows = rows,
                       .columns = columns,
                       .element_bytes = element_bytes,
                       .mask = device_pointer<const void>(mask),
                       .mask_bytes = mask_bytes};
  unwrap(on_device([&](Launcher& launcher) {
    return observe::cuda::hash_rows(launcher, batch, device_pointer<std::uint64_t>(hashes),
                                    device_pointer<void>(stream));
  }));
}

}  // namespace

Result<Launcher*> cuda_launcher() {
  if (host_grid() != nullptr) return host_grid().get();
  return device::driver_launcher();
}

void bind_cuda(nanobind::module_& m) {
  using nanobind::literals::operator""_a;
  m.attr("CUDA_KERNELS") = device::images().size();
  m.def("cuda_lacks", &cuda_lacks,
        "Why the CUDA kernels cannot run on the current device; None where they can.");
  m.def("cuda_on_host", &cuda_on_host, "on"_a,
        "Runs kernels on the host, in host memory, and writes launches down; for tests.");
  m.def("cuda_launched", &cuda_launched,
        "Of those: the kernel, blocks, bytes of gradients, other bytes.");
  m.def("cuda_hash_rows", &hash_rows_on_device, "data"_a, "rows"_a, "columns"_a, "element_bytes"_a,
        "mask"_a, "mask_bytes"_a, "hashes"_a, "stream"_a,
        "hash_rows in device memory, on a stream.");
  nanobind::class_<GradientBatch>(m, "GradientBatch",
                                  "Gradients of one dtype that one launch reads.")
      .def_static("create", &create_batch, "dtype"_a, "sketch_size"_a)
      .def("add", &add_to_batch, "address"_a, "count"_a, "seed"_a)
      .def_prop_ro("blocks", &GradientBatch::blocks)
      .def_prop_ro("list_bytes", &GradientBatch::list_bytes)
      .def_prop_ro("partials_bytes", &GradientBatch::partials_bytes)
      .def("write_list", &write_list, "to"_a)
      .def_static("most_blocks", &GradientBatch::most_blocks, "sketch_size"_a);
  nanobind::class_<DeviceSums>(m, "DeviceSums", "What the batches of a step come to.")
      .def(nanobind::init<std::uint32_t>(), "sketch_size"_a)
      .def("read", &DeviceSums::read, nanobind::kw_only(), "batch"_a, "list"_a, "partials"_a,
           "rows"_a, "rows_in_use"_a, "stream"_a)
      .def("add_sketches", &DeviceSums::add_sketches, "rows"_a, "count"_a)
      .def_prop_ro("gradients", &DeviceSums::gradients)
      .def_prop_ro("list_bytes", &DeviceSums::list_bytes)
      .def("write_list", &DeviceSums::write_list, "to"_a)
      .def("finish", &DeviceSums::finish, nanobind::kw_only(), "list"_a, "found"_a, "sketch"_a,
           "stream"_a);
}

}  // namespace presum::python
