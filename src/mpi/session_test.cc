// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "mpi/testing.h"
#include "presum/mpi.h"
#include "presum/run_log.h"
#include "session/testing.h"

namespace presum::mpi {
namespace {

using presum::testing::steps_in;

constexpr std::uint64_t kSteps = 30;
constexpr Seconds kLong{20};

Status status_before_mpi;  // of a session created before MPI_Init

class MpiSession : public ::testing::Test {
 protected:
  MpiSession() {
    int id = getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    folder_ = std::filesystem::temp_directory_path() / ("presum_session_" + std::to_string(id));
    if (rank() == 0) std::filesystem::create_directories(folder_);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~MpiSession() override {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank() == 0) std::filesystem::remove_all(folder_);
  }

  static void train(Session& session, std::uint64_t steps = kSteps) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto own = static_cast<float>(rank() + 1);
      const std::vector<float> gradient(3, own);
      session.begin_step(step);
      EXPECT_TRUE(session.gradient(0, gradient.data(), gradient.size(), Dtype::kF32));
      EXPECT_TRUE(session.loss(own));
      EXPECT_TRUE(session.end_step());
    }
  }

  std::filesystem::path folder_;
  std::vector<Parameter> parameters_ = {{.name = "w", .elements = 3}};
};

TEST_F(MpiSession, RecordsEveryStepOfEveryRank) {
  auto session = Session::create(MPI_COMM_WORLD, {.run = folder_ / "run"}, parameters_);
  EXPECT_TRUE(session.active());
  EXPECT_EQ(session.aggregator() != nullptr, rank() == 0);
  train(session);
  EXPECT_TRUE(session.close(kLong));
  EXPECT_FALSE(session.active());
  if (rank() != 0) return;
  const auto log = RunLog::open(folder_ / "run");
  ASSERT_TRUE(log);
  const auto steps = steps_in(folder_ / "run");
  ASSERT_EQ(steps.size(), kSteps);
  for (const StepRecord& step : steps) {
    ASSERT_EQ(step.workers.size(), 4U);
    EXPECT_TRUE(step.missing_replicas.empty());
    for (const WorkerRecord& worker : step.workers) EXPECT_EQ(worker.loss, worker.rank + 1);
  }
  EXPECT_EQ(log->segments()->front().incomplete, "");
}

TEST_F(MpiSession, AGoodbyeFindsRoomWhereRank0IsLate) {
  auto session = Session::create(MPI_COMM_WORLD, {.run = folder_ / "run"}, parameters_);
  if (rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  train(session, 100);
  // The others give up before rank 0 arrives: all their places are taken.
  EXPECT_TRUE(session.close(rank() == 0 ? kLong : Seconds(0.2)));
}

TEST_F(MpiSession, RefusesAnInterCommunicator) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank() / 2, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank() < 2 ? 2 : 0, 0, &between);
  const auto session = Session::create(between, {.run = folder_ / "run"}, parameters_);
  ASSERT_FALSE(session.status());
  EXPECT_EQ(session.status().error().code, ErrorCode::kInvalidArgument);
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

TEST_F(MpiSession, OfARankAloneIsRecordedToo) {
  const auto run = folder_ / std::to_string(rank());
  auto session = Session::create(MPI_COMM_SELF, {.run = run}, parameters_);
  train(session);
  EXPECT_TRUE(session.close(kLong));
  EXPECT_EQ(RunLog::open(run)->steps()->size(), kSteps);
}

TEST_F(MpiSession, WithoutMpiOrACommunicatorSaysSo) {
  ASSERT_FALSE(status_before_mpi);
  EXPECT_EQ(status_before_mpi.error().code, ErrorCode::kInvalidArgument);
  const auto session = Session::create(MPI_COMM_NULL, {.run = folder_ / "run"}, parameters_);
  ASSERT_FALSE(session.status());
  EXPECT_EQ(session.status().error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

}  // namespace
}  // namespace presum::mpi

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  presum::mpi::status_before_mpi = presum::mpi::Session::create(MPI_COMM_WORLD, {}, {}).status();
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  const int result = presum::mpi::size() == 4 ? RUN_ALL_TESTS() : 1;
  MPI_Finalize();
  return result;
}
