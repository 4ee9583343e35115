// SPDX-License-Identifier: Apache-2.0
//
// Time of comparing an actual sum of W buffers with the exact one, as a ratio to a plain sum of the
// same buffers. `--quick`: a tiny run that shows that it works, not how fast it is.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "audit/audit.h"
#include "audit/scan.h"
#include "audit/synthetic.h"
#include "audit/values.h"
#include "base/float_environment.h"
#include "base/simd.h"
#include "base/simd_dispatch.h"
#include "timing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/audit_bench.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "plain_sum-inl.h"

#if HWY_ONCE

namespace presum {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Clock::duration kLimit = std::chrono::seconds(10);  // a row, after three rounds

struct Options {
  std::size_t bytes = std::size_t{256} << 20;  // of all buffers together
  int rounds = 31;
};

struct Case {
  Dtype dtype;
  std::size_t workers;
};
constexpr Case kCases[] = {
    {Dtype::kF32, 8}, {Dtype::kF32, 64}, {Dtype::kBF16, 8}, {Dtype::kBF16, 64}};

// Workers' buffers, and their sum as eight buffers at a time add it in fp32.
class Bench {
 public:
  Bench(const Case& c, const Options& o)
      : case_(c),
        count_(o.bytes / c.workers / element_bytes(c.dtype) / 4096 * 4096),
        plain_(leaves_, c.dtype, count_) {
    std::vector<double> draws(std::size_t{1} << 16);
    for (std::size_t worker = 0; worker < c.workers; ++worker) {
      audit::generate(audit::Distribution::kGradients, 1, static_cast<std::uint32_t>(worker), 0,
                      draws);
      rows_.push_back(packed(draws));
      leaves_.push_back(rows_.back().data());
    }
    plain_.run();
    result_ = plain_.result();
  }

  void print_row(const Options& o) {
    plain_.find_best_traversal();
    std::vector<double> scans, audits, plain_gb;
    const auto begin = Clock::now();
    for (int round = 0; round < o.rounds && (round < 3 || Clock::now() - begin < kLimit); ++round) {
      const double plain_s = seconds([this] { return plain_.run(); });
      scans.push_back(seconds([this] { return scan(); }) / plain_s);
      audits.push_back(seconds([this] { return compare(); }) / plain_s);
      plain_gb.push_back(bytes() / plain_s * 1e-9);
    }
    const Ratio a = summarize(scans), b = summarize(audits);
    std::printf(
        "audit W=%-4zu %-5s %10zu %6.2f [%4.2f, %4.2f] %6.2f [%4.2f, %4.2f] %6.1f GB/s, %zu "
        "rounds\n",
        case_.workers, case_.dtype == Dtype::kBF16 ? "bf16" : "fp32", count_, a.median, a.low,
        a.high, b.median, b.low, b.high, median(plain_gb), scans.size());
    std::fflush(stdout);
  }

 private:
  std::vector<std::byte> packed(const std::vector<double>& draws) const {
    std::vector<float> values(draws.begin(), draws.end());
    audit::round_to(case_.dtype, std::span(values));
    const std::size_t width = element_bytes(case_.dtype);
    std::vector<std::byte> once(values.size() * width), row(count_ * width);
    audit::pack(std::span<const float>(values), case_.dtype, once.data());
    for (std::size_t at = 0; at < row.size(); at += once.size()) {
      std::memcpy(row.data() + at, once.data(), std::min(once.size(), row.size() - at));
    }
    return row;
  }

  double bytes() const {
    return static_cast<double>(count_ * case_.workers * element_bytes(case_.dtype));
  }

  std::uint64_t scan() const {
    const base::DefaultFloatEnvironment environment;
    audit::Scan<float> pass(static_cast<std::uint32_t>(case_.workers), case_.dtype, 1);
    pass.add(leaves_, count_, result_.data());
    return pass.result().measures.differing;
  }
  std::uint64_t compare() const {
    const auto auditor = audit::Auditor::create(case_.workers, case_.dtype, 1, count_);
    if (!auditor || !(*auditor)->add(leaves_, count_, result_.data())) return 0;
    return (*auditor)->comparison().measures.differing;
  }

  Case case_;
  std::size_t count_;
  std::vector<std::vector<std::byte>> rows_;
  Leaves leaves_;
  PlainSum plain_;
  std::vector<std::byte> result_;
};

int run(const Options& options) {
  std::printf(
      "Ratio of time to a plain fp32 sum of the same W buffers (%zu MiB together), which has the\n"
      "same instructions, eight buffers at a time, and the tile and prefetch distance that are "
      "best\n"
      "for it. One thread, its processor time. A round times all, one after the other. Shown: the\n"
      "median of the rounds' ratios (at most %d rounds) [its 95%% interval from order "
      "statistics].\n"
      "measures: the pass over all elements. whole: and the inference of format and order. "
      "Made-up\n"
      "gradients; the result is their sum in fp32, rounded to their dtype.\n\n",
      options.bytes >> 20, options.rounds);
  std::printf("%-11s %-5s %10s %-19s %-19s  %s\n", "", "dtype", "elements", "measures", "whole",
              "plain sum");
  for (const Case& c : kCases) Bench(c, options).print_row(options);
  return 0;
}

}  // namespace
}  // namespace presum

int main(int argc, char** argv) {
  presum::Options options;
  if (presum::is_quick(argc, argv)) options = {.bytes = std::size_t{4096} * 4 * 64, .rounds = 3};
  return presum::run(options);
}

#endif  // HWY_ONCE
