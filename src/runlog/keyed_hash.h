// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace presum::runlog {

// SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012) of one 64-bit word, little-endian. Unlike
// mix64, it does not reveal its key to someone who knows words and their hashes.
class KeyedHash {
 public:
  KeyedHash(std::uint64_t key0, std::uint64_t key1) : key0_(key0), key1_(key1) {}

  std::uint64_t operator()(std::uint64_t word) const {
    constexpr std::uint64_t kLength = std::uint64_t{sizeof word} << 56;
    State s{key0_ ^ 0x736F6D6570736575ULL, key1_ ^ 0x646F72616E646F6DULL,
            key0_ ^ 0x6C7967656E657261ULL, key1_ ^ 0x7465646279746573ULL};
    s.absorb(word);
    s.absorb(kLength);
    s.c ^= 0xFF;
    for (int i = 0; i < 4; ++i) s.round();
    return s.a ^ s.b ^ s.c ^ s.d;
  }

 private:
  struct State {
    std::uint64_t a, b, c, d;

    void absorb(std::uint64_t word) {
      d ^= word;
      round();
      round();
      a ^= word;
    }
    void round() {
      a += b;
      c += d;
      b = std::rotl(b, 13) ^ a;
      d = std::rotl(d, 16) ^ c;
      a = std::rotl(a, 32);
      c += b;
      a += d;
      b = std::rotl(b, 17) ^ c;
      d = std::rotl(d, 21) ^ a;
      c = std::rotl(c, 32);
    }
  };

  std::uint64_t key0_;
  std::uint64_t key1_;
};

}  // namespace presum::runlog
