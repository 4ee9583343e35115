// SPDX-License-Identifier: Apache-2.0
//
// Processor time that the aggregator needs for one step of a large job: decoding every worker's
// packet, the metrics that are due at every step (not the W x W matrix) and the run log. `--quick`:
// a tiny run that shows that it works, not how fast it is.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "presum/aggregator.h"
#include "step/steps.h"
#include "timing.h"

namespace presum {
namespace {

constexpr double kTargetMs = 20;

struct Size {
  std::uint32_t workers = 1024;
  std::uint32_t groups = 100;
  std::uint32_t sketch = 1024;
  std::uint64_t steps = 31;
};

class Workers {
 public:
  explicit Workers(const Size& size) : size_(size) {
    std::vector<Parameter> parameters;
    for (std::uint32_t g = 0; g < size.groups; ++g) {
      parameters.push_back({fmt::format("model.layers.{}.weight", g), kElements, ""});
    }
    for (std::uint32_t w = 0; w < size.workers; ++w) {
      steps_.push_back(
          *step::Steps::create({.identity = {.replica = w, .rank = w, .replicas = size.workers},
                                .sketch_size = size.sketch,
                                .host = fmt::format("node-{}", w / 8)},
                               parameters, {}));
    }
    std::normal_distribution<float> normal;
    for (float& x : values_) x = normal(random_);
  }

  Packet hello(std::uint32_t worker) const { return steps_[worker].hello(); }

  Packet step(std::uint32_t worker, std::uint64_t number) {
    step::Steps& steps = steps_[worker];
    steps.begin_step(number);
    for (ParameterId p = 0; p < size_.groups; ++p) {
      const float* data = values_.data() + random_() % (values_.size() - kElements);
      if (!steps.gradients().read(p, data, kElements, Dtype::kF32, false)) std::abort();
    }
    steps.loss(1 + 0.001 * static_cast<double>(random_() % 1000), 1, 4096);
    return step::end_step(steps, {.optimizer_step = number});
  }

 private:
  static constexpr std::size_t kElements = 64;

  Size size_;
  std::mt19937_64 random_{1};
  std::vector<step::Steps> steps_;
  std::vector<float> values_ = std::vector<float>(1 << 16);
};

void ingest(Aggregator& monitor, const Packet& packet) {
  if (const auto done = monitor.ingest(packet.bytes); !done) {
    fmt::print(stderr, "ingest_bench: {}\n", done.error().message);
    std::exit(1);
  }
}

// Milliseconds per step.
std::vector<double> time_steps(Aggregator& monitor, Workers& workers, const Size& size) {
  std::vector<double> times;
  for (std::uint64_t number = 1; number <= size.steps; ++number) {
    std::vector<Packet> packets;
    for (std::uint32_t w = 0; w < size.workers; ++w) {
      packets.push_back(workers.step(w, number));
      packets.back().stamp(monitor.announcement());
    }
    const double begin = thread_seconds();
    for (const Packet& packet : packets) ingest(monitor, packet);
    if (number > 1) times.push_back(1e3 * (thread_seconds() - begin));  // the first one warms up
  }
  return times;
}

void print(const std::vector<double>& times, const Size& size, bool judged) {
  const auto [median, low, high] = summarize(times);
  fmt::print(
      "{} workers x {} groups, sketch {}: median {:.1f} ms a step, 95% interval {:.1f} to "
      "{:.1f} ms, slowest {:.1f} ms ({} steps)",
      size.workers, size.groups, size.sketch, median, low, high, std::ranges::max(times),
      times.size());
  if (judged) fmt::print("; target {} ms: {}", kTargetMs, median < kTargetMs ? "met" : "missed");
  fmt::print("\n");
}

std::filesystem::path make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "presum-bench-XXXXXX").string();
  return mkdtemp(name.data());
}

void run(const Size& size, bool judged) {
  const auto folder = make_folder();
  {
    auto monitor = Aggregator::open({.run = folder / "run", .clock = nullptr});
    if (!monitor) {
      fmt::print(stderr, "ingest_bench: {}\n", monitor.error().message);
      std::exit(1);
    }
    Workers workers(size);
    for (std::uint32_t w = 0; w < size.workers; ++w) {
      Packet hello = workers.hello(w);
      hello.stamp(monitor->announcement());
      ingest(*monitor, hello);
    }
    print(time_steps(*monitor, workers, size), size, judged);
    if (monitor->counters().steps != size.steps) std::exit(1);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace presum

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const presum::Size size =
      quick ? presum::Size{.workers = 300, .groups = 3, .steps = 3} : presum::Size{};
  presum::run(size, !quick);
}
