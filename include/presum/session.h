// SPDX-License-Identifier: Apache-2.0
// One rank's part in a recorded training: an Observer, on rank 0 an Aggregator, and a Transport
// between them. For MPI there is presum/mpi.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "presum/aggregator.h"
#include "presum/dtype.h"
#include "presum/observer.h"
#include "presum/packet.h"
#include "presum/status.h"

namespace presum {

using Seconds = std::chrono::duration<double>;

// How packets come to rank 0, which records. A program's own: a queue behind a lock for threads, a
// store, sockets. Calls come from the thread that calls the Session. What a call throws ends its
// use (Session::status).
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
  // On all ranks but 0, at the end: waits at most so long until packets are on their way without
  // this rank's help.
  virtual void flush(Seconds /*patience*/) {}
};

// Transports of ranks that are threads of one process, by rank; each owns its part of what they
// share. Of the packets that rank 0 has not taken at most `room` are kept. Thread-safety: each one
// thread at a time.
std::vector<std::unique_ptr<Transport>> thread_transports(std::uint32_t ranks,
                                                          std::size_t room = 4096);

struct SessionOptions {
  std::filesystem::path run;  // the RUN folder; rank 0 writes it
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::string host;  // empty: this machine's name
  // Every n-th step's reduced gradient is wanted: see wants_reduced_gradient.
  std::uint64_t reduced_every = 25;
  std::uint32_t sketch_size = 4096;  // see ObserverOptions
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Parameter> buffers;
};

// Records a training from one rank: create, then begin_step, gradient, loss and end_step at each
// step, then close, on every rank.
//
// A session never stops the training: what fails is told by status(), and from then on the session
// is inactive and every call does nothing, and is fine. Nothing blocks but create (while ranks
// meet) and close (at most its patience).
//
// Thread-safety: not synchronised; one thread at a time (it need not be the same one). Ranks that
// are threads have a session each.
class Session {
 public:
  static constexpr Seconds kPatience{1.5};

  // An inactive one, for a program that may not be recorded.
  Session();
  // Call it on all ranks, with the same parameters; `transport` is null for a rank alone. Errors
  // (status): those of Observer::create, on rank 0 of Aggregator::open, what the transport threw
  // (kIo), kInvalidArgument (a rank outside the world, several ranks without a transport).
  static Session create(SessionOptions options, const std::vector<Parameter>& parameters,
                        std::unique_ptr<Transport> transport);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  // Without close() the record has a gap. Waits for nothing.
  ~Session();

  // Whether steps are recorded: not after an error, where rank 0 cannot record, and after close().
  bool active() const;
  // The first error on this rank, or none.
  Status status() const;

  // Numbers are the same on all ranks, and ascend.
  void begin_step(std::uint64_t step);
  // This rank's own gradient, before any reduction: see Observer::gradient.
  Status gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);
  // See Observer::loss.
  void loss(double value, double weight = 1, std::uint64_t tokens = 0);
  // Whether the gradients after the reduction are to be reported at this step: of all parameters,
  // on all ranks.
  bool wants_reduced_gradient() const;
  Status reduced_gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);
  // Sends the step; on rank 0 also takes what has arrived, and writes. Returns an error once.
  Status end_step(const StepEnd& end = {});
  // The end of the recording. Other ranks wait until what they sent is on its way, rank 0 until all
  // have said goodbye, both at most `patience`; rank 0 then closes the run log.
  Status close(Seconds patience = kPatience);

  // Takes what else a rank can tell of a step (states, samples, fingerprints); null while inactive.
  Observer* observer();
  // On rank 0, where findings and the verdict are, after close() too; null on others, and where it
  // could not be opened.
  const Aggregator* aggregator() const;

 protected:
  explicit Session(Error why);  // inactive, with that status

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
