// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training in LibTorch: a small network, one process per rank, gradients averaged by
// a c10d process group (Gloo). Every rank observes its gradients before the all-reduce; the packets
// go to the aggregator on rank 0 through the queue of a TCPStore of their own, without a
// collective.
//
// LibTorch is in the torch package. Of Gloo, which is in it too, headers are needed (Debian:
// libgloo-dev).
//
//   torch=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')
//   cmake -S . -B build -DCMAKE_PREFIX_PATH="<where presum is installed>;$torch"
//   cmake --build build
//   for rank in 0 1 2; do build/train $rank 3 meeting-point RUN & done; wait
//   presum summary RUN
//
// `meeting-point` is a file that does not exist yet and that all ranks can reach. Without RUN the
// same training is not observed.
#include <presum/aggregator.h>
#include <presum/observer.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::uint64_t kSteps = 40;
constexpr std::uint64_t kReducedEvery = 25;
constexpr std::int64_t kFeatures = 16;
constexpr std::int64_t kHidden = 32;
constexpr std::int64_t kRows = 8;
constexpr double kLearningRate = 0.05;

struct Ranks {
  int rank = 0;
  int size = 1;
};

// ---- the way of the packets

// The queue of a store that rank 0 serves, with one connection a rank. Its address travels once
// through the store at which the ranks meet. It is not authenticated: for networks that you trust.
// A push or a poll takes tens of microseconds; a program that must not wait for the network makes
// them on a thread of its own.
class StoreExchange {
 public:
  // On rank 0: serves the queue, and says where it is and what to stamp. Without a aggregator it
  // says that there is nothing to send to.
  static StoreExchange serve(const StorePtr& meeting_point, const presum::Aggregator* aggregator) {
    StoreExchange exchange;
    std::ostringstream address;
    if (aggregator != nullptr) {
      c10d::TCPStoreOptions options{.port = 0, .isServer = true, .waitWorkers = false};
      const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      address << server->getPort() << ' ' << aggregator->run() << ' ' << aggregator->segment();
      exchange.store_ = server;
    }
    meeting_point->set(kAddress, address.str());
    exchange.read(address.str());
    return exchange;
  }

  // On the others: waits until rank 0 has said where.
  static StoreExchange connect(const StorePtr& meeting_point) {
    StoreExchange exchange;
    c10d::TCPStoreOptions options{.port = exchange.read(meeting_point->get_to_str(kAddress)),
                                  .waitWorkers = false,
                                  .timeout = std::chrono::seconds(5)};
    if (options.port != 0) {
      exchange.store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    }
    return exchange;
  }

  bool active() const { return store_.defined(); }
  std::uint64_t dropped() const { return dropped_; }

  // Drops the packet, counted, when rank 0 does not keep up.
  void send(presum::Packet packet) {
    const bool sent = guarded([&] {
      if (store_->queueLen(kQueue) >= kRoom) return false;
      packet.stamp(run_, segment_);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(packet.bytes.data());
      store_->queuePush(kQueue, {bytes, bytes + packet.bytes.size()});
      return true;
    });
    if (!sent) ++dropped_;
  }

  std::optional<std::vector<std::uint8_t>> receive() {
    return guarded([&]() -> std::optional<std::vector<std::uint8_t>> {
      if (store_->queueLen(kQueue) == 0) return std::nullopt;
      return store_->queuePop(kQueue, /*block=*/false);
    });
  }

 private:
  static constexpr const char* kAddress = "presum/address";
  static constexpr const char* kQueue = "presum/packets";
  static constexpr std::int64_t kRoom = 256;

  // Returns the port; 0 where there is none.
  std::uint16_t read(const std::string& address) {
    std::uint16_t port = 0;
    std::istringstream(address) >> port >> run_ >> segment_;
    return port;
  }

  // What a store throws, because rank 0 is gone, ends the exchange and not the training.
  template <class Call>
  auto guarded(Call call) -> decltype(call()) {
    try {
      if (active()) return call();
    } catch (const std::exception&) {
      store_.reset();
    }
    return {};
  }

  StorePtr store_;
  std::uint64_t run_ = 0;
  std::uint32_t segment_ = 0;
  std::uint64_t dropped_ = 0;
};

// ---- presum on one rank

// Reads gradients where they are: contiguous floats in host memory.
class Watch {
 public:
  Watch(const std::string& run, const Ranks& ranks, const StorePtr& meeting_point,
        const torch::nn::Module& model)
      : aggregator_(ranks.rank == 0 ? open(run, ranks) : std::nullopt),
        observer_(observe(ranks, model)),
        exchange_(ranks.rank == 0
                      ? StoreExchange::serve(meeting_point, aggregator_ ? &*aggregator_ : nullptr)
                      : StoreExchange::connect(meeting_point)),
        world_(static_cast<std::size_t>(ranks.size)) {
    if (active()) exchange_.send(observer_->hello());
  }

  void begin(std::uint64_t step) {
    if (active()) observer_->begin_step(step);
  }

  // After the backward pass, before the reduction.
  void own(double loss, const std::vector<torch::Tensor>& parameters) {
    if (!active()) return;
    observer_->loss(loss);
    for (presum::ParameterId id = 0; id < parameters.size(); ++id) {
      const auto& gradient = parameters[id].grad();
      check(observer_->gradient(id, gradient.const_data_ptr<float>(), elements(gradient),
                                presum::Dtype::kF32));
    }
  }

