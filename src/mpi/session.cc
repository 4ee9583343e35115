// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "mpi/exchange.h"
#include "presum/mpi.h"

namespace presum::mpi {
namespace {

bool mpi_runs() {
  int begun = 0;
  int over = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&over);
  return begun != 0 && over == 0;
}

std::string processor_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  return {name.data(), static_cast<std::size_t>(length)};
}

}  // namespace

Session::Session(presum::Session session) : presum::Session(std::move(session)) {}

Session Session::create(MPI_Comm comm, SessionOptions options,
                        const std::vector<Parameter>& parameters) {
  if (!mpi_runs()) {
    return Session(
        fail(ErrorCode::kInvalidArgument, "MPI is not running: create the session after MPI_Init"));
  }
  if (comm == MPI_COMM_NULL) {
    return Session(fail(ErrorCode::kInvalidArgument, "the communicator is null"));
  }
  int between_groups = 0;
  if (MPI_Comm_test_inter(comm, &between_groups) == MPI_SUCCESS && between_groups != 0) {
    return Session(fail(ErrorCode::kInvalidArgument,
                        "the communicator is an inter-communicator: give one of a single group"));
  }
  int rank = 0;
  int size = 0;
  if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS) {
    return Session(fail(ErrorCode::kIo, "MPI does not say who this rank is"));
  }
  options.rank = static_cast<std::uint32_t>(rank);
  options.world_size = static_cast<std::uint32_t>(size);
  if (options.host.empty()) options.host = processor_name();
  return Session(
      presum::Session::create(std::move(options), parameters, std::make_unique<Exchange>(comm)));
}

}  // namespace presum::mpi
