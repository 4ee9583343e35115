// SPDX-License-Identifier: Apache-2.0
// One rank's part in recording a training run. The session turns what the rank computes into
// packets, a Transport carries them to rank 0, and an Aggregator records them there. presum/mpi.h
// has a session for MPI.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "presum/aggregator.h"
#include "presum/dtype.h"
#include "presum/fingerprint.h"
#include "presum/packet.h"
#include "presum/status.h"
#include "presum/training.h"

namespace presum {

using Seconds = std::chrono::duration<double>;

// Carries packets to rank 0, which records: through a store, sockets, or a locked queue. The thread
// that calls the Session makes all calls. An exception from a call ends the use of the transport
// (Session::status).
class Transport {
 public:
  static constexpr std::size_t kAnnouncementMax = 64;

  virtual ~Transport() = default;

  // Called once on every rank, at the start. Returns the argument of rank 0 on every rank: a string
  // of at most kAnnouncementMax characters, possibly empty. The arguments of other ranks are
  // ignored. May wait for rank 0.
  virtual std::string announce(const std::string& own) = 0;
  // Called on every rank but 0. Sends a packet to rank 0 and must not block. Returns false if there
  // was no room and the packet was dropped.
  virtual bool send(Packet packet) = 0;
  // Called on rank 0. Returns a packet that has arrived, if any. Packets of one rank keep their
  // order. Must not block.
  virtual std::optional<Packet> receive() = 0;
  // Called on every rank but 0, before and after the goodbye. Waits for at most `patience` until
  // all packets are on their way without this rank's help. After the first call there must be room
  // for one more packet. Override it if send() only queues or can run out of room.
  virtual void flush(Seconds /*patience*/) {}
};

// Transports for ranks that are threads of one process, indexed by rank; they share their state.
// They hold at most `room` packets that rank 0 has not received yet, and none after the transport
// of rank 0 is destroyed. If that happens before it announces, announce() throws on the other
// ranks. Thread-safety: each transport, one thread at a time.
std::vector<std::unique_ptr<Transport>> thread_transports(std::uint32_t ranks,
                                                          std::size_t room = 4096);

struct SessionOptions {
  std::filesystem::path run;  // the RUN folder, written by rank 0
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string host;  // empty: the name of this machine
  // Ask for the reduced gradient at every n-th step; see wants_reduced_gradient(). 0: never.
  std::uint64_t reduced_every = 25;
  // Number of floats per step that represent the direction of the gradient: 0 (off) or a power of
  // two from 64 to 65536. The cosine of a pair has a standard error of about 1.2/sqrt(size). A
  // step's packet takes 4 bytes per float, 64 bytes per group, and up to a few KB for the rest.
  std::uint32_t sketch_size = 4096;
  // Facts about this rank for the run log (versions, device, ...).
  std::vector<std::pair<std::string, std::string>> facts;
  // Tensors to hash besides the parameters: buffers and frozen parameters.
  std::vector<Parameter> buffers;
};

// Records a training run from one rank. On every rank, call create(); at each step begin_step(),
// gradient(), loss() and end_step(); at the end close().
//
// A session never stops the training. An error that ends its recording is returned once, by
// end_step() or close(), and kept in status(); after that the session is inactive, and every call
// does nothing and succeeds. If rank 0 cannot record, the sessions of the other ranks are inactive
// with an OK status. If the transport fails, rank 0 continues to record its own steps and the other
// ranks stop recording. Errors in the arguments of gradient() or state() are returned by the call
// and do not end the recording. Only create() (until the ranks meet) and close() (for at most its
// patience) block.
//
// Thread-safety: not synchronized. One thread at a time may call it; the thread may change. Ranks
// that are threads have one session each. A moved-from session is inactive. Borrowed pointers are
// read only during the call. Reporting a gradient does not allocate, and nothing throws or prints.
class Session {
 public:
  static constexpr Seconds kPatience{1.5};

  // Makes an inactive session, for a program that may run without a recording.
  Session() noexcept;
  // Call it on all ranks, with the same parameters. `transport` may be null for a single rank.
  // Errors (in status()): kIo (the transport threw), on rank 0 those of Aggregator::open,
  // kInvalidArgument (a rank outside the world, several ranks without a transport, a sketch size
  // outside its range, two parameters with one canonical name, an unknown SIMD target in
  // PRESUM_SIMD).
  static Session create(SessionOptions options, const std::vector<Parameter>& parameters,
                        std::unique_ptr<Transport> transport);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  // Does not wait. Without close() the recording has a gap.
  ~Session();

