// SPDX-License-Identifier: Apache-2.0
#include "mpi/exchange.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "mpi/testing.h"
#include "packet/packet.h"

namespace presum::mpi {
namespace {

using Clock = std::chrono::steady_clock;

const std::string kAnnounced = "81985529216486895 3";
constexpr Seconds kLong{20};
constexpr std::size_t kEager = 64;  // floats: a message that MPI may send eagerly
// floats: a message that needs its receiver and its sender's progress
constexpr std::size_t kLarge = 65'536;

// What the observed program does at each step.
int sum_over_ranks(int value) {
  int sum = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

void all_meet() { MPI_Barrier(MPI_COMM_WORLD); }

// This rank's exchange, after all ranks have met.
std::unique_ptr<Exchange> open() {
  auto exchange = std::make_unique<Exchange>(MPI_COMM_WORLD);
  EXPECT_EQ(exchange->announce(rank() == 0 ? kAnnounced : ""), kAnnounced);
  return exchange;
}

Packet packet_of(std::uint64_t step, std::size_t floats = kEager) {
  packet::Step message;
  message.header.step = step;
  message.header.identity.rank = static_cast<std::uint32_t>(rank());
  message.sketch.assign(floats, 1.0F + static_cast<float>(rank()));
  return packet::encode(message);
}

// The packets that rank 0 received, decoded.
class Ledger {
 public:
  void take(const Packet& bytes) {
    const auto message = packet::decode(bytes.bytes);
    ASSERT_TRUE(message) << message.error().message;
    const auto& step = std::get<packet::Step>(*message);
    const auto from = static_cast<int>(step.header.identity.rank);
    EXPECT_EQ(step.sketch.back(), 1.0F + static_cast<float>(from));
    steps_[from].push_back(step.header.step);
  }
  void drain(Exchange& exchange) {
    while (const auto packet = exchange.receive()) take(*packet);
  }
  std::size_t count(int from) const { return steps_.contains(from) ? steps_.at(from).size() : 0; }
  // Checks that these steps of a rank arrived, each once and in order.
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

// Rank 0 receives until it has `wanted` of each rank; the others flush meanwhile.
void bring(Exchange& exchange, Ledger& ledger, std::size_t wanted) {
  if (rank() != 0) return exchange.flush(kLong);
  EXPECT_TRUE(soon([&] {
    ledger.drain(exchange);
    bool all = true;
    for (int from = 1; from < size(); ++from) all = all && ledger.count(from) >= wanted;
    return all;
  }));
}

void expect_first_steps(const Ledger& ledger, std::size_t count) {
  for (int from = 1; from < size() && rank() == 0; ++from) ledger.expect_first_steps(from, count);
}

TEST(MpiExchange, BringsEveryPacketOnceAndThoseOfARankInOrder) {
  constexpr std::size_t kSteps = 100;
  const auto exchange = open();
  Ledger ledger;
  std::size_t sent = 0;
  for (std::size_t step = 0; step < kSteps; ++step) {
    sent += rank() != 0 && exchange->send(packet_of(step, step % 3 == 0 ? kLarge : kEager));
    EXPECT_EQ(sum_over_ranks(1), size());
    if (rank() == 0) ledger.drain(*exchange);
  }
  bring(*exchange, ledger, kSteps);
  EXPECT_EQ(sent, rank() == 0 ? 0 : kSteps);
  expect_first_steps(ledger, kSteps);
  all_meet();
}

class MpiExchangeOfSize : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Messages, MpiExchangeOfSize, ::testing::Values(kEager, kLarge));

// Small messages count too: rank 0's memory is bounded only if messages that MPI has already
// accepted count as in flight.
TEST_P(MpiExchangeOfSize, DropsWhatRank0DoesNotTake) {
  const auto exchange = open();
  for (std::size_t i = 0; i < Exchange::kInFlight + 36 && rank() != 0; ++i) {
    EXPECT_EQ(exchange->send(packet_of(i, GetParam())), i < Exchange::kInFlight);
  }
  all_meet();
  Ledger ledger;
  if (rank() != 0) {
    EXPECT_TRUE(soon([&] { return exchange->send(packet_of(Exchange::kInFlight)); }));
  }
  bring(*exchange, ledger, Exchange::kInFlight + 1);
  expect_first_steps(ledger, Exchange::kInFlight + 1);
  all_meet();
}

// A rank that makes no MPI call, with a long message half sent, until rank 0 has heard from all
// others.
TEST(MpiExchange, NobodyWaitsForASlowRank) {
  constexpr int kSlow = 2;
  constexpr std::size_t kSteps = 20;
  const int id = sum_over_ranks(rank() == 0 ? getpid() : 0);
  const auto signal =
      std::filesystem::temp_directory_path() / ("presum_mpi_test_" + std::to_string(id));
  const auto exchange = open();
  Ledger ledger;
  for (std::size_t step = 0; step < kSteps && rank() != 0; ++step) {
    exchange->send(packet_of(step, kLarge));
  }
  if (rank() == kSlow) {
    EXPECT_TRUE(soon([&] { return std::filesystem::exists(signal); }));
  } else if (rank() == 0) {
    EXPECT_TRUE(soon([&] {
      ledger.drain(*exchange);
      return ledger.count(1) == kSteps && ledger.count(3) == kSteps;
    }));
    std::ofstream(signal).flush();
  }
  bring(*exchange, ledger, kSteps);
  expect_first_steps(ledger, kSteps);
  all_meet();
  std::filesystem::remove(signal);
}

TEST(MpiExchange, CostsPacketsAndNoTimeWhereRank0NeverPolls) {
  {
    const auto exchange = open();
    for (std::size_t step = 0; step < 5 && rank() != 0; ++step) {
      exchange->send(packet_of(step, kLarge));
    }
    const double seconds = seconds_of([&] { exchange->flush(Seconds(0.2)); });
    EXPECT_LT(seconds, 5);
    EXPECT_GE(seconds, rank() == 0 ? 0 : 0.2);
  }
  EXPECT_EQ(sum_over_ranks(1), size());
}

TEST(MpiExchange, TellsAllRanksThatRank0CannotRecord) {
  Exchange exchange(MPI_COMM_WORLD);
  // The arguments of other ranks are ignored.
  EXPECT_EQ(exchange.announce(rank() == 0 ? "" : kAnnounced), "");
}

TEST(MpiExchange, KeepsOutOfTheProgramsMessages) {
  const auto exchange = open();
  if (rank() != 0) exchange->send(packet_of(0));
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
  bring(*exchange, ledger, 1);
  expect_first_steps(ledger, 1);
  all_meet();
}

TEST(MpiExchange, SeveralStandBesideEachOther) {
  const auto one = open();
  const auto other = open();
  if (rank() == 1) one->send(packet_of(0));
  if (rank() == 2) other->send(packet_of(0));
  Ledger of_one;
  Ledger of_other;
  if (rank() == 0) {
    EXPECT_TRUE(soon([&] {
      of_one.drain(*one);
      of_other.drain(*other);
      return of_one.count(1) == 1 && of_other.count(2) == 1;
    }));
    of_one.expect_first_steps(2, 0);
    of_other.expect_first_steps(1, 0);
  }
  one->flush(kLong);
  other->flush(kLong);
  all_meet();
}

TEST(MpiExchange, RefusesWhatIsNoPacket) {
  const auto exchange = open();
  if (rank() == 0) return;
  EXPECT_FALSE(exchange->send({}));
  EXPECT_FALSE(exchange->send({std::vector<std::byte>(packet::kHeaderBytes - 1)}));
  EXPECT_FALSE(exchange->send({std::vector<std::byte>(packet::kBytesMax + 1)}));
}

}  // namespace
}  // namespace presum::mpi
