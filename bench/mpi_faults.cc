// SPDX-License-Identifier: Apache-2.0
//
// A training with MPI and presum's C++ session, with one thing broken: the fault benchmark's way
// "mpi". A network of two layers learns to tell which of its inputs is the largest, by gradient
// descent with momentum and an all-reduce of its own.
//
//   mpirun -n 4 mpi_faults RUN FAULT    # FAULT: a name that `mpi_faults --list` prints, or "none"
#include <presum/mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kInputs = 16;
constexpr int kHidden = 32;
constexpr int kClasses = 4;
constexpr int kRows = 16;
constexpr int kLayers = 2;
constexpr std::array<int, kLayers> kSizes{kInputs * kHidden, kHidden* kClasses};
constexpr auto kF64 = presum::Dtype::kF64;
using StateKind = presum::StateHash::Kind;
using Layers = std::array<std::vector<double>, kLayers>;

// Who does it, from which step on, and in how many steps.
enum class Who : std::uint8_t { kAll, kCulprit, kFirst, kPair };
struct Fault {
  std::string_view name;
  Who who;
  std::uint64_t begins;
  std::uint64_t steps;
};

constexpr std::array kFaults{
    Fault{"rank-zero-everywhere", Who::kAll, 0, 40},
    Fault{"duplicated-pair", Who::kPair, 0, 40},
    Fault{"replicated-data-unseen", Who::kAll, 0, 40},
    Fault{"stuck-loader", Who::kCulprit, 10, 40},
    Fault{"own-initialization", Who::kAll, 0, 40},
    Fault{"skipped-update", Who::kFirst, 10, 40},
    Fault{"flipped-bit", Who::kCulprit, 10, 40},
    Fault{"one-update-more", Who::kCulprit, 10, 40},
    Fault{"layer-left-out", Who::kAll, 0, 90},
    Fault{"lost-optimizer-state", Who::kCulprit, 10, 70},
    Fault{"nan-gradient", Who::kCulprit, 10, 40},
    Fault{"infinite-element", Who::kCulprit, 10, 40},
    Fault{"reduction-makes-nan", Who::kAll, 10, 40},
    Fault{"nan-loss", Who::kCulprit, 10, 40},
    Fault{"zero-gradient", Who::kCulprit, 10, 40},
    Fault{"frozen-gradient", Who::kCulprit, 10, 40},
    Fault{"no-sync-left", Who::kAll, 10, 40},
    Fault{"sum-instead-of-mean", Who::kAll, 0, 40},
    Fault{"divided-twice", Who::kAll, 0, 40},
    Fault{"layer-summed", Who::kAll, 10, 40},
    Fault{"halves-apart", Who::kAll, 0, 40},
    Fault{"own-sum", Who::kCulprit, 10, 40},
    Fault{"layer-negated", Who::kCulprit, 10, 40},
    Fault{"doubled-gradient", Who::kCulprit, 20, 60},
    Fault{"summed-loss", Who::kCulprit, 20, 60},
    Fault{"sign-flip", Who::kCulprit, 20, 120},
    Fault{"noisy-gradient", Who::kCulprit, 20, 120},
    Fault{"large-element", Who::kCulprit, 20, 60},
    Fault{"emptied-layer", Who::kCulprit, 20, 60},
    Fault{"shuffled-labels", Who::kCulprit, 40, 120},
    Fault{"raised-loss", Who::kCulprit, 20, 120},
    Fault{"spike", Who::kCulprit, 110, 130},
    Fault{"truncated-text", Who::kCulprit, 20, 110},
    Fault{"mean-of-means", Who::kAll, 0, 40},
    Fault{"slow-forward", Who::kCulprit, 10, 40},
    Fault{"none", Who::kAll, 0, 40},
};

struct Batch {
  std::array<std::array<double, kInputs>, kRows> rows;
  std::array<int, kRows> labels;
};

