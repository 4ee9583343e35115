// SPDX-License-Identifier: Apache-2.0
//
// Throughput of the gradient pass as a ratio to a plain read of the same bytes, for every SIMD
// target and dtype. `--quick`: a tiny run that shows that it works, not how fast it is.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/simd.h"
#include "base/simd_dispatch.h"
#include "observe/gradient_pass.h"
#include "timing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/kernel_bench.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

#ifndef PRESUM_BENCH_KERNEL_BENCH_ONCE
#define PRESUM_BENCH_KERNEL_BENCH_ONCE

namespace presum {
namespace {

// How many bytes ahead memory is fetched into the first and into the second cache; 0: not at all.
struct Prefetch {
  std::size_t near = 0, far = 0;
};

}  // namespace
}  // namespace presum

#endif

HWY_BEFORE_NAMESPACE();
namespace presum {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The baseline: the sum of all 64-bit words, in eight accumulators. `bytes` is a multiple of 1,024.
std::uint64_t read_kernel(const std::uint8_t* data, std::size_t bytes, const Prefetch& prefetch) {
  const hn::ScalableTag<std::uint64_t> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<std::uint64_t>());
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  const std::size_t count = bytes / sizeof(std::uint64_t);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (std::size_t i = 0; i < count; i += 8 * kLanes) {
    const auto at = reinterpret_cast<std::uintptr_t>(words + i);
    for (std::size_t line = 0; prefetch.near > 0 && line < kLanes; ++line) {
      __builtin_prefetch(reinterpret_cast<const void*>(at + prefetch.near + 64 * line), 0, 3);
    }
    for (std::size_t line = 0; prefetch.far > 0 && line < kLanes; ++line) {
      __builtin_prefetch(reinterpret_cast<const void*>(at + prefetch.far + 64 * line), 0, 2);
    }
    s0 = hn::Add(s0, hn::LoadU(d, words + i));
    s1 = hn::Add(s1, hn::LoadU(d, words + i + kLanes));
    s2 = hn::Add(s2, hn::LoadU(d, words + i + 2 * kLanes));
    s3 = hn::Add(s3, hn::LoadU(d, words + i + 3 * kLanes));
    s4 = hn::Add(s4, hn::LoadU(d, words + i + 4 * kLanes));
    s5 = hn::Add(s5, hn::LoadU(d, words + i + 5 * kLanes));
    s6 = hn::Add(s6, hn::LoadU(d, words + i + 6 * kLanes));
    s7 = hn::Add(s7, hn::LoadU(d, words + i + 7 * kLanes));
  }
  const auto low = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  const auto high = hn::Add(hn::Add(s4, s5), hn::Add(s6, s7));
  std::uint64_t sums[kLanes];
  hn::StoreU(hn::Add(low, high), d, sums);
  return std::accumulate(sums, sums + kLanes, std::uint64_t{0});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum {
namespace {

HWY_EXPORT(read_kernel);

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBuckets = 4096;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kCached = std::size_t{256} << 10;
constexpr Clock::duration kLimit = std::chrono::seconds(20);  // a row, after three rounds

struct Options {
  std::size_t bytes = std::size_t{256} << 20;
  std::size_t timed_bytes = std::size_t{64} << 20;  // at least
  int rounds = 31;
};

constexpr Prefetch kPrefetches[] = {{0, 0},    {256, 0},  {512, 0},     {1024, 0},
                                    {2048, 0}, {4096, 0}, {1024, 8192}, {2048, 16384}};

struct NamedDtype {
  const char* name;
  Dtype dtype;
};
constexpr NamedDtype kDtypes[] = {
    {"f32", Dtype::kF32}, {"bf16", Dtype::kBF16}, {"f16", Dtype::kF16}, {"f64", Dtype::kF64}};

// Finite elements of middling size, whatever their type: exponents differ in three bits only.
void fill_gradient(Dtype dtype, std::uint8_t* data, std::size_t bytes) {
  const std::size_t width = element_bytes(dtype);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = splitmix64(i);
    std::memcpy(data + i, &word, 8);
  }
  for (std::size_t i = width - 1; i < bytes; i += width) {
    data[i] = static_cast<std::uint8_t>((data[i] & 0x83) | 0x38);
  }
}

class Bench {
 public:
  Bench(Dtype dtype, const Options& options)
      : dtype_(dtype),
        rounds_(options.rounds),
        repeats_(std::max(std::size_t{1}, options.timed_bytes / options.bytes)),
        bytes_(options.bytes),
        storage_(options.bytes + kAlignment),
        sketch_(kBuckets) {
    void* start = storage_.data();
    std::size_t space = storage_.size();
    data_ = static_cast<std::uint8_t*>(std::align(kAlignment, bytes_, start, space));
    fill_gradient(dtype, data_, bytes_);
    read_prefetch_ = best_prefetch();
  }

  void print_row(std::string_view target, const char* dtype_name) {
    std::vector<double> read_gb, pass_gb, full, plain;
    const auto begin = Clock::now();
    for (int round = 0; round < rounds_ && (round < 3 || Clock::now() - begin < kLimit); ++round) {
      const double read_s = a_read();
      const double pass_s = repeated([this] { return gradient(kBuckets); });
      read_gb.push_back(gigabytes() / read_s);
      pass_gb.push_back(gigabytes() / pass_s);
      full.push_back(read_s / pass_s);
      plain.push_back(a_read() / repeated([this] { return gradient(0); }));
    }
    std::printf("%-8.*s %-5s", static_cast<int>(target.size()), target.data(), dtype_name);
    for (const auto* ratios : {&full, &plain}) {
      const Ratio ratio = summarize(*ratios);
      std::printf("  %5.3f [%5.3f, %5.3f]", ratio.median, ratio.low, ratio.high);
    }
    std::printf("  %5.1f GB/s  %5.1f GB/s, prefetch %zu and %zu, %zu rounds\n", median(pass_gb),
                median(read_gb), read_prefetch_.near, read_prefetch_.far, read_gb.size());
    std::fflush(stdout);
  }

 private:
  template <class Work>
  double repeated(const Work& work) const {
    return seconds([&] {
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < repeats_; ++i) last = work();
      return last;
    });
  }

  double a_read() const {
    return repeated([this] { return read(read_prefetch_); });
  }

  double gigabytes() const { return static_cast<double>(bytes_ * repeats_) * 1e-9; }

  std::uint64_t read(const Prefetch& prefetch) const {
    return PRESUM_SIMD_DISPATCH(read_kernel)(data_, bytes_, prefetch);
  }

  std::uint64_t gradient(std::uint32_t buckets) {
    const observe::SketchSpan sketch{sketch_.data(), buckets, 1};
    return observe::gradient_pass(data_, count(), dtype_, sketch).fingerprint;
  }

  std::size_t count() const { return bytes_ / element_bytes(dtype_); }

  // The baseline gets the software prefetch that makes it fastest here.
  Prefetch best_prefetch() const {
    Prefetch best;
    double best_s = 0;
    for (const Prefetch& prefetch : kPrefetches) {
      std::vector<double> times;
      for (int i = 0; i < 7; ++i) times.push_back(repeated([&] { return read(prefetch); }));
      const double time_s = median(times);
      if (best_s == 0 || time_s < best_s) {
        best = prefetch;
        best_s = time_s;
      }
    }
    return best;
  }

  Dtype dtype_;
  int rounds_;
  std::size_t repeats_;
  std::size_t bytes_;
  std::vector<std::uint8_t> storage_;
  std::uint8_t* data_ = nullptr;
  std::vector<float> sketch_;
  Prefetch read_prefetch_;
};

int print_table(const Options& options) {
  std::printf("\n%zu KiB\n%-8s %-5s  %-21s  %-21s  %-10s  %s\n", options.bytes >> 10, "target",
              "dtype", "gradient pass/read", "without sketch/read", "pass", "read");
  for (const std::string_view target : base::simd_targets()) {
    if (const Status forced = base::set_simd_target(target); !forced) return 1;
    for (const auto& [name, dtype] : kDtypes) Bench(dtype, options).print_row(target, name);
  }
  return 0;
}

int run(const Options& options) {
  std::printf(
      "Ratio of throughput to a plain read of the same bytes: the sum of 64-bit words, with the\n"
      "same target and the prefetch that is best for it; first of a buffer that no cache holds,\n"
      "then of one that the second-level cache does, as after a backward pass. 64-byte aligned;\n"
      "one thread, its processor time. A round times read and pass one after the other. Shown: "
      "the\n"
      "median of the rounds' ratios (at most %d rounds) [its 95%% interval from order statistics;\n"
      "of three rounds, their range]. Gradient pass: norm, maximum, fingerprint, and a sketch of\n"
      "%u buckets.\n",
      options.rounds, kBuckets);
  Options in_cache = options;
  in_cache.bytes = kCached;
  const int failed = print_table(options);
  return failed != 0 ? failed : print_table(in_cache);
}

}  // namespace
}  // namespace presum

int main(int argc, char** argv) {
  presum::Options options;
  if (presum::is_quick(argc, argv))
    options = {.bytes = std::size_t{64} << 10, .timed_bytes = 0, .rounds = 3};
  return presum::run(options);
}

#endif  // HWY_ONCE
