// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training in one process: 8 workers as threads fit a linear model, and one of them
// reads labels with the wrong sign from step 100 on. The averaged loss cannot say which; presum
// names the worker.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=<where presum is installed>
//   cmake --build build
//   build/simulation RUN        # writes the folder RUN; then: presum report RUN -o report.html
//
// Nothing here sends packets anywhere: within a process a lock around the aggregator is enough.
#include <presum/aggregator.h>
#include <presum/observer.h>

#include <array>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kWorkers = 8;
constexpr std::uint32_t kFaulty = 5;
constexpr std::uint64_t kFaultStep = 100;
constexpr std::uint64_t kSteps = 200;
constexpr std::size_t kFeatures = 64;
constexpr std::size_t kBatch = 16;
constexpr float kLearningRate = 0.01F;

using Vector = std::array<float, kFeatures>;

float dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0F);
}

// The aggregator, which is one thread at a time, behind a lock.
class SharedAggregator {
 public:
  explicit SharedAggregator(presum::Aggregator aggregator) : aggregator_(std::move(aggregator)) {}

  void take(presum::Packet packet) {
    const std::lock_guard lock(mutex_);
    packet.stamp(aggregator_.run(), aggregator_.segment());
    const auto done = aggregator_.ingest(packet.bytes);
    if (!done && std::exchange(healthy_, false)) {
      std::fprintf(stderr, "presum: %s\n", done.error().message.c_str());
    }
  }

  // REQUIRES: all workers have ended.
  presum::Aggregator& get() { return aggregator_; }

 private:
  std::mutex mutex_;
  presum::Aggregator aggregator_;
  bool healthy_ = true;
};

struct Training {
  SharedAggregator& aggregator;
  std::barrier<> reached{kWorkers};
  std::array<Vector, kWorkers> gradients{};

  // Stands for the all-reduce: everyone waits for everyone, and all get the same mean.
  Vector mean_gradient() {
    reached.arrive_and_wait();
    Vector mean{};
    for (const Vector& gradient : gradients) {
      for (std::size_t i = 0; i < kFeatures; ++i) mean[i] += gradient[i] / kWorkers;
    }
    reached.arrive_and_wait();
    return mean;
  }
};

class Worker {
 public:
  Worker(Training& training, presum::Observer observer, std::uint32_t rank)
      : training_(training), observer_(std::move(observer)), rank_(rank), random_(rank) {
    truth_.fill(1.0F);
  }

  void train() {
    training_.aggregator.take(observer_.hello());
    for (std::uint64_t step = 0; step < kSteps; ++step) train_step(step);
    training_.aggregator.take(observer_.note(true, kSteps, 0, "", kSteps));
  }

 private:
  void train_step(std::uint64_t step) {
    observer_.begin_step(step);
    Vector& gradient = training_.gradients[rank_];
    observer_.loss(loss_and_gradient(step, gradient));
    // Before the reduction, while the gradient is still this worker's own.
    static_cast<void>(observer_.gradient(0, gradient.data(), gradient.size(), presum::Dtype::kF32));
    const Vector mean = training_.mean_gradient();
    for (std::size_t i = 0; i < kFeatures; ++i) weights_[i] -= kLearningRate * mean[i];
    training_.aggregator.take(observer_.end_step({.optimizer_step = step + 1}));
  }

  double loss_and_gradient(std::uint64_t step, Vector& gradient) {
    gradient.fill(0);
    double loss = 0;
    for (std::size_t row = 0; row < kBatch; ++row) {
      Vector x;
      for (float& value : x) value = normal_(random_);
      const float error = dot(weights_, x) - label(x, step);
      loss += error * error / kBatch;
      for (std::size_t i = 0; i < kFeatures; ++i) gradient[i] += 2 * error * x[i] / kBatch;
    }
    return loss;
  }

  float label(const Vector& x, std::uint64_t step) {
    const float right = dot(truth_, x) + normal_(random_);
    return rank_ == kFaulty && step >= kFaultStep ? -right : right;
  }

  Training& training_;
  presum::Observer observer_;
  std::uint32_t rank_;
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  Vector truth_{};
  Vector weights_{};
};

presum::Result<std::vector<Worker>> make_workers(Training& training) {
  std::vector<Worker> workers;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    auto observer = presum::Observer::create(
        {.identity = {.replica = rank, .rank = rank, .replicas = kWorkers}, .host = "simulation"},
        {{.name = "linear.weight", .elements = kFeatures}});
    if (!observer) return observer.error();
    workers.emplace_back(training, std::move(*observer), rank);
  }
  return workers;
}

void print(const presum::Finding& finding) {
  std::printf("%s: %s (%s, steps %ju-%ju, confidence %.0f%%)\n", to_string(finding.severity),
              finding.title.c_str(), finding.check.c_str(),
              static_cast<std::uintmax_t>(finding.first_step),
              static_cast<std::uintmax_t>(finding.last_step), 100 * finding.confidence);
  std::printf("  do: %s\n", finding.remedy.c_str());
}

presum::Status simulate(const std::filesystem::path& run) {
  auto opened = presum::Aggregator::open({.run = run, .world_size = kWorkers});
  if (!opened) return opened.error();
  SharedAggregator aggregator(std::move(*opened));
  Training training{.aggregator = aggregator};
  auto workers = make_workers(training);
  if (!workers) return workers.error();

  std::vector<std::jthread> threads;
  for (Worker& worker : *workers) threads.emplace_back([&worker] { worker.train(); });
  threads.clear();

  const presum::Status closed = aggregator.get().close();
  std::printf("verdict: %s\n", to_string(aggregator.get().verdict()));
  for (const auto& finding : aggregator.get().findings()) print(finding);
  return closed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: simulation RUN\n");
    return 2;
  }
  const auto done = simulate(argv[1]);
  if (!done) std::fprintf(stderr, "simulation: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
