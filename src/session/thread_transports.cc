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

struct Queue {
  const std::size_t room;
  std::shared_future<std::string> announced;
  std::mutex mutex;
  std::deque<Packet> packets;
  bool closed = false;

  Queue(std::size_t packets_max, std::shared_future<std::string> text)
      : room(packets_max), announced(std::move(text)) {}
};

class Sender final : public Transport {
 public:
  explicit Sender(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

  std::string announce(const std::string& /*own*/) override { return queue_->announced.get(); }

  bool send(Packet packet) override {
    const std::lock_guard lock(queue_->mutex);
    const std::size_t room = queue_->room + (leaves_ ? 1 : 0);
    if (queue_->closed || queue_->packets.size() >= room) return false;
    queue_->packets.push_back(std::move(packet));
    return true;
  }

  std::optional<Packet> receive() override { return std::nullopt; }
  void flush(Seconds /*patience*/) override { leaves_ = true; }

 private:
  std::shared_ptr<Queue> queue_;
  bool leaves_ = false;
};

class Receiver final : public Transport {
 public:
  Receiver(std::shared_ptr<Queue> queue, std::promise<std::string> promise)
      : queue_(std::move(queue)), promise_(std::move(promise)) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() override {
    const std::lock_guard lock(queue_->mutex);
    queue_->closed = true;
    queue_->packets.clear();
  }

  std::string announce(const std::string& own) override {
    promise_.set_value(own);
    return own;
  }

  bool send(Packet /*packet*/) override { return false; }

  std::optional<Packet> receive() override {
    const std::lock_guard lock(queue_->mutex);
    if (queue_->packets.empty()) return std::nullopt;
    Packet first = std::move(queue_->packets.front());
    queue_->packets.pop_front();
    return first;
  }

 private:
  std::shared_ptr<Queue> queue_;
  std::promise<std::string> promise_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> thread_transports(std::uint32_t ranks, std::size_t room) {
  std::promise<std::string> promise;
  const auto queue = std::make_shared<Queue>(room, promise.get_future().share());
  std::vector<std::unique_ptr<Transport>> all;
  all.push_back(std::make_unique<Receiver>(queue, std::move(promise)));
  while (all.size() < ranks) all.push_back(std::make_unique<Sender>(queue));
  return all;
}

}  // namespace presum
