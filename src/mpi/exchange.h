// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "presum/session.h"

namespace presum::mpi {

// Carries packets from every rank of a communicator to its rank 0: see presum::mpi::Session. Throws
// std::runtime_error if MPI refuses. Memory that MPI may still read or write stays allocated after
// destruction.
class Exchange final : public Transport {
 public:
  static constexpr std::size_t kInFlight = 64;

  // REQUIRES: MPI is running until the last call.
  explicit Exchange(MPI_Comm comm) : comm_(comm) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() override;

  // Collective; duplicates the communicator.
  std::string announce(const std::string& own) override;
  // Also returns false for bytes that are not a packet.
  bool send(Packet packet) override;
  std::optional<Packet> receive() override;
  void flush(Seconds patience) override;

 private:
  // A message that MPI reads or writes until `request` completes.
  struct Transfer {
    Packet packet;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  static bool done(Transfer& transfer);
  template <class Transfers>
  static void abandon(Transfers& transfers) noexcept;
  void forget_delivered();
  void match_what_came();
  void start_receiving(MPI_Message message, const MPI_Status& status);

  MPI_Comm comm_;
  std::vector<Transfer> sending_;
  bool leaves_ = false;  // keep room for the goodbye
  // On rank 0: the incoming messages, by rank and in order, and the rank to look at next.
  std::vector<std::deque<Transfer>> arriving_;
  std::size_t next_ = 0;
};

}  // namespace presum::mpi
