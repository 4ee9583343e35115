// SPDX-License-Identifier: Apache-2.0
#include "watch/store_push.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace presum::watch {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(StorePush, AsksAsAClientDoes) {
  const auto request = push_request("a/b", bytes_of("hello"));
  const std::string_view expected("\0\xCE\xF7\x85\x3C\x0E\4\0\0\0\0\0\0\0/a/b\5\0\0\0\0\0\0\0hello",
                                  31);
  EXPECT_EQ(request, bytes_of(expected));
}

TEST(StorePush, SendsToWhoListens) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t size = sizeof(at);
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  std::vector<std::byte> got;
  std::thread server([&] {
    const int peer = accept(listener, nullptr, nullptr);
    std::byte buffer[4096];
    for (ssize_t n = 0; (n = read(peer, buffer, sizeof(buffer))) > 0;) {
      got.insert(got.end(), buffer, buffer + n);
    }
    close(peer);
  });
  const std::vector<std::byte> message(100'000, std::byte{7});
  EXPECT_TRUE(push({{"127.0.0.1"}, ntohs(at.sin_port), "q"}, message));
  server.join();
  close(listener);
  EXPECT_EQ(got, push_request("q", message));
}

TEST(StorePush, FailsWhereNobodyListens) {
  EXPECT_FALSE(push({{"127.0.0.1"}, 1, "q"}, {}));
  EXPECT_FALSE(push({{}, 1, "q"}, {}));
}

}  // namespace
}  // namespace presum::watch
