// SPDX-License-Identifier: Apache-2.0
// Pushes one message to a queue of torch's TCPStore, without Python: for a thread that must not
// wait for the interpreter's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "presum/status.h"

namespace presum::watch {

struct StoreAddress {
  std::vector<std::string> hosts;  // names of one host, in the order in which to try them
  std::uint16_t port = 0;
  std::string queue;  // as clients of the store name it
};

// The bytes that a client of TCPStore sends: its greeting, and the message for the queue. This is
// torch's own format (2.8 to 2.13); tests/test_stalls.py tests it against torch's server.
std::vector<std::byte> push_request(const std::string& queue, std::span<const std::byte> message);

// Connects, sends, closes; waits at most two seconds for each host. Errors: kIo. It is unknown
// whether the server understood the message.
Status push(const StoreAddress& address, std::span<const std::byte> message);

}  // namespace presum::watch
