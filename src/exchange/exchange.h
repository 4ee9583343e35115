// SPDX-License-Identifier: Apache-2.0
// Moving packets from workers to the aggregator: many senders, one receiver, no collective.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

#include "presum/packet.h"

namespace presum::exchange {

// Thread-safety: safe from any thread. Nothing here waits for another worker.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  // False: there was no room and the packet was dropped; the caller counts it.
  virtual bool send(Packet packet) = 0;
  // The oldest packet that has arrived, if any.
  virtual std::optional<Packet> receive() = 0;
};

// Workers as threads of one process.
class ThreadExchange final : public Exchange {
 public:
  explicit ThreadExchange(std::size_t capacity) : capacity_(capacity) {}

  bool send(Packet packet) override;
  std::optional<Packet> receive() override;

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::deque<Packet> packets_;
};

}  // namespace presum::exchange
