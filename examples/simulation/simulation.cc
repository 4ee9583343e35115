// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training in one process: 8 ranks as threads fit a linear model, and one of them
// reads labels with the wrong sign from step 100 on. The averaged loss cannot say which; presum
// names the rank.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=<where presum is installed>
//   cmake --build build
//   build/simulation RUN        # writes the folder RUN; then: presum report RUN -o report.html
#include <presum/session.h>

#include <array>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kFaulty = 5;
constexpr std::uint64_t kFaultStep = 100;
constexpr std::uint64_t kSteps = 200;
constexpr std::size_t kBatch = 16;
constexpr float kLearningRate = 0.01F;

using Vector = std::array<float, 64>;

// Stands for the all-reduce: everyone waits for everyone, and all get the same mean.
struct AllReduce {
  std::barrier<> reached{kRanks};
  std::array<Vector, kRanks> gradients{};

  Vector mean() {
    reached.arrive_and_wait();
    Vector mean{};
    for (const Vector& gradient : gradients) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / kRanks;
    }
    reached.arrive_and_wait();
    return mean;
  }
};

float dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0F);
}

void check(const presum::Status& status) {
  if (!status) std::fprintf(stderr, "presum: %s\n", status.error().message.c_str());
}

void train(presum::Session session, AllReduce& all_reduce, std::uint32_t rank) {
  check(session.status());
  std::mt19937_64 random(rank);
  std::normal_distribution<float> normal;
  Vector weights{};
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    session.begin_step(step);
    Vector& gradient = all_reduce.gradients[rank];
    gradient.fill(0);
    double loss = 0;
    for (std::size_t row = 0; row < kBatch; ++row) {
      Vector x;
      for (float& value : x) value = normal(random);
      const float label = std::accumulate(x.begin(), x.end(), normal(random));
      const bool wrong = rank == kFaulty && step >= kFaultStep;
      const float error = dot(weights, x) - (wrong ? -label : label);
      loss += error * error / kBatch;
      for (std::size_t i = 0; i < x.size(); ++i) gradient[i] += 2 * error * x[i] / kBatch;
    }
    check(session.loss(loss));
    // Before the reduction, while the gradient is still this rank's own.
    check(session.gradient(0, gradient.data(), gradient.size(), presum::Dtype::kF32));
    const Vector mean = all_reduce.mean();
    for (std::size_t i = 0; i < mean.size(); ++i) weights[i] -= kLearningRate * mean[i];
    check(session.end_step());
  }
  check(session.close());
  if (session.aggregator() == nullptr) return;
  std::printf("verdict: %s\n", to_string(session.aggregator()->verdict()));
  for (const presum::Finding& found : session.aggregator()->findings()) {
    std::printf("%s: %s (%s, steps %ju-%ju, confidence %.0f%%)\n  do: %s\n",
                to_string(found.severity), found.title.c_str(), found.check.c_str(),
                std::uintmax_t{found.first_step}, std::uintmax_t{found.last_step},
                100 * found.confidence, found.remedy.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: simulation RUN\n");
    return 2;
  }
  auto transports = presum::thread_transports(kRanks);
  AllReduce all_reduce;
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      train(presum::Session::create({.run = argv[1], .rank = rank, .world_size = kRanks},
                                    {{.name = "linear.weight", .elements = Vector().size()}},
                                    std::move(transports[rank])),
            all_reduce, rank);
    });
  }
}
