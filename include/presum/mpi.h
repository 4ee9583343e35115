// SPDX-License-Identifier: Apache-2.0
// Packets between the ranks of an MPI program, and a reproducible all-reduce. In the target
// presum::mpi, which exists where presum was built with MPI: find_package(presum COMPONENTS mpi).
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "presum/packet.h"
#include "presum/reduce.h"
#include "presum/status.h"

namespace presum::mpi {

// What rank 0's aggregator stamps on packets: Aggregator::run() and Aggregator::segment().
struct Announcement {
  std::uint64_t run = 0;
  std::uint32_t segment = 0;
};

// Carries packets from every rank of a communicator to its rank 0, point to point on a duplicate of
// it: no message of the program can match one of these, and no step has a collective.
//
// A rank has at most kInFlight packets under way. A packet is under way until rank 0 has taken it
// (synchronous mode), which bounds rank 0's memory as well. Where rank 0 is slow, failed or no
// longer polls, packets are dropped and counted, and no time is lost. No rank waits for a slow one:
// rank 0 takes what has arrived. A rank that ends without close() leaves a gap, and rank 0's
// close() then waits for its whole patience. After an error of MPI this rank's exchange is
// inactive.
//
// Thread-safety: not synchronised; one thread at a time, and one that may call MPI. There is no
// thread inside, so MPI_THREAD_SINGLE is enough. Packets move during calls of MPI only: rank 0
// polls once a step.
class Exchange {
 public:
  static constexpr std::size_t kInFlight = 64;
  static constexpr std::chrono::duration<double> kPatience{1.5};

  // Collective: all ranks of `comm` (not an inter-communicator) call it once, after MPI_Init.
  // Duplicates `comm` (its error handler applies to the duplication) and tells all ranks what rank
  // 0 passes as `announced`; what other ranks pass is ignored. If rank 0 passes none, because it
  // could not open its aggregator, all ranks are inactive. The duplicate lives until MPI_Finalize,
  // since freeing it could wait for ranks. Errors: kInvalidArgument (MPI is not running, a null
  // communicator), kIo (MPI refused).
  static Result<Exchange> create(MPI_Comm comm, std::optional<Announcement> announced);
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;
  // Waits for nothing. Memory that MPI may still read stays allocated.
  ~Exchange();

  // False: there is no aggregator, MPI failed, or close() was called. Observing can then be left
  // out.
  bool active() const;
  // Stamps the packet and sends it; on rank 0, keeps it for receive(). Never waits. False: it was
  // dropped, for lack of room, because this is inactive, or because it is no packet.
  bool send(Packet packet);
  // Packets that send() took, and those that it dropped.
  std::uint64_t sent() const;
  std::uint64_t dropped() const;

  // On rank 0, a packet that has arrived, if any; those of one rank in their order. Never waits.
  // Nothing on other ranks.
  std::optional<Packet> receive();

  // Ends the exchange: call it on every rank, before MPI_Finalize and in any order. Waits at most
  // `patience`: rank 0 hands what arrives to `take` until every rank has closed, the others wait
  // until rank 0 has taken their packets. True if that was reached, or if this was inactive.
  bool close(const std::function<void(const Packet&)>& take = {},
             std::chrono::duration<double> patience = kPatience);

 private:
  struct State;
  explicit Exchange(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Methods of presum/reduce.h that add up leaves with the same bits for any order and number of
// ranks.
enum class Method : std::uint8_t { kExact = 0, kBinned = 1, kFixed32 = 2, kFixed64 = 3 };

// What the exact sum is divided by, in the same rounding.
enum class Mean : std::uint8_t { kNone = 0, kOverRanks = 1, kOverLeaves = 2 };

// Replaces MPI_Allreduce: the sum of the leaves of all ranks (usually one gradient each; more
// are micro-batches, which must not be added up before), on every rank. Ranks may bring different
// numbers of leaves, at least one each, together at most 32,767. `out` has `count` elements of
// `dtype` and may be one of the leaves. kExact takes every dtype, the others not kF64.
//
// Collective over `comm` (not an inter-communicator), with the same dtype, count, method and mean
// on every rank, and blocking. Needs memory for about 2^20 elements a leaf, however long buffers
// are. Steps and bytes on the wire: docs/reduction.md. Errors, the same on every rank, nothing
// reduced: kInvalidArgument (ranks that disagree, no leaf, too many, a dtype that the method does
// not take), kIo (MPI refused). Thread-safety: as MPI's own collectives.
Status allreduce(reduce::Leaves leaves, Dtype dtype, std::size_t count, Method method, Mean mean,
                 void* out, MPI_Comm comm);

}  // namespace presum::mpi
