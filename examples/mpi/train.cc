// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training with MPI and nothing else: logistic regression by gradient descent, the
// gradients are plain arrays that MPI_Allreduce sums up. Every rank observes its own gradient
// before the sum; rank 0 also runs the aggregator, which packets reach through presum::mpi.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=<where presum is installed>
//   cmake --build build
//   mpirun -n 4 build/train --run RUN            # without --run: the same training, not observed
//   mpirun -n 4 build/train --run RUN --fault    # rank 2 reads the data of rank 1
//   presum findings RUN
//
// The training is the same, bit for bit, with presum and without, and goes on when RUN cannot be
// written. Observing is bracketed by the class Watch.
#include <mpi.h>
#include <presum/aggregator.h>
#include <presum/fingerprint.h>
#include <presum/mpi.h>
#include <presum/observer.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace {

constexpr std::uint64_t kSteps = 60;
constexpr std::uint64_t kReducedEvery = 25;
constexpr std::size_t kFeatures = 32;
constexpr std::size_t kRows = 16;
constexpr double kLearningRate = 0.5;

struct Ranks {
  int rank = 0;
  int size = 1;
};

struct Options {
  std::string run;  // empty: not observed
  bool fault = false;
};

// ---- the data: every shard is an endless stream of rows that follow from their number

std::uint64_t mix(std::uint64_t z) {  // splitmix64
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

double uniform(std::uint64_t key) {  // from -1 to 1
  return static_cast<double>(mix(key) >> 11) * 0x1p-52 - 1;
}

using Row = std::array<double, kFeatures>;

struct Batch {
  std::array<Row, kRows> x{};
  std::array<double, kRows> y{};
};

Batch read_batch(std::uint64_t shard, std::uint64_t step) {
  Batch batch;
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::uint64_t first = ((shard * kSteps + step) * kRows + row) * kFeatures;
    double score = 0;
    for (std::size_t i = 0; i < kFeatures; ++i) {
      batch.x[row][i] = uniform(first + i);
      score += batch.x[row][i] * (i % 2 == 0 ? 1 : -1);
    }
    batch.y[row] = score > 0 ? 1 : 0;
  }
  return batch;
}

// ---- the model

struct Model {
  Row weight{};
  double bias = 0;
};

struct Pass {
  double loss = 0;
  Model gradient;
};

Pass forward_and_backward(const Model& model, const Batch& batch) {
  Pass pass;
  for (std::size_t row = 0; row < kRows; ++row) {
    double logit = model.bias;
    for (std::size_t i = 0; i < kFeatures; ++i) logit += model.weight[i] * batch.x[row][i];
    const double y = batch.y[row];
    pass.loss += (std::log1p(std::exp(-std::abs(logit))) + std::fmax(logit, 0) - y * logit) / kRows;
    const double slope = (1 / (1 + std::exp(-logit)) - y) / kRows;
    for (std::size_t i = 0; i < kFeatures; ++i) pass.gradient.weight[i] += slope * batch.x[row][i];
    pass.gradient.bias += slope;
  }
  return pass;
}

