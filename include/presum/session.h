// SPDX-License-Identifier: Apache-2.0
// One rank's part in a recorded training: what it computes becomes packets, a Transport brings them
// to rank 0, and an Aggregator records them there. For MPI there is presum/mpi.h.
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

// How packets come to rank 0, which records: a store, sockets, a queue behind a lock. Calls come
// from the thread that calls the Session. What a call throws ends its use (Session::status).
class Transport {
 public:
  static constexpr std::size_t kAnnouncementMax = 64;

  virtual ~Transport() = default;

  // Called once on every rank, at the beginning: returns what rank 0 passed, a text of at most
  // kAnnouncementMax characters, which may be empty; what others pass does not count. May wait for
  // rank 0.
  virtual std::string announce(const std::string& own) = 0;
  // On all ranks but 0: sends to rank 0, and must not wait. False: dropped, for lack of room.
  virtual bool send(Packet packet) = 0;
  // On rank 0: a packet that has arrived, if any; those of one rank in their order. Must not wait.
  virtual std::optional<Packet> receive() = 0;
  // On all ranks but 0, before the goodbye and after it: waits at most so long until packets are on
  // their way without this rank's help. From the first call on there must be room for one packet
  // more. Override it where send() only queues, or may lack room.
  virtual void flush(Seconds /*patience*/) {}
};

// Transports of ranks that are threads of one process, by rank; they share what they need. Of the
// packets that rank 0 has not taken at most `room` are kept, and none once its transport is gone;
// where that goes before it has announced, announce() throws on the others. Thread-safety: each one
// thread at a time.
std::vector<std::unique_ptr<Transport>> thread_transports(std::uint32_t ranks,
                                                          std::size_t room = 4096);

struct SessionOptions {
  std::filesystem::path run;  // the RUN folder; rank 0 writes it
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string host;  // empty: this machine's name
  // Every n-th step's reduced gradient is wanted: see wants_reduced_gradient. 0: none.
  std::uint64_t reduced_every = 25;
  // Floats per step that stand for the gradient's direction: 0 (off) or a power of two from 64 to
  // 65536. A pair's cosine has a standard error of about 1.2/sqrt(size); doubling the size doubles
  // the packet. The packet of a step has 4 bytes per float, 64 a group, and up to some KB of the
  // rest.
  std::uint32_t sketch_size = 4096;
  // Facts about this rank that the run log should hold (versions, device, ...).
  std::vector<std::pair<std::string, std::string>> facts;
  // Tensors that are hashed besides the parameters: buffers and frozen parameters.
  std::vector<Parameter> buffers;
};

// Records a training from one rank: create, then begin_step, gradient, loss and end_step at each
// step, then close, on every rank.
//
// A session never stops the training. What ends its record is returned once, by end_step or close,
// and kept in status(); from then on it is inactive, and every call does nothing and is fine. So it
// is, with a status that is fine, where rank 0 cannot record. Where the transport fails, rank 0
// goes on with its own steps, and the others end. Errors of the arguments of a call (gradient,
// state) are returned there and end nothing. Nothing blocks but create (while ranks meet) and close
// (at most its patience).
//
// Thread-safety: not synchronized; one thread at a time (it need not be the same one). Ranks that
// are threads have a session each. A moved-from session is an inactive one. Borrowed pointers are
// only read during the call; nothing allocates per gradient, throws or prints.
class Session {
 public:
  static constexpr Seconds kPatience{1.5};

  // An inactive one, for a program that may not be recorded.
  Session() noexcept;
  // Call it on all ranks, with the same parameters; `transport` is null for a rank alone. Errors
  // (status): what the transport threw (kIo), on rank 0 those of Aggregator::open, kInvalidArgument
  // (a rank outside the world, several ranks without a transport, a sketch size outside its range,
  // two parameters of one canonical name, an unknown SIMD target in PRESUM_SIMD).
  static Session create(SessionOptions options, const std::vector<Parameter>& parameters,
                        std::unique_ptr<Transport> transport);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  // Without close() the record has a gap. Waits for nothing.
  ~Session();