class Training {
 public:
  Training(const Fault& fault, int rank, int ranks) : fault_(fault), rank_(rank), ranks_(ranks) {
    std::mt19937_64 random(is("own-initialization") ? 1U + static_cast<unsigned>(rank) : 1U);
    std::normal_distribution<double> normal(0, 0.3);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (Layers* of : {&model_, &momentum_, &gradient_}) (*of)[layer].resize(kSizes[layer]);
      std::ranges::generate(model_[layer], [&] { return normal(random); });
    }
  }

  void run(presum::Session& session) {
    for (step_ = 0; step_ < fault_.steps; ++step_) {
      session.begin_step(step_);
      report_states(session);
      const Batch batch = read_batch();
      if (!is("replicated-data-unseen")) report_rows(session, batch);
      double loss = backward(batch);
      break_own(loss);
      check(session.loss(loss, 1, tokens()));
      report(gradient_, [&](int i, const auto& of) {
        return session.gradient(i, of.data(), of.size(), kF64);
      });
      if (at_fault("slow-forward")) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      reduce();
      if (session.wants_reduced_gradient()) {
        report(gradient_, [&](int i, const auto& of) {
          return session.reduced_gradient(i, of.data(), of.size(), kF64);
        });
      }
      update();
      check(session.end_step());
    }
    check(session.close());
  }

  std::uint64_t tokens() const {
    if (is("mean-of-means")) return kRows * (1 + (static_cast<std::uint64_t>(rank_) + step_) % 3);
    return at_fault("truncated-text") ? kRows / 8 : kRows;
  }

  static void check(const presum::Status& status) {
    if (!status) std::fprintf(stderr, "presum: %s\n", status.error().message.c_str());
  }

 private:
  bool is(std::string_view name) const { return fault_.name == name; }
  bool at_fault(std::string_view name) const {
    const bool mine = fault_.who == Who::kAll || (fault_.who == Who::kFirst && rank_ == 0) ||
                      (fault_.who == Who::kCulprit && rank_ == culprit());
    return is(name) && mine && step_ >= fault_.begins;
  }
  int culprit() const { return ranks_ * 5 / 8; }

  template <typename Report>
  static void report(const Layers& of, Report one) {
    for (int layer = 0; layer < kLayers; ++layer) check(one(layer, of[layer]));
  }

  void report_states(presum::Session& session) const {
    session.begin_states();
    const auto state = [&](StateKind kind) {
      return [&, kind](int i, const auto& of) {
        return session.state(kind, i, of.data(), of.size(), sizeof(double));
      };
    };
    report(model_, state(StateKind::kParameters));
    report(momentum_, state(StateKind::kOptimizer));
  }

  static void report_rows(presum::Session& session, const Batch& batch) {
    std::array<std::uint64_t, kRows> hashes{};
    presum::hash_rows({.data = batch.rows.data(), .rows = kRows, .columns = kInputs}, hashes);
    session.samples(hashes);
  }

  Batch read_batch() const {
    int shard = rank_;
    if (is("rank-zero-everywhere") || is("replicated-data-unseen")) shard = 0;
    if (fault_.who == Who::kPair && rank_ == ranks_ * 3 / 4) shard = ranks_ / 4;
    const std::uint64_t step = at_fault("stuck-loader") ? fault_.begins - 1 : step_;
    std::mt19937_64 random(step * 1000 + static_cast<std::uint64_t>(shard) + 7);
    std::normal_distribution<double> normal;
    Batch batch;
    for (int row = 0; row < kRows; ++row) {
      std::ranges::generate(batch.rows[row], [&] { return normal(random); });
      const auto first = batch.rows[row].begin();
      const auto largest = std::max_element(first, first + kClasses) - first;
      batch.labels[row] = static_cast<int>(largest);
    }
    if (at_fault("shuffled-labels")) std::ranges::shuffle(batch.labels, random);
    return batch;
  }

  double backward(const Batch& batch) {
    for (auto& layer : gradient_) std::ranges::fill(layer, 0);
    double loss = 0;
    for (int row = 0; row < kRows; ++row) loss += add_row(batch.rows[row], batch.labels[row]);
    if (at_fault("frozen-gradient") && step_ > 0) gradient_ = before_reduction_;
    before_reduction_ = gradient_;
    return loss / kRows;
  }

  double add_row(std::span<const double> input, int label) {
    std::array<double, kHidden> hidden{};
    std::array<double, kClasses> logits{};
    for (int h = 0; h < kHidden; ++h) {
      for (int i = 0; i < kInputs; ++i) hidden[h] += model_[0][h * kInputs + i] * input[i];
      hidden[h] = std::tanh(hidden[h]);
      for (int c = 0; c < kClasses; ++c) logits[c] += model_[1][c * kHidden + h] * hidden[h];
    }
    const double top = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - top);
    std::array<double, kHidden> back{};
    for (int c = 0; c < kClasses; ++c) {
      const double slope = (std::exp(logits[c] - top) / sum - (c == label)) / kRows;
      for (int h = 0; h < kHidden; ++h) {
        gradient_[1][c * kHidden + h] += slope * hidden[h];
        back[h] += slope * model_[1][c * kHidden + h] * (1 - hidden[h] * hidden[h]);
      }
    }
    for (int h = 0; h < kHidden; ++h) {
      for (int i = 0; i < kInputs; ++i) gradient_[0][h * kInputs + i] += back[h] * input[i];
    }
    return top + std::log(sum) - logits[label];
  }

  // What is wrong before the sum.
  void break_own(double& loss) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    if (at_fault("nan-gradient")) std::ranges::fill(gradient_[1], kNan);
    if (at_fault("infinite-element")) gradient_[1][5] = std::numeric_limits<double>::infinity();
    if (at_fault("nan-loss")) loss = kNan;
    if (at_fault("raised-loss")) loss += 3;
    if (at_fault("spike") && step_ == fault_.begins) loss *= 40;
    if (at_fault("emptied-layer")) std::ranges::fill(gradient_[1], 0);
    if (at_fault("large-element")) gradient_[1][5] += 100;
    if (at_fault("zero-gradient")) scale_own(0);
    if (at_fault("doubled-gradient")) scale_own(2);
    if (at_fault("sign-flip")) scale_own(-1);
    if (at_fault("summed-loss")) {
      loss *= kRows;
      scale_own(kRows);
    }
    if (at_fault("noisy-gradient")) {
      std::mt19937_64 random(step_);
      std::normal_distribution<double> normal(0, 0.1);
      for (auto& layer : gradient_) {
        for (double& value : layer) value += normal(random);
      }
    }
  }

  void scale_own(double factor) {
    for (auto& layer : gradient_) {
      for (double& value : layer) value *= factor;
    }
  }

  void reduce() {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (at_fault("no-sync-left")) continue;
      if (at_fault("layer-negated") && layer == 1) {
        for (double& value : gradient_[layer]) value = -value;
      }
      sum_up(gradient_[layer]);
      double divisor = ranks_;
      if (at_fault("sum-instead-of-mean") || (at_fault("layer-summed") && layer == 1)) divisor = 1;
      if (at_fault("divided-twice")) divisor *= ranks_;
      for (double& value : gradient_[layer]) value /= divisor;
    }
    if (at_fault("reduction-makes-nan")) {
      gradient_[1][3] = std::numeric_limits<double>::quiet_NaN();
    }
    if (at_fault("own-sum")) gradient_[0][7] *= 1 + 1e-6;
  }

  void sum_up(std::vector<double>& layer) const {
    MPI_Comm comm = MPI_COMM_WORLD;
    if (at_fault("halves-apart")) MPI_Comm_split(comm, rank_ < ranks_ / 2, rank_, &comm);
    MPI_Allreduce(MPI_IN_PLACE, layer.data(), static_cast<int>(layer.size()), MPI_DOUBLE, MPI_SUM,
                  comm);
    if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
  }

  void update() {
    const bool first = step_ == fault_.begins;
    if (at_fault("lost-optimizer-state") && first) {
      for (auto& layer : momentum_) std::ranges::fill(layer, 0);
    }
    if (!(at_fault("skipped-update") && first)) move();
    if (at_fault("one-update-more") && first) move();
    if (at_fault("flipped-bit") && first) model_[0][11] = -model_[0][11];
  }

  void move() {
    for (int layer = at_fault("layer-left-out") ? 1 : 0; layer < kLayers; ++layer) {
      for (int i = 0; i < kSizes[layer]; ++i) {
        momentum_[layer][i] = 0.9 * momentum_[layer][i] + gradient_[layer][i];
        model_[layer][i] -= 0.05 * momentum_[layer][i];
      }
    }
  }

  const Fault& fault_;
  int rank_;
  int ranks_;
  std::uint64_t step_ = 0;
  Layers model_, momentum_, gradient_, before_reduction_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--list") {
    for (const Fault& fault : kFaults) std::puts(fault.name.data());
    return 0;
  }
  const auto* fault = argc == 3 ? std::ranges::find(kFaults, argv[2], &Fault::name) : kFaults.end();
  if (fault == kFaults.end()) {
    std::fputs("usage: mpi_faults RUN FAULT | mpi_faults --list\n", stderr);
    return 2;
  }
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto session = presum::mpi::Session::create(
      MPI_COMM_WORLD, {.run = argv[1]},
      {{.name = "layers.0.weight", .elements = kSizes[0], .group = {}},
       {.name = "layers.1.weight", .elements = kSizes[1], .group = {}}});
  Training::check(session.status());
  Training(*fault, rank, ranks).run(session);
  MPI_Finalize();
}
