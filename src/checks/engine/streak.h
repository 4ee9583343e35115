// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace presum::checks {

// How often in a row something was so, over the records in which it was looked at.
struct Streak {
  // It goes on while it was so in at least one in this many records since it began.
  std::uint64_t one_in = 1;
  std::uint64_t length = 0;      // records in which it was so; 0: none goes on
  std::uint64_t first_step = 0;  // of the first of them
  std::uint64_t looks = 0;       // records since then

  // The length after this record.
  std::uint64_t see(bool so, std::uint64_t step) {
    if (length == 0 && !so) return 0;
    if (length == 0) first_step = step;
    length += so ? 1 : 0;
    if (++looks > one_in * length) end();
    return length;
  }
  void end() { length = looks = 0; }
};

// How often in a row something was so of each key, with another value each time.
template <class Key>
class StreaksBy {
 public:
  void next_step() { before_ = std::exchange(now_, {}); }

  // Once a step and key; of a value that is that of the step before the streak grows no longer.
  std::uint64_t extend(const Key& key, std::uint64_t value) {
    const auto found = before_.find(key);
    const bool goes_on = found != before_.end();
    const std::uint64_t length =
        goes_on ? found->second.length + (found->second.value != value) : 1;
    now_[key] = {value, length};
    return length;
  }

 private:
  struct Last {
    std::uint64_t value = 0;
    std::uint64_t length = 0;
  };
  std::map<Key, Last> now_, before_;
};

}  // namespace presum::checks
