// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace presum::checks {

// How many times in a row something held, over the records that were looked at.
struct Streak {
  // The streak continues while it held in at least one of this many records since it began.
  std::uint64_t one_in = 1;
  std::uint64_t length = 0;      // records in which it held; 0: no streak
  std::uint64_t first_step = 0;  // of the first record
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

// How many steps in a row something held for each key, with a different value each time.
template <class Key>
class StreaksBy {
 public:
  void next_step() { before_ = std::exchange(now_, {}); }

  // Call once per step and key. The streak does not grow if the value equals that of the previous
  // step.
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