  bool active() const;
  // Returns the first error on this rank, or OK.
  Status status() const;

  // Starts a step and discards what was reported since the last end_step(). Numbers must be equal
  // on all ranks and must ascend; one that does not ascend ends the recording, and end_step()
  // returns the error.
  void begin_step(std::uint64_t step);
  // Reports this rank's own gradient of one parameter, before any reduction: all of its elements,
  // contiguous, in an order that all ranks share, at any alignment. Reads the memory once, or twice
  // at steps that are a multiple of 25 (docs/metrics.md, "Layer by layer"). Counts NaN and Inf.
  // Empty gradients are allowed. A second report for a parameter in a step replaces the first. The
  // first step in which this happens to a parameter has no sketch; from then on the parameter has a
  // sketch of its own. Errors (kInvalidArgument): an unknown id, a null pointer with count > 0, a
  // `count` that differs from the parameter's, an unknown dtype.
  Status gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);
  // Reports the loss of one micro-batch, its weight in the rank's mean, and its number of target
  // tokens (0 if unknown). NaN and Inf are kept, and named later. Call it once per micro-batch;
  // above 1,024 losses in a step, only the weighted mean is sent. Error (kInvalidArgument): a
  // weight that is negative or not finite.
  Status loss(double value, double weight = 1, std::uint64_t tokens = 0);
  // Returns whether to report the reduced gradients of all parameters at this step. Depends only on
  // the step's number, so it is the same on all ranks, active or not.
  bool wants_reduced_gradient() const;
  // Reports the gradient of one parameter after the reduction and before clipping. Works like
  // `gradient`, without a sketch. Report all parameters of a step or none.
  Status reduced_gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);

  // Optional values that ranks are compared by. Report them between begin_step() and end_step();
  // report states before the step's forward pass.

  // Reports a 64-bit value (presum/fingerprint.h). Kinds below 1,024 are reserved for presum. The
  // last report of a kind counts.
  void fingerprint(std::uint32_t kind, std::uint64_t value);
  // Report the row hashes of a micro-batch (hash_rows) and the positions of its samples in the data
  // set. At most 256 hashes are sent, sampled by value, and the first 4,096 positions
  // (kIndicesMax).
  void samples(std::span<const std::uint64_t> hashes);
  void indices(std::span<const std::uint64_t> indices);
  // Discards the states reported so far. Call it before the first state of a step's forward pass.
  void begin_states();
  // Hashes `count` contiguous elements of `element_bytes` (2, 4 or 8) each, from a parameter or a
  // buffer. `index` is the position of the parameter or, for a buffer, its position in
  // SessionOptions::buffers; for kOptimizer it is the parameter's. The next end_step() or the
  // goodbye sends the hashes. All ranks must report the same tensors at a step. `shard` is the
  // shard of a sharded model that this rank holds, from 1; only ranks with equal shards are
  // compared. 0: the whole model. Errors (kInvalidArgument): an unknown index, a null pointer with
  // count > 0, another element size, a shard above StateHash::kShardsMax, kWatched.
  Status state(StateHash::Kind kind, std::uint32_t index, const void* data, std::size_t count,
               std::uint32_t element_bytes, std::uint32_t shard = 0);

  // Adds a fact to the run log, or replaces the fact of that name; callable at any time. Values
  // over 1,024 bytes, here and in SessionOptions, are truncated and end in their length and hash.
  void fact(std::string_view key, std::string_view value);

  // Sends the step. On rank 0 it also receives the packets that have arrived, a few per rank, and
  // writes. Errors: kInvalidArgument (no step was begun, or gradient_scale is not finite and
  // positive), and the error that ended the recording.
  Status end_step(const StepEnd& end = {});
  // Ends the recording. Rank 0 waits until all ranks have said goodbye, then closes the run log;
  // the other ranks wait until their packets are on their way. Each waits for at most `patience`.
  // If goodbyes are missing, the recording is marked incomplete and rank 0 returns an error (kIo).
  Status close(Seconds patience = kPatience);

  // On rank 0, the aggregator with the findings and the verdict, also after close(). Null on other
  // ranks, and on rank 0 if the aggregator could not be opened.
  const Aggregator* aggregator() const;

 protected:
  explicit Session(Error why);  // inactive, with that status

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;  // null: inactive
};

}  // namespace presum
