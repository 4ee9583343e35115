// SPDX-License-Identifier: Apache-2.0
// A session for the ranks of an MPI program, and a reproducible all-reduce. Both are in the target
// presum::mpi, available if presum was built with MPI: find_package(presum COMPONENTS mpi).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "presum/reduce.h"
#include "presum/session.h"
#include "presum/status.h"

namespace presum::mpi {

// The Session of one rank of a communicator. Rank 0 of the communicator records. Packets travel
// point to point on a duplicate of the communicator, so they cannot match a message of the program,
// and a step needs no collective.
//
// Each rank has at most 64 packets in flight. A packet is in flight until rank 0 has received it
// (synchronous mode), and this also bounds the memory of rank 0. If rank 0 is slow, has failed, or
// has stopped ending steps, packets are dropped and counted; the rank loses no time. No rank waits
// for a slow one. A rank that ends without close() leaves a gap, and close() on rank 0 then waits
// for its full patience.
//
// Thread-safety: not synchronized. One thread at a time may call it, and that thread must be
// allowed to call MPI. The session starts no thread, so MPI_THREAD_SINGLE suffices. Packets move
// only inside MPI calls; rank 0 receives them in end_step.
class Session : public presum::Session {
 public:
  Session() = default;  // inactive
  // Collective: every rank of `comm` (not an inter-communicator) calls it once, after MPI_Init. It
  // fills in rank and world size of `options`, and the host if empty. It duplicates `comm`, and the
  // error handler of `comm` applies to the duplication. The duplicate lives until MPI_Finalize,
  // since freeing it could wait for other ranks. Errors (in status()): those of presum::Session;
  // kInvalidArgument (MPI is not running, or `comm` is not an intra-communicator); kIo (MPI
  // refused). Call close() before MPI_Finalize.
  static Session create(MPI_Comm comm, SessionOptions options,
                        const std::vector<Parameter>& parameters);

 private:
  using presum::Session::Session;
  explicit Session(presum::Session session);
};

// The divisor of the exact sum. The division shares the sum's one rounding.
enum class Mean : std::uint8_t { kNone = 0, kOverRanks = 1, kOverLeaves = 2 };

// Replaces MPI_Allreduce. Computes on every rank the exact sum (presum/reduce.h) of the leaves of
// all ranks. A rank usually contributes one gradient; with several micro-batches it contributes one
// leaf each, and must not add them up first. The bits of the result depend on neither the order nor
// the number of ranks. Ranks may contribute different numbers of leaves, at least one each and at
// most 32,767 in total. `out` has `count` elements of `dtype` and may be one of the leaves.
//
// Collective over `comm` (not an inter-communicator), with the same dtype, count and mean on every
// rank; blocks. Needs memory for about 2^20 elements per leaf, regardless of the buffer length.
// docs/reduction.md gives the algorithm and its traffic. Errors are the same on every rank, and
// nothing is reduced then: kInvalidArgument (ranks disagree, no leaf, too many leaves), kIo (MPI
// refused). Thread-safety: that of MPI's collectives.
Status allreduce(reduce::Leaves leaves, Dtype dtype, std::size_t count, Mean mean, void* out,
                 MPI_Comm comm);

}  // namespace presum::mpi
