// SPDX-License-Identifier: Apache-2.0
// A session of the ranks of an MPI program, and a reproducible all-reduce. In the target
// presum::mpi, which exists where presum was built with MPI: find_package(presum COMPONENTS mpi).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "presum/reduce.h"
#include "presum/session.h"
#include "presum/status.h"

namespace presum::mpi {

// The Session of one rank of a communicator, whose rank 0 records. Packets go point to point on a
// duplicate of it: no message of the program can match one of these, and no step has a collective.
//
// A rank has at most 64 packets under way. A packet is under way until rank 0 has taken it
// (synchronous mode), which bounds rank 0's memory as well. Where rank 0 is slow, failed or ends no
// steps any more, packets are dropped and counted, and no time is lost. No rank waits for a slow
// one. A rank that ends without close() leaves a gap, and rank 0's close() then waits for its whole
// patience.
//
// Thread-safety: not synchronized; one thread at a time, and one that may call MPI. There is no
// thread inside, so MPI_THREAD_SINGLE is enough. Packets move during calls of MPI only: rank 0
// takes them in end_step.
class Session : public presum::Session {
 public:
  Session() = default;  // an inactive one
  // Collective: all ranks of `comm` (not an inter-communicator) call it once, after MPI_Init. Rank,
  // world size and, where it is empty, host of `options` are filled in. Duplicates `comm` (its
  // error handler applies to the duplication); the duplicate lives until MPI_Finalize, since
  // freeing it could wait for ranks. Errors (status): those of presum::Session; kInvalidArgument
  // (MPI is not running, no communicator of one group), kIo (MPI refused). Call close() before
  // MPI_Finalize.
  static Session create(MPI_Comm comm, SessionOptions options,
                        const std::vector<Parameter>& parameters);

 private:
  using presum::Session::Session;
  explicit Session(presum::Session session);
};

// What the exact sum is divided by, in the same rounding.
enum class Mean : std::uint8_t { kNone = 0, kOverRanks = 1, kOverLeaves = 2 };

// Replaces MPI_Allreduce: the exact sum (presum/reduce.h) of the leaves of all ranks (usually one
// gradient each; more are micro-batches, which must not be added up before), on every rank, with
// the same bits for any order and number of ranks. Ranks may bring different numbers of leaves, at
// least one each, together at most 32,767. `out` has `count` elements of `dtype` and may be one of
// the leaves.
//
// Collective over `comm` (not an inter-communicator), with the same dtype, count and mean on every
// rank, and blocking. Needs memory for about 2^20 elements a leaf, however long buffers
// are. Steps and bytes on the wire: docs/reduction.md. Errors, the same on every rank, nothing
// reduced: kInvalidArgument (ranks that disagree, no leaf, too many), kIo (MPI refused).
// Thread-safety: as MPI's own collectives.
Status allreduce(reduce::Leaves leaves, Dtype dtype, std::size_t count, Mean mean, void* out,
                 MPI_Comm comm);

}  // namespace presum::mpi
