// SPDX-License-Identifier: Apache-2.0
#include "watch/store_push.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>

#include "base/byte_order.h"

namespace presum::watch {
namespace {

constexpr std::uint8_t kValidate = 0;
constexpr std::uint8_t kQueuePush = 14;
constexpr std::uint32_t kValidation = 0x3C85F7CE;
constexpr timeval kPatience{.tv_sec = 2, .tv_usec = 0};

class Socket {
 public:
  explicit Socket(const addrinfo& to)
      : file_(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC, to.ai_protocol)) {
    if (file_ < 0) return;
    // On Linux this applies to connect() too.
    setsockopt(file_, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    connected_ = connect(file_, to.ai_addr, to.ai_addrlen) == 0;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (file_ >= 0) close(file_);
  }

  bool send_all(std::span<const std::byte> bytes) const {
    while (connected_ && !bytes.empty()) {
      const ssize_t sent = send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return connected_;
  }

 private:
  int file_;
  bool connected_ = false;
};

bool push_to(const std::string& host, std::uint16_t port, std::span<const std::byte> request) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
  for (const addrinfo* to = list; to != nullptr; to = to->ai_next) {
    if (Socket(*to).send_all(request)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::byte> push_request(const std::string& queue, std::span<const std::byte> message) {
  const std::string key = "/" + queue;  // as its clients do
  std::vector<std::byte> out;
  ByteWriter w(out);
  w.put(kValidate);
  w.put(kValidation);
  w.put(kQueuePush);
  w.put(std::uint64_t{key.size()});
  w.put_bytes(std::as_bytes(std::span(key)));
  w.put(std::uint64_t{message.size()});
  w.put_bytes(message);
  return out;
}

Status push(const StoreAddress& address, std::span<const std::byte> message) {
  const auto request = push_request(address.queue, message);
  for (const std::string& host : address.hosts) {
    if (push_to(host, address.port, request)) return {};
  }
  return fail(ErrorCode::kIo, "the store cannot be reached");
}

}  // namespace presum::watch
