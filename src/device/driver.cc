// SPDX-License-Identifier: Apache-2.0
#include "device/driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace presum::device {
namespace {

// The part of CUDA's driver API that presum uses. Handles are pointers; results are 0 or an error
// number.
struct Driver {
  using Handle = void*;

  int (*cuCtxGetDevice)(int* device);
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  int (*cuGetErrorString)(int error, const char** text);
  int (*cuLibraryLoadData)(Handle* library, const void* code, void* jit_options, void** jit_values,
                           unsigned jit_count, void* options, void** values, unsigned count);
  int (*cuLibraryGetKernel)(Handle* kernel, Handle library, const char* name);
  int (*cuLaunchKernel)(Handle kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        Handle stream, void** arguments, void** extra);
};

constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<Driver> load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(ErrorCode::kUnsupported, "there is no driver of CUDA");
  Driver d{};
  const bool whole = find_function(library, "cuCtxGetDevice", d.cuCtxGetDevice) &&
                     find_function(library, "cuDeviceGetAttribute", d.cuDeviceGetAttribute) &&
                     find_function(library, "cuGetErrorString", d.cuGetErrorString) &&
                     find_function(library, "cuLibraryLoadData", d.cuLibraryLoadData) &&
                     find_function(library, "cuLibraryGetKernel", d.cuLibraryGetKernel) &&
                     find_function(library, "cuLaunchKernel", d.cuLaunchKernel);
  if (!whole) return fail(ErrorCode::kUnsupported, "CUDA's driver is older than 525 (CUDA 12.0)");
  return d;
}

const Result<Driver>& driver() {
  static const Result<Driver> loaded = load_driver();
  return loaded;
}

Status checked(const Driver& d, int result, const char* what) {
  if (result == 0) return {};
  const char* text = nullptr;
  d.cuGetErrorString(result, &text);
  return fail(ErrorCode::kIo, std::string("CUDA: ") + what + ": " +
                                  (text != nullptr ? text : std::to_string(result)));
}

// The kernels of all rooms for one GPU architecture. The driver loads them into the context in
// which they are started.
class Kernels final : public Launcher {
 public:
  static Result<std::unique_ptr<Kernels>> load(const Driver& d, unsigned gpu) {
    std::unique_ptr<Kernels> kernels(new Kernels(d));
    for (const Image& one : images()) {
      Driver::Handle& library = kernels->libraries_[one.room];
      if (library != nullptr) continue;
      const Image* image = image_for(images(), one.room, gpu);
      if (image == nullptr) {
        return fail(ErrorCode::kUnsupported, std::string("no kernel of ") + one.room +
                                                 " for GPUs of kind " + std::to_string(gpu));
      }
      const Status ok = checked(
          d, d.cuLibraryLoadData(&library, image->code, nullptr, nullptr, 0, nullptr, nullptr, 0),
          "loading kernels");
      if (!ok) return ok.error();
    }
    return kernels;
  }

  Status start(const Launch& launch, void* stream) override {
    const Result<Driver::Handle> found = find(launch.kernel);
    if (!found) return found.error();
    void* arguments[] = {const_cast<void*>(launch.argument)};
    return checked(driver_,
                   driver_.cuLaunchKernel(*found, launch.blocks, 1, 1, launch.kernel.threads, 1, 1,
                                          launch.shared_bytes, stream, arguments, nullptr),
                   launch.kernel.name);
  }

 private:
  explicit Kernels(const Driver& d) : driver_(d) {}

  Result<Driver::Handle> find(const Kernel& kernel) {
    const std::lock_guard lock(mutex_);
    Driver::Handle& handle = kernels_[&kernel];
    if (handle != nullptr) return handle;
    const Status ok =
        checked(driver_, driver_.cuLibraryGetKernel(&handle, libraries_[kernel.room], kernel.name),
                kernel.name);
    if (!ok) return ok.error();
    return handle;
  }

  const Driver& driver_;
  std::map<std::string_view, Driver::Handle> libraries_;  // by room
  std::mutex mutex_;
  std::map<const Kernel*, Driver::Handle> kernels_;
};

Result<unsigned> current_gpu(const Driver& d) {
  int device = 0, major = 0, minor = 0;
  Status ok = checked(d, d.cuCtxGetDevice(&device), "device");
  if (ok) ok = checked(d, d.cuDeviceGetAttribute(&major, kComputeCapabilityMajor, device), "kind");
  if (ok) ok = checked(d, d.cuDeviceGetAttribute(&minor, kComputeCapabilityMinor, device), "kind");
  if (!ok) return ok.error();
  return static_cast<unsigned>(10 * major + minor);
}

}  // namespace

const Image* image_for(std::span<const Image> images, std::string_view room, unsigned gpu) {
  const Image* best = nullptr;
  for (const Image& image : images) {
    if (image.room != room) continue;
    const bool fits = image.gpu <= gpu && (image.is_ptx || image.gpu / 10 == gpu / 10);
    const bool better =
        best == nullptr || (image.is_ptx == best->is_ptx ? image.gpu > best->gpu : best->is_ptx);
    if (fits && better) best = &image;
  }
  return best;
}

Result<Launcher*> driver_launcher() {
  if (images().empty()) {
    return fail(ErrorCode::kUnsupported, "presum was built without kernels for CUDA");
  }
  const Result<Driver>& found = driver();
  if (!found) return found.error();
  const Result<unsigned> gpu = current_gpu(*found);
  if (!gpu) return gpu.error();
  static std::mutex mutex;
  static std::map<unsigned, Result<std::unique_ptr<Kernels>>> loaded;
  const std::lock_guard lock(mutex);
  auto kernels = loaded.find(*gpu);
  if (kernels == loaded.end()) {
    kernels = loaded.emplace(*gpu, Kernels::load(*found, *gpu)).first;
  }
  if (!kernels->second) return kernels->second.error();
  return (*kernels->second).get();
}

}  // namespace presum::device
