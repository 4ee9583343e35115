// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training with MPI and nothing else: logistic regression by gradient descent, whose
// gradients MPI_Allreduce sums up. Every rank reports its own gradient before the sum.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=<where presum is installed>
//   cmake --build build
//   mpirun -n 4 build/train RUN            # without RUN: the same training, not observed
//   mpirun -n 4 build/train RUN --fault    # rank 2 reads the data of rank 1
//   presum findings RUN
#include <presum/mpi.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>

namespace {

constexpr std::uint64_t kSteps = 60;
constexpr std::size_t kRows = 16;
constexpr std::size_t kFeatures = 32;
constexpr double kLearningRate = 0.5;
constexpr auto kF64 = presum::Dtype::kF64;
constexpr auto kParameters = presum::StateHash::Kind::kParameters;

using Vector = std::array<double, kFeatures + 1>;  // of a row: 1 at the end; of the model: its bias
using Batch = std::array<Vector, kRows>;

double uniform(std::uint64_t z) {  // splitmix64 of a number, from -1 to 1
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

// Every shard is an endless stream of rows that follow from their number.
Batch read_batch(std::uint64_t shard, std::uint64_t step) {
  Batch batch;
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::uint64_t first = ((shard * kSteps + step) * kRows + row) * kFeatures;
    for (std::size_t i = 0; i < kFeatures; ++i) batch[row][i] = uniform(first + i);
    batch[row][kFeatures] = 1;
  }
  return batch;
}

double label_of(const Vector& row) {
  double score = 0;
  for (std::size_t i = 0; i < kFeatures; ++i) score += row[i] * (i % 2 == 0 ? 1 : -1);
  return score > 0 ? 1 : 0;
}

double loss_and_gradient(const Vector& model, const Batch& batch, Vector& gradient) {
  double loss = 0;
  gradient.fill(0);
  for (const Vector& row : batch) {
    double logit = 0;
    for (std::size_t i = 0; i < row.size(); ++i) logit += model[i] * row[i];
    const double y = label_of(row);
    loss += (std::log1p(std::exp(-std::abs(logit))) + std::fmax(logit, 0) - y * logit) / kRows;
    const double slope = (1 / (1 + std::exp(-logit)) - y) / kRows;
    for (std::size_t i = 0; i < row.size(); ++i) gradient[i] += slope * row[i];
  }
  return loss;
}

void check(const presum::Status& status) {
  if (!status) std::fprintf(stderr, "presum: %s\n", status.error().message.c_str());
}

void train(presum::Session& session, bool fault, int rank, int ranks) {
  Vector model{};
  Vector gradient{};
  double loss = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Batch batch = read_batch(static_cast<std::uint64_t>(fault && rank == 2 ? 1 : rank), step);
    session.begin_step(step);
    // Optional: ranks must hold the same parameters, and must not read the same rows.
    session.begin_states();
    check(session.state(kParameters, 0, model.data(), model.size(), sizeof(double)));
    std::array<std::uint64_t, kRows> rows{};
    presum::hash_rows({.data = batch.data(), .rows = kRows, .columns = model.size()}, rows);
    session.samples(rows);
    loss = loss_and_gradient(model, batch, gradient);
    check(session.loss(loss));
    check(session.gradient(0, gradient.data(), gradient.size(), kF64));
    MPI_Allreduce(MPI_IN_PLACE, gradient.data(), kFeatures + 1, MPI_DOUBLE, MPI_SUM,
                  MPI_COMM_WORLD);
    for (double& value : gradient) value /= ranks;
    if (session.wants_reduced_gradient()) {
      check(session.reduced_gradient(0, gradient.data(), gradient.size(), kF64));
    }
    for (std::size_t i = 0; i < model.size(); ++i) model[i] -= kLearningRate * gradient[i];
    check(session.end_step());
  }
  check(session.close());
  if (rank == 0) std::printf("last loss of rank 0: %a, bias: %a\n", loss, model[kFeatures]);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  presum::mpi::Session session;
  if (argc > 1) {
    session =
        presum::mpi::Session::create(MPI_COMM_WORLD, {.run = argv[1]}, {{"w", kFeatures + 1}});
    check(session.status());
  }
  train(session, argc == 3 && std::string_view(argv[2]) == "--fault", rank, ranks);
  MPI_Finalize();
}