  // After the reduction, now and then, on all ranks at the same steps.
  void reduced(std::uint64_t step, const std::vector<torch::Tensor>& parameters) {
    if (!active() || step % kReducedEvery != 0) return;
    for (presum::ParameterId id = 0; id < parameters.size(); ++id) {
      const auto& gradient = parameters[id].grad();
      check(observer_->reduced_gradient(id, gradient.const_data_ptr<float>(), elements(gradient),
                                        presum::Dtype::kF32));
    }
  }

  void end(std::uint64_t step) {
    if (!active()) return;
    exchange_.send(
        observer_->end_step({.optimizer_step = step + 1, .dropped = exchange_.dropped()}));
    if (aggregator_) poll();
  }

  // Rank 0 waits for the others' goodbyes, for 1.5 s at most; nobody else waits.
  void close() {
    if (!active()) return;
    exchange_.send(observer_->note(true, kSteps, exchange_.dropped(), "", kSteps));
    if (!aggregator_) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
    for (poll(); !aggregator_->everyone_left() || aggregator_->ranks_heard() < world_; poll()) {
      if (std::chrono::steady_clock::now() > deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    check(aggregator_->close());
  }

 private:
  static std::optional<presum::Aggregator> open(const std::string& run, const Ranks& ranks) {
    auto aggregator = presum::Aggregator::open(
        {.run = run, .world_size = static_cast<std::uint32_t>(ranks.size)});
    if (aggregator) return std::move(*aggregator);
    complain(aggregator.error());
    return std::nullopt;
  }

  static std::optional<presum::Observer> observe(const Ranks& ranks,
                                                 const torch::nn::Module& model) {
    std::vector<presum::Parameter> parameters;
    for (const auto& named : model.named_parameters()) {
      parameters.push_back({.name = named.key(), .elements = elements(named.value())});
    }
    const auto rank = static_cast<std::uint32_t>(ranks.rank);
    auto observer =
        presum::Observer::create({.identity = {.replica = rank,
                                               .rank = rank,
                                               .replicas = static_cast<std::uint32_t>(ranks.size)},
                                  .host = "localhost"},
                                 parameters);
    if (observer) return std::move(*observer);
    complain(observer.error());
    return std::nullopt;
  }

  static std::size_t elements(const torch::Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel());
  }

  bool active() const { return observer_ && exchange_.active(); }

  void poll() {
    while (const auto packet = exchange_.receive()) {
      check(aggregator_->ingest(std::as_bytes(std::span(*packet))));
    }
    check(aggregator_->tick());
  }

  void check(const presum::Status& status) {
    if (!status && std::exchange(healthy_, false)) complain(status.error());
  }

  static void complain(const presum::Error& error) {
    std::fprintf(stderr, "presum: %s; the training goes on\n", error.message.c_str());
  }

  std::optional<presum::Aggregator> aggregator_;  // on rank 0
  std::optional<presum::Observer> observer_;
  StoreExchange exchange_;
  std::size_t world_;
  bool healthy_ = true;
};

// ---- the training

torch::nn::Sequential make_model() {
  torch::manual_seed(0);        // the same on every rank
  torch::nn::Sequential model;  // layer by layer: the order in which they draw their weights
  model->push_back(torch::nn::Linear(kFeatures, kHidden));
  model->push_back(torch::nn::ReLU());
  model->push_back(torch::nn::Linear(kHidden, 1));
  return model;
}

void average(c10d::Backend& group, const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    std::vector<torch::Tensor> gradients = {parameter.grad()};
    group.allreduce(gradients)->wait();
    gradients.front().div_(group.getSize());
  }
}

double train(const Ranks& ranks, const StorePtr& meeting_point, const std::string& run) {
  c10d::ProcessGroupGloo group(meeting_point, ranks.rank, ranks.size,
                               c10d::ProcessGroupGloo::Options::create_default());
  auto model = make_model();
  const auto parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, kLearningRate);
  std::optional<Watch> watch;
  if (!run.empty()) watch.emplace(run, ranks, meeting_point, *model);
  torch::manual_seed(100 + ranks.rank);  // every rank draws data of its own
  double last = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    if (watch) watch->begin(step);
    const auto x = torch::randn({kRows, kFeatures});
    const auto y = x.sum(1, /*keepdim=*/true).sin();
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    last = loss.item<double>();
    if (watch) watch->own(last, parameters);
    average(group, parameters);
    if (watch) watch->reduced(step, parameters);
    optimizer.step();
    if (watch) watch->end(step);
  }
  if (watch) watch->close();
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    std::fprintf(stderr, "usage: train RANK RANKS MEETING_POINT [RUN]\n");
    return 2;
  }
  const Ranks ranks{.rank = std::atoi(argv[1]), .size = std::atoi(argv[2])};
  torch::set_num_threads(1);
  const auto meeting_point = c10::make_intrusive<c10d::FileStore>(argv[3], ranks.size);
  const double loss = train(ranks, meeting_point, argc == 5 ? argv[4] : "");
  std::printf("last loss of rank %d: %a\n", ranks.rank, loss);
  return 0;
}
