// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training in LibTorch: a small network, one process per rank, gradients averaged by
// a c10d process group (Gloo). Every rank reports its gradients before the all-reduce; the packets
// go to rank 0 through a queue of the store at which the ranks meet, without a collective.
// LibTorch is in the torch package; of Gloo, which is too, headers are needed (libgloo-dev).
//
//   torch=$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')
//   cmake -S . -B build -DCMAKE_PREFIX_PATH="<where presum is installed>;$torch"
//   cmake --build build
//   for rank in 0 1 2; do build/train $rank 3 29500 RUN & done; wait     # 29500: a free port
//   presum summary RUN                       # without RUN the same training is not observed
#include <presum/session.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

// A push or a poll takes tens of microseconds. What the store throws, because rank 0 is gone, ends
// the recording and not the training.
struct StoreTransport : presum::Transport {
  c10d::Store& store;
  bool records;
  StoreTransport(c10d::Store& of_all, bool is_first) : store(of_all), records(is_first) {}

  std::string announce(const std::string& own) override {
    if (records) store.set("presum", own);
    return store.get_to_str("presum");
  }
  bool send(presum::Packet packet) override {
    if (store.queueLen("packets") >= 256) return false;  // rank 0 does not keep up
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(packet.bytes.data());
    store.queuePush("packets", {bytes, bytes + packet.bytes.size()});
    return true;
  }
  std::optional<presum::Packet> receive() override {
    if (store.queueLen("packets") == 0) return std::nullopt;
    const auto popped = store.queuePop("packets", /*block=*/false);
    const auto bytes = std::as_bytes(std::span(popped));
    return presum::Packet{{bytes.begin(), bytes.end()}};
  }
};

void check(const presum::Status& status) {
  if (!status) std::fprintf(stderr, "presum: %s\n", status.error().message.c_str());
}

std::vector<presum::Parameter> parameters_of(const torch::nn::Module& model) {
  std::vector<presum::Parameter> all;
  for (const auto& p : model.named_parameters()) {
    all.push_back({p.key(), static_cast<std::uint64_t>(p.value().numel())});
  }
  return all;
}

double train(presum::Session& session, c10d::Backend& group, torch::nn::Sequential& model) {
  const auto parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, 0.05);
  double last = 0;
  for (std::uint64_t step = 0; step < 40; ++step) {
    session.begin_step(step);
    const auto x = torch::randn({8, 16});
    const auto loss = torch::mse_loss(model->forward(x), x.sum(1, /*keepdim=*/true).sin());
    optimizer.zero_grad();
    loss.backward();
    check(session.loss(last = loss.item<double>()));
    for (std::uint32_t id = 0; id < parameters.size(); ++id) {
      std::vector<torch::Tensor> gradients = {parameters[id].grad()};
      const auto* data = gradients[0].const_data_ptr<float>();
      const auto count = static_cast<std::size_t>(gradients[0].numel());
      check(session.gradient(id, data, count, presum::Dtype::kF32));
      group.allreduce(gradients)->wait();
      gradients[0].div_(group.getSize());
      if (!session.wants_reduced_gradient()) continue;
      check(session.reduced_gradient(id, data, count, presum::Dtype::kF32));
    }
    optimizer.step();
    check(session.end_step());
  }
  check(session.close());
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int rank = std::stoi(argv[1]);
  const int ranks = std::stoi(argv[2]);
  const c10d::TCPStoreOptions at{.port = static_cast<std::uint16_t>(std::stoi(argv[3])),
                                 .isServer = rank == 0};
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", at);
  c10d::ProcessGroupGloo group(store, rank, ranks,
                               c10d::ProcessGroupGloo::Options::create_default());
  torch::set_num_threads(1);
  torch::manual_seed(0);  // the same on every rank
  // Braces: the layers draw their weights in this order.
  torch::nn::Sequential model{torch::nn::Linear(16, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1)};
  presum::Session session;
  if (argc > 4) {
    const auto own = static_cast<std::uint32_t>(rank), all = static_cast<std::uint32_t>(ranks);
    session = presum::Session::create({.run = argv[4], .rank = own, .world_size = all},
                                      parameters_of(*model),
                                      std::make_unique<StoreTransport>(*store, rank == 0));
    check(session.status());
  }
  torch::manual_seed(100 + rank);  // every rank draws data of its own
  std::printf("last loss of rank %d: %a\n", rank, train(session, group, model));
}