  bool active() const;
  // The first error on this rank, or none.
  Status status() const;

  // Starts a step and forgets what was reported since the last end_step. Numbers are the same on
  // all ranks, and ascend: one that does not ends the record (end_step returns the error).
  void begin_step(std::uint64_t step);
  // This rank's own gradient of one parameter, before any reduction: all its elements, contiguous,
  // in any order that all ranks share, at any alignment. Reads the memory once, at steps that are a
  // multiple of 25 twice (docs/metrics.md, "Layer by layer"). NaN and Inf are counted; empty is
  // fine. A parameter that is reported twice in a step replaces its first report (its direction is
  // left out of that first step's sketch, so that step has none). Errors (kInvalidArgument): an
  // unknown id, a null pointer with count > 0, a `count` that is not the parameter's, an unknown
  // dtype.
  Status gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);
  // The loss of one micro-batch (NaN and Inf are kept and named later), its weight in the rank's
  // mean and its number of target tokens, 0 if unknown. Any number of them; of more than 1,024 in a
  // step the weighted mean is sent as one. Error (kInvalidArgument): a weight that is negative or
  // not finite.
  Status loss(double value, double weight = 1, std::uint64_t tokens = 0);
  // Whether the gradients after the reduction are to be reported at this step, of all parameters:
  // by its number alone, so the same on all ranks, active or not.
  bool wants_reduced_gradient() const;
  // The gradient of one parameter after the reduction and before clipping. Works as `gradient`, but
  // makes no sketch. Report all parameters of a step or none.
  Status reduced_gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);

  // What else ranks are compared by, optional. All of it between begin_step and end_step; states
  // before the step's forward pass.

  // A 64-bit value (presum/fingerprint.h); kinds below 1,024 belong to presum. One that is reported
  // twice counts as its last.
  void fingerprint(std::uint32_t kind, std::uint64_t value);
  // Row hashes of a micro-batch (hash_rows) and the positions of its samples in the data set. At
  // most 256 hashes are sent, sampled by their value, and the first 4,096 positions (kIndicesMax).
  void samples(std::span<const std::uint64_t> hashes);
  void indices(std::span<const std::uint64_t> indices);
  // Forgets the states reported so far. Call it before the first state of a step's forward pass.
  void begin_states();
  // Hashes `count` contiguous elements of `element_bytes` (2, 4 or 8) of a parameter, or of a
  // buffer (its position in SessionOptions::buffers). The hashes are sent with the next end_step,
  // or with the goodbye. All ranks must report the same tensors at a step.
  // Of kOptimizer the index is a parameter's. `shard`: which part of a sharded model this rank
  // holds, from 1; only ranks of equal shards are compared. 0: the whole.
  // Errors (kInvalidArgument): an unknown index, a null pointer with count > 0, another width, a
  // shard above StateHash::kShardsMax, kWatched.
  Status state(StateHash::Kind kind, std::uint32_t index, const void* data, std::size_t count,
               std::uint32_t element_bytes, std::uint32_t shard = 0);

  // Adds a fact for the run log, or replaces the one of that name, at any time. Values longer than
  // 1,024 bytes, here and in SessionOptions, are cut and end in their length and hash.
  void fact(std::string_view key, std::string_view value);

  // Sends the step; on rank 0 also takes what has arrived, a few packets a rank, and writes.
  // Errors: kInvalidArgument (no step was begun, a gradient_scale that is not above 0), and what
  // ended the record.
  Status end_step(const StepEnd& end = {});
  // The end of the recording. Other ranks wait until what they sent is on its way, rank 0 until all
  // have said goodbye, both at most `patience`; rank 0 then closes the run log. Where goodbyes lack
  // the record is marked as incomplete, and that is an error (kIo).
  Status close(Seconds patience = kPatience);

  // On rank 0, where findings and the verdict are, after close() too; null on others, and where it
  // could not be opened.
  const Aggregator* aggregator() const;

 protected:
  explicit Session(Error why);  // inactive, with that status

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;  // null: inactive
};

}  // namespace presum
