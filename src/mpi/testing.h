// SPDX-License-Identifier: Apache-2.0
// For tests that run on all ranks at once: mpirun -n 4 mpi_test.
#pragma once

#include <mpi.h>

namespace presum::mpi {

inline int rank() {
  int value = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  return value;
}

inline int size() {
  int value = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  return value;
}

}  // namespace presum::mpi