Model mean_over_ranks(Model gradient, const Ranks& ranks) {
  MPI_Allreduce(MPI_IN_PLACE, gradient.weight.data(), kFeatures, MPI_DOUBLE, MPI_SUM,
                MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &gradient.bias, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (double& value : gradient.weight) value /= ranks.size;
  gradient.bias /= ranks.size;
  return gradient;
}

void descend(Model& model, const Model& gradient) {
  for (std::size_t i = 0; i < kFeatures; ++i) {
    model.weight[i] -= kLearningRate * gradient.weight[i];
  }
  model.bias -= kLearningRate * gradient.bias;
}

// ---- presum

constexpr presum::ParameterId kWeight = 0;
constexpr presum::ParameterId kBias = 1;

// One rank's side of presum. What fails is said once, and the training goes on.
class Watch {
 public:
  Watch(const std::string& run, const Ranks& ranks) {
    const auto rank = static_cast<std::uint32_t>(ranks.rank);
    const auto size = static_cast<std::uint32_t>(ranks.size);
    if (ranks.rank == 0)
      aggregator_ = kept(presum::Aggregator::open({.run = run, .world_size = size}));
    observer_ = kept(presum::Observer::create(
        {.identity = {.replica = rank, .rank = rank, .replicas = size}, .host = host()},
        {{.name = "linear.weight", .elements = kFeatures},
         {.name = "linear.bias", .elements = 1}}));
    std::optional<presum::mpi::Announcement> announcement;
    if (aggregator_) announcement = {.run = aggregator_->run(), .segment = aggregator_->segment()};
    exchange_ = kept(presum::mpi::Exchange::create(MPI_COMM_WORLD, announcement));
    if (active()) exchange_->send(observer_->hello());
  }

  // Before the forward pass: all ranks must hold the same parameters.
  void begin(std::uint64_t step, const Model& model, const Batch& batch) {
    if (!active()) return;
    observer_->begin_step(step);
    observer_->begin_states();
    using Kind = presum::StateHash::Kind;
    check(observer_->state(Kind::kParameters, kWeight, model.weight.data(), kFeatures, 8));
    check(observer_->state(Kind::kParameters, kBias, &model.bias, 1, 8));
    std::array<std::uint64_t, kRows> rows{};
    presum::hash_rows({.data = batch.x.data(), .rows = kRows, .columns = kFeatures}, rows);
    observer_->samples(rows);
  }

  // Before the reduction: the gradient is still this rank's own.
  void own(const Pass& pass) {
    if (!active()) return;
    observer_->loss(pass.loss);
    check(
        observer_->gradient(kWeight, pass.gradient.weight.data(), kFeatures, presum::Dtype::kF64));
    check(observer_->gradient(kBias, &pass.gradient.bias, 1, presum::Dtype::kF64));
  }

  // After it, now and then, on all ranks at the same steps.
  void reduced(std::uint64_t step, const Model& mean) {
    if (!active() || step % kReducedEvery != 0) return;
    check(observer_->reduced_gradient(kWeight, mean.weight.data(), kFeatures, presum::Dtype::kF64));
    check(observer_->reduced_gradient(kBias, &mean.bias, 1, presum::Dtype::kF64));
  }

  void end(std::uint64_t step) {
    if (!active()) return;
    exchange_->send(
        observer_->end_step({.optimizer_step = step + 1, .dropped = exchange_->dropped()}));
    while (const auto packet = exchange_->receive()) ingest(*packet);
    if (aggregator_) check(aggregator_->tick());
  }

  void close(std::uint64_t steps) {
    if (!active()) return;
    exchange_->send(observer_->note(true, exchange_->sent() + 1, exchange_->dropped(), "", steps));
    exchange_->close([this](const presum::Packet& packet) { ingest(packet); });
    if (aggregator_) check(aggregator_->close());
  }

 private:
  bool active() const { return observer_ && exchange_ && exchange_->active(); }

  void ingest(const presum::Packet& packet) { check(aggregator_->ingest(packet.bytes)); }

  template <class T>
  std::optional<T> kept(presum::Result<T> result) {
    if (result) return std::move(*result);
    complain(result.error());
    return std::nullopt;
  }

  void check(const presum::Status& status) {
    if (!status) complain(status.error());
  }

  void complain(const presum::Error& error) {
    if (!std::exchange(complained_, true)) {
      std::fprintf(stderr, "presum: %s; the training goes on\n", error.message.c_str());
    }
  }

  static std::string host() {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    MPI_Get_processor_name(name.data(), &length);
    return {name.data(), static_cast<std::size_t>(length)};
  }

  std::optional<presum::Aggregator> aggregator_;  // on rank 0
  std::optional<presum::Observer> observer_;
  std::optional<presum::mpi::Exchange> exchange_;
  bool complained_ = false;
};

// ---- the training

void train(const Options& options, const Ranks& ranks) {
  std::optional<Watch> watch;
  if (!options.run.empty()) watch.emplace(options.run, ranks);
  const int shard = options.fault && ranks.rank == 2 ? 1 : ranks.rank;
  Model model;
  Pass pass;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Batch batch = read_batch(static_cast<std::uint64_t>(shard), step);
    if (watch) watch->begin(step, model, batch);
    pass = forward_and_backward(model, batch);
    if (watch) watch->own(pass);
    const Model mean = mean_over_ranks(pass.gradient, ranks);
    if (watch) watch->reduced(step, mean);
    descend(model, mean);
    if (watch) watch->end(step);
  }
  if (watch) watch->close(kSteps);
  if (ranks.rank == 0) std::printf("last loss of rank 0: %a, bias: %a\n", pass.loss, model.bias);
}

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--fault") {
      options.fault = true;
    } else if (argument == "--run" && i + 1 < argc) {
      options.run = argv[++i];
    } else {
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const auto options = parse(argc, argv);
  Ranks ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.size);
  if (options) {
    train(*options, ranks);
  } else if (ranks.rank == 0) {
    std::fprintf(stderr, "usage: mpirun -n 4 train [--run RUN] [--fault]\n");
  }
  MPI_Finalize();
  return options ? EXIT_SUCCESS : 2;
}
