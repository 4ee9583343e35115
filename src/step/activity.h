// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "presum/times.h"

namespace presum::step {

// The last event of this process's training, for code that watches whether training progresses. All
// models and threads write to one instance; the latest write wins. Thread-safety: all.
class Activity {
 public:
  void event(std::uint32_t model_index, std::uint64_t step, std::uint32_t micro_batch,
             Phase phase) {
    thread_.store(this_thread(), std::memory_order_relaxed);
    model_index_.store(model_index, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
    micro_batch_.store(micro_batch, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_relaxed);
    layer_.store(0, std::memory_order_relaxed);
    moved();
  }
  void gradient(std::uint64_t layer) {
    layer_.store(layer, std::memory_order_relaxed);
    moved();
  }
  // A wait for other ranks begins or ends. Calls from a thread other than that of the last event
  // are ignored. The end of a wait does not count as an event, because an exception may have caused
  // it.
  void waits(bool begins) {
    if (thread_.load(std::memory_order_relaxed) != this_thread()) return;
    waiting_.store(begins, std::memory_order_relaxed);
    if (begins) moved();
  }

  std::uint64_t events() const { return events_.load(std::memory_order_relaxed); }
  std::uint32_t model_index() const { return model_index_.load(std::memory_order_relaxed); }
  std::uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  std::uint32_t micro_batch() const { return micro_batch_.load(std::memory_order_relaxed); }
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  // The group of the last gradient since the last event; 0: none.
  std::uint64_t layer() const { return layer_.load(std::memory_order_relaxed); }
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  static std::thread::id this_thread() { return std::this_thread::get_id(); }
  void moved() { events_.fetch_add(1, std::memory_order_release); }

  std::atomic<std::uint64_t> events_ = 0;
  std::atomic<std::uint32_t> model_index_ = 0;
  std::atomic<std::uint64_t> step_ = 0;
  std::atomic<std::uint32_t> micro_batch_ = 0;
  std::atomic<Phase> phase_ = Phase::kRest;
  std::atomic<std::uint64_t> layer_ = 0;
  std::atomic<std::thread::id> thread_;
  std::atomic<bool> waiting_ = false;
};

// Returns this process's instance.
Activity& activity();

}  // namespace presum::step
