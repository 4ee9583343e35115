// SPDX-License-Identifier: Apache-2.0
// Every test runs on all ranks at once: mpirun -n 4 mpi_test.
#include "presum/mpi.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

#include "packet/packet.h"

namespace presum::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Announcement kAnnounced{.run = 0x0123'4567'89AB'CDEF, .segment = 3};
constexpr Seconds kLong{20};
constexpr std::size_t kEager = 64;      // floats: a message that MPI may send at once
constexpr std::size_t kLarge = 65'536;  // one that needs its receiver, and its sender's progress
bool refused_before_mpi = false;

int rank() {
  int value = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  return value;
}

int size() {
  int value = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  return value;
}

// What the program under watch does at each step.
int sum_over_ranks(int value) {
  int sum = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

void all_meet() { MPI_Barrier(MPI_COMM_WORLD); }

Exchange open(std::optional<Announcement> announced = kAnnounced) {
  auto exchange = Exchange::create(MPI_COMM_WORLD, announced);
  EXPECT_TRUE(exchange) << exchange.error().message;
  return std::move(*exchange);
}

Packet packet_of(std::uint64_t step, std::size_t floats = kEager) {
  packet::Step message;
  message.header.step = step;
  message.header.identity.rank = static_cast<std::uint32_t>(rank());
  message.sketch.assign(floats, 1.0F + static_cast<float>(rank()));
  return packet::encode(message);
}

// What rank 0 was given, decoded.
class Ledger {
 public:
  void operator()(const Packet& bytes) {
    const auto message = packet::decode(bytes.bytes);
    ASSERT_TRUE(message) << message.error().message;
    const auto& step = std::get<packet::Step>(*message);
    EXPECT_EQ(step.header.run, kAnnounced.run);
    EXPECT_EQ(step.header.segment, kAnnounced.segment);
    const auto from = static_cast<int>(step.header.identity.rank);
    EXPECT_EQ(step.sketch.back(), 1.0F + static_cast<float>(from));
    steps_[from].push_back(step.header.step);
  }
  void drain(Exchange& exchange) {
    while (const auto packet = exchange.receive()) (*this)(*packet);
  }
  std::size_t count(int from) const { return steps_.contains(from) ? steps_.at(from).size() : 0; }
  // That these came from a rank, each once and in order.
  void expect_first_steps(int from, std::size_t count) const {
    std::vector<std::uint64_t> wanted(count);
    std::iota(wanted.begin(), wanted.end(), 0);
    EXPECT_EQ(steps_.contains(from) ? steps_.at(from) : std::vector<std::uint64_t>(), wanted)
        << "from rank " << from;
  }

 private:
  std::map<int, std::vector<std::uint64_t>> steps_;
};

template <class Condition>
::testing::AssertionResult soon(Condition condition) {
  for (const auto end = Clock::now() + kLong; !condition();) {
    if (Clock::now() > end) return ::testing::AssertionFailure() << "not within the time";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return Seconds(Clock::now() - start).count();
}

TEST(MpiExchange, BringsEveryPacketOnceAndThoseOfARankInOrder) {
  constexpr std::size_t kSteps = 100;
  Exchange exchange = open();
  Ledger ledger;
  for (std::size_t step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(exchange.send(packet_of(step, step % 3 == 0 ? kLarge : kEager)));
    EXPECT_EQ(sum_over_ranks(1), size());
    ledger.drain(exchange);
  }
  EXPECT_TRUE(exchange.close([&](const Packet& packet) { ledger(packet); }, kLong));
  EXPECT_EQ(exchange.sent(), kSteps);
  EXPECT_EQ(exchange.dropped(), 0U);
  for (int from = 0; from < size(); ++from) {
    ledger.expect_first_steps(from, rank() == 0 ? kSteps : 0);
  }
}

class MpiExchangeOfSize : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Messages, MpiExchangeOfSize, ::testing::Values(kEager, kLarge));

// Small messages too: rank 0's memory is bounded only if those count that MPI has already taken.
TEST_P(MpiExchangeOfSize, DropsAndCountsWhatRank0DoesNotTake) {
  constexpr std::size_t kTooMany = 36;
  Exchange exchange = open();
  for (std::size_t i = 0; i < Exchange::kInFlight + kTooMany; ++i) {
    EXPECT_EQ(exchange.send(packet_of(i, GetParam())), i < Exchange::kInFlight);
  }
  EXPECT_EQ(exchange.sent(), Exchange::kInFlight);
  EXPECT_EQ(exchange.dropped(), kTooMany);
  all_meet();

  Ledger ledger;
  const auto room_again = [&] {
    ledger.drain(exchange);
    return exchange.send(packet_of(Exchange::kInFlight));
  };
  EXPECT_TRUE(soon(room_again));
  EXPECT_TRUE(exchange.close([&](const Packet& packet) { ledger(packet); }, kLong));
  for (int from = 0; from < size() && rank() == 0; ++from) {
    ledger.expect_first_steps(from, Exchange::kInFlight + 1);
  }
}

// A rank that calls nothing of MPI, with a long message half on its way, until rank 0 has heard all
// others.
TEST(MpiExchange, NobodyWaitsForASlowRank) {
  constexpr int kSlow = 2;
  constexpr std::size_t kSteps = 20;
  const int id = sum_over_ranks(rank() == 0 ? getpid() : 0);
  const auto signal =
      std::filesystem::temp_directory_path() / ("presum_mpi_test_" + std::to_string(id));
  Exchange exchange = open();
  Ledger ledger;
  for (std::size_t step = 0; step < kSteps; ++step) exchange.send(packet_of(step, kLarge));
  if (rank() == kSlow) {
    EXPECT_TRUE(soon([&] { return std::filesystem::exists(signal); }));
  } else if (rank() == 0) {
    EXPECT_TRUE(soon([&] {
      ledger.drain(exchange);
      return ledger.count(0) == kSteps && ledger.count(1) == kSteps && ledger.count(3) == kSteps;
    }));
    std::ofstream(signal).flush();
  }
  EXPECT_TRUE(exchange.close([&](const Packet& packet) { ledger(packet); }, kLong));
  if (rank() == 0) ledger.expect_first_steps(kSlow, kSteps);
  all_meet();
  std::filesystem::remove(signal);
}

TEST(MpiExchange, CostsPacketsAndNoTimeWhereRank0NeverPolls) {
  {
    Exchange exchange = open();
    for (std::size_t step = 0; step < 5; ++step) exchange.send(packet_of(step, kLarge));
    const auto close = [&] { return rank() != 0 && exchange.close({}, Seconds(0.2)); };
    EXPECT_LT(seconds_of([&] { EXPECT_FALSE(close()); }), 5);
    EXPECT_EQ(exchange.active(), rank() == 0);
  }
  EXPECT_EQ(sum_over_ranks(1), size());
}

TEST(MpiExchange, Rank0WaitsItsPatienceForARankThatNeverCloses) {
  Exchange exchange = open();
  Ledger ledger;
  exchange.send(packet_of(0));
  if (rank() == 0) {
    bool complete = true;
    const auto close = [&] { complete = exchange.close(std::ref(ledger), Seconds(0.3)); };
    const double seconds = seconds_of(close);
    EXPECT_FALSE(complete);
    EXPECT_GE(seconds, 0.3);
    EXPECT_LT(seconds, 5);
    for (int from = 0; from < size(); ++from) ledger.expect_first_steps(from, 1);
  } else if (rank() != 3) {
    EXPECT_TRUE(exchange.close({}, kLong));
  }
  all_meet();
}

TEST(MpiExchange, ARankMayEndLongBeforeTheOthers) {
  constexpr int kFirst = 3;
  Exchange exchange = open();
  Ledger ledger;
  exchange.send(packet_of(0));
  if (rank() == kFirst) {
    EXPECT_TRUE(exchange.close({}, kLong));
    EXPECT_FALSE(exchange.send(packet_of(1)));
  } else {
    EXPECT_TRUE(soon([&] {
      ledger.drain(exchange);
      return rank() != 0 || ledger.count(kFirst) == 1;
    }));
  }
  all_meet();
  for (std::size_t step = 1; step < 10 && rank() != kFirst; ++step) exchange.send(packet_of(step));
  EXPECT_TRUE(exchange.close(std::ref(ledger), kLong));
  for (int from = 0; from < size() && rank() == 0; ++from) {
    ledger.expect_first_steps(from, from == kFirst ? 1 : 10);
  }
}

TEST(MpiExchange, IsInactiveOnEveryRankWithoutAnAggregator) {
  // What other ranks pass does not count.
  Exchange exchange = open(rank() == 0 ? std::nullopt : std::optional(kAnnounced));
  EXPECT_FALSE(exchange.active());
  EXPECT_FALSE(exchange.send(packet_of(0)));
  EXPECT_EQ(exchange.dropped(), 1U);
  EXPECT_FALSE(exchange.receive());
  EXPECT_LT(seconds_of([&] { EXPECT_TRUE(exchange.close({}, kLong)); }), 5);
}

TEST(MpiExchange, KeepsOutOfTheProgramsMessages) {
  Exchange exchange = open();
  if (rank() != 0) exchange.send(packet_of(0));
  int word = 42;
  if (rank() == 1) MPI_Send(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  all_meet();
  Ledger ledger;
  if (rank() == 0) {
    MPI_Status status;
    MPI_Recv(&word, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    EXPECT_EQ(status.MPI_SOURCE, 1);
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    EXPECT_EQ(found, 0);
  }
  EXPECT_TRUE(exchange.close(std::ref(ledger), kLong));
  EXPECT_EQ(ledger.count(1), rank() == 0 ? 1U : 0U);
}

TEST(MpiExchange, SeveralStandBesideEachOther) {
  Exchange one = open();
  Exchange other = open();
  if (rank() == 1) one.send(packet_of(0));
  if (rank() == 2) other.send(packet_of(0));
  Ledger of_one;
  Ledger of_other;
  EXPECT_TRUE(one.close(std::ref(of_one), kLong));
  EXPECT_TRUE(other.close(std::ref(of_other), kLong));
  if (rank() != 0) return;
  of_one.expect_first_steps(1, 1);
  of_one.expect_first_steps(2, 0);
  of_other.expect_first_steps(1, 0);
  of_other.expect_first_steps(2, 1);
}

TEST(MpiExchange, WorksForARankAlone) {
  auto exchange = Exchange::create(MPI_COMM_SELF, kAnnounced);
  ASSERT_TRUE(exchange) << exchange.error().message;
  EXPECT_TRUE(exchange->send(packet_of(0)));
  int packets = 0;
  EXPECT_TRUE(exchange->close([&](const Packet&) { ++packets; }, kLong));
  EXPECT_EQ(packets, 1);
}

TEST(MpiExchange, RefusesWhatIsNoPacket) {
  Exchange exchange = open();
  EXPECT_FALSE(exchange.send({}));
  EXPECT_FALSE(exchange.send({std::vector<std::byte>(packet::kHeaderBytes - 1)}));
  EXPECT_FALSE(exchange.send({std::vector<std::byte>(packet::kBytesMax + 1)}));
  EXPECT_EQ(exchange.dropped(), 3U);
  EXPECT_TRUE(exchange.close({}, kLong));
}

TEST(MpiExchange, RefusesToBeginWithoutMpiOrACommunicator) {
  EXPECT_TRUE(refused_before_mpi);
  const auto exchange = Exchange::create(MPI_COMM_NULL, kAnnounced);
  ASSERT_FALSE(exchange);
  EXPECT_EQ(exchange.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace presum::mpi

int main(int argc, char** argv) {
  using presum::mpi::Exchange;
  ::testing::InitGoogleTest(&argc, argv);
  presum::mpi::refused_before_mpi = !Exchange::create(MPI_COMM_WORLD, std::nullopt);
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  const int result = presum::mpi::size() == 4 ? RUN_ALL_TESTS() : 1;
  MPI_Finalize();
  return result;
}
