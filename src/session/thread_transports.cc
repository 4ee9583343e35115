// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "presum/session.h"

namespace presum {
namespace {

struct Shared {
  std::size_t room;
  std::promise<std::string> promise;
  std::shared_future<std::string> announced = promise.get_future().share();
  std::mutex mutex;
  std::deque<Packet> packets;

  explicit Shared(std::size_t packets_max) : room(packets_max) {}
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Shared> shared, bool records)
      : shared_(std::move(shared)), records_(records) {}

  std::string announce(const std::string& own) override {
    if (records_) shared_->promise.set_value(own);
    return shared_->announced.get();
  }

  bool send(Packet packet) override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->packets.size() >= shared_->room) return false;
    shared_->packets.push_back(std::move(packet));
    return true;
  }

  std::optional<Packet> receive() override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->packets.empty()) return std::nullopt;
    Packet first = std::move(shared_->packets.front());
    shared_->packets.pop_front();
    return first;
  }

 private:
  std::shared_ptr<Shared> shared_;
  bool records_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> thread_transports(std::uint32_t ranks, std::size_t room) {
  const auto shared = std::make_shared<Shared>(room);
  std::vector<std::unique_ptr<Transport>> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    all.push_back(std::make_unique<ThreadTransport>(shared, rank == 0));
  }
  return all;
}

}  // namespace presum
