// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace presum::observe::cuda {
namespace {

// What is used of CUDA's driver API; handles are pointers, results are 0 or an error's number.
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
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<Driver> load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(ErrorCode::kUnsupported, "there is no driver of CUDA");
  Driver d{};
  const bool whole = find(library, "cuCtxGetDevice", d.cuCtxGetDevice) &&
                     find(library, "cuDeviceGetAttribute", d.cuDeviceGetAttribute) &&
                     find(library, "cuGetErrorString", d.cuGetErrorString) &&
                     find(library, "cuLibraryLoadData", d.cuLibraryLoadData) &&
                     find(library, "cuLibraryGetKernel", d.cuLibraryGetKernel) &&
                     find(library, "cuLaunchKernel", d.cuLaunchKernel);
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
  return fail(ErrorCode::kIo, std::string("CUDA pass: ") + what + ": " +
                                  (text != nullptr ? text : std::to_string(result)));
}

// The kernels of one image; the driver loads them into whichever context they are started in.
class Kernels final : public Launcher {
 public:
  static Result<std::unique_ptr<Kernels>> load(const Driver& d, const Image& image) {
    std::unique_ptr<Kernels> kernels(new Kernels(d));
    Driver::Handle library = nullptr;
    Status ok = checked(
        d, d.cuLibraryLoadData(&library, image.code, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "loading kernels");
    for (std::size_t i = 0; ok && i < kNames.size(); ++i) {
      ok = checked(d, d.cuLibraryGetKernel(&kernels->kernels_[i], library, kNames[i]), kNames[i]);
    }
    if (!ok) return ok.error();
    return kernels;
  }

  Status pass(Dtype dtype, const Batch& batch, const Traffic& /*traffic*/, void* stream) override {
    const unsigned shared = batch.in_shared() ? batch.sums() * sizeof(float) : 0;
    return start(static_cast<std::size_t>(dtype), batch.blocks, kThreads, shared, batch, stream);
  }

  Status finish(const Step& step, const Traffic& /*traffic*/, void* stream) override {
    return start(kNames.size() - 1, step.gradient_blocks() + step.sketch_blocks(), kFinishThreads,
                 0, step, stream);
  }

 private:
  static constexpr std::array<const char*, 5> kNames = {"presum_pass_f32", "presum_pass_f64",
                                                        "presum_pass_bf16", "presum_pass_f16",
                                                        "presum_finish"};  // the first by Dtype

  explicit Kernels(const Driver& d) : driver_(d) {}

  template <class Argument>
  Status start(std::size_t kernel, unsigned blocks, unsigned threads, unsigned shared,
               Argument argument, void* stream) const {
    void* arguments[] = {&argument};
    return checked(driver_,
                   driver_.cuLaunchKernel(kernels_[kernel], blocks, 1, 1, threads, 1, 1, shared,
                                          stream, arguments, nullptr),
                   kNames[kernel]);
  }

  const Driver& driver_;
  std::array<Driver::Handle, kNames.size()> kernels_{};
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

const Image* image_for(std::span<const Image> images, unsigned gpu) {
  const Image* best = nullptr;
  for (const Image& image : images) {
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
  const Image* image = image_for(images(), *gpu);
  if (image == nullptr) {
    return fail(ErrorCode::kUnsupported, "no kernel for GPUs of kind " + std::to_string(*gpu));
  }
  static std::mutex mutex;
  static std::map<const Image*, std::unique_ptr<Kernels>> loaded;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Kernels>& kernels = loaded[image];
  if (kernels == nullptr) {
    Result<std::unique_ptr<Kernels>> now = Kernels::load(*found, *image);
    if (!now) return now.error();
    kernels = *std::move(now);
  }
  return kernels.get();
}

}  // namespace presum::observe::cuda
