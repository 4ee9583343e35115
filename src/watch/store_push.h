// SPDX-License-Identifier: Apache-2.0
// One message into a queue of torch's TCPStore, without Python: for a thread that must not wait for
// the interpreter's lock.
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
  std::string queue;  // as its clients name it
};

// The bytes that a client of TCPStore sends: that it is one, and the message for the queue. Torch's
// own format (2.8 to 2.13), tried against its server by tests/test_stalls.py.
std::vector<std::byte> push_request(const std::string& queue, std::span<const std::byte> message);

// Connects, sends, closes; waits two seconds at most for each host. Errors: kIo. Whether the server
// understood it is not known.
Status push(const StoreAddress& address, std::span<const std::byte> message);

}  // namespace presum::watch
