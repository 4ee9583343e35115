// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange.h"

#include <utility>

namespace presum::exchange {

bool ThreadExchange::send(Packet packet) {
  const std::lock_guard lock(mutex_);
  if (packets_.size() >= capacity_) return false;
  packets_.push_back(std::move(packet));
  return true;
}

std::optional<Packet> ThreadExchange::receive() {
  const std::lock_guard lock(mutex_);
  if (packets_.empty()) return std::nullopt;
  Packet packet = std::move(packets_.front());
  packets_.pop_front();
  return packet;
}

}  // namespace presum::exchange
