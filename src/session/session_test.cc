// SPDX-License-Identifier: Apache-2.0
#include "presum/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <locale>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "presum/run_log.h"
#include "session/testing.h"
#include "step/steps.h"

namespace presum {
namespace {

using presum::testing::steps_in;

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kSteps = 60;
constexpr std::size_t kElements = 7;

using Transports = std::vector<std::unique_ptr<Transport>>;

// Carries a few packets, then throws.
class FailingTransport : public Transport {
 public:
  explicit FailingTransport(std::unique_ptr<Transport> way) : way_(std::move(way)) {}
  std::string announce(const std::string& own) override { return way_->announce(own); }
  bool send(Packet packet) override {
    count();
    return way_->send(std::move(packet));
  }
  std::optional<Packet> receive() override {
    count();
    return way_->receive();
  }

 private:
  void count() {
    if (++calls_ > 20) throw std::runtime_error("the line is cut");
  }
  std::unique_ptr<Transport> way_;
  int calls_ = 0;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest()
      : run_(std::filesystem::temp_directory_path() /
             ("presum_session_test_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(run_);
  }
  ~SessionTest() override { std::filesystem::remove_all(run_); }

  SessionOptions options(std::uint32_t rank = 0, std::uint32_t ranks = 1) const {
    return {.run = run_, .rank = rank, .world_size = ranks, .host = "here", .sketch_size = 64};
  }
  Session alone() const { return Session::create(options(), parameters(), nullptr); }
  // Two ranks in one thread.
  std::array<Session, 2> both(std::size_t room = 4096) const {
    Transports ways = thread_transports(2, room);
    Session first = Session::create(options(0, 2), parameters(), std::move(ways[0]));
    Session second = Session::create(options(1, 2), parameters(), std::move(ways[1]));
    return {std::move(first), std::move(second)};
  }
  static std::vector<Parameter> parameters() { return {{.name = "w", .elements = kElements}}; }

  static void step(Session& session, std::uint64_t step, float own) {
    const std::vector<float> gradient(kElements, own);
    session.begin_step(step);
    EXPECT_TRUE(session.gradient(0, gradient.data(), kElements, Dtype::kF32));
    EXPECT_TRUE(session.loss(own));
    if (session.wants_reduced_gradient()) {
      EXPECT_TRUE(session.reduced_gradient(0, gradient.data(), kElements, Dtype::kF32));
    }
  }
  static void train(Session& session, float own, std::uint64_t steps = kSteps) {
    for (std::uint64_t s = 0; s < steps; ++s) {
      step(session, s, own);
      EXPECT_TRUE(session.end_step());
    }
  }

  // Runs every rank in its own thread; `rank_of` uses its session.
  template <class Rank>
  void run_ranks(Transports transports, Rank rank_of) {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto session =
            Session::create(options(rank, kRanks), parameters(), std::move(transports[rank]));
        rank_of(rank, session);
      });
    }
  }

  std::filesystem::path run_;
};

TEST_F(SessionTest, RecordsRanksThatAreThreads) {
  run_ranks(thread_transports(kRanks), [](std::uint32_t rank, Session& session) {
    train(session, 1.0F + static_cast<float>(rank));
    EXPECT_TRUE(session.close(Seconds(20)));
  });
  const auto log = RunLog::open(run_);
  ASSERT_TRUE(log);
  const auto steps = steps_in(run_);
  ASSERT_EQ(steps.size(), kSteps);
  for (const StepRecord& record : steps) {
    ASSERT_EQ(record.workers.size(), kRanks);
    for (const WorkerRecord& worker : record.workers) {
      EXPECT_EQ(worker.loss, worker.rank + 1);
      EXPECT_EQ(worker.optimizer_step, record.step + 1);
      EXPECT_EQ(!std::isnan(worker.reduced_norm), record.step % 25 == 0);
    }
  }
  EXPECT_EQ(log->segments()->front().incomplete, "");
}

TEST_F(SessionTest, CountsWhatTheTransportDrops) {
  auto [first, second] = both(2);
  train(second, 1, 5);  // there is room for the hello and one step
  train(first, 1, 5);
  for (Session* session : {&second, &first}) {
    step(*session, 5, 1);
    EXPECT_TRUE(session->end_step());
  }
  EXPECT_TRUE(second.close());
  EXPECT_TRUE(first.close());
  const auto steps = steps_in(run_);
  ASSERT_EQ(steps.size(), 6U);
  ASSERT_EQ(steps.back().workers.size(), 2U);
  EXPECT_EQ(steps.back().workers[0].dropped, 0U);
  EXPECT_EQ(steps.back().workers[1].dropped, 4U);
}

TEST_F(SessionTest, ATransportThatThrowsEndsTheOthersAndRank0GoesOn) {
  Transports ways = thread_transports(kRanks);
  for (auto& way : ways) way = std::make_unique<FailingTransport>(std::move(way));
  run_ranks(std::move(ways), [](std::uint32_t rank, Session& session) {
    std::vector<std::string> told;
    for (std::uint64_t s = 0; s < kSteps; ++s) {
      step(session, s, 1);
      if (const Status done = session.end_step(); !done) told.push_back(done.error().message);
    }
    EXPECT_EQ(session.active(), rank == 0);
    EXPECT_EQ(told, std::vector<std::string>{"the transport of packets failed (the line is cut)"});
    ASSERT_FALSE(session.status());
    EXPECT_EQ(session.status().error().message, told.front());
    EXPECT_TRUE(session.close());
  });
  const auto log = RunLog::open(run_);
  EXPECT_EQ(log->steps()->size(), kSteps);
  EXPECT_NE(log->segments()->front().incomplete.find("the line is cut"), std::string::npos);
}

// ---- the end

TEST_F(SessionTest, ARankThatNeverSaysGoodbyeIsTold) {
  auto [first, second] = both();
  train(second, 1, 5);
  train(first, 1, 5);
  const Status closed = first.close(Seconds(0.2));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().message, "not all of 2 ranks said goodbye");
  const auto log = RunLog::open(run_);
  EXPECT_EQ(log->segments()->front().incomplete, closed.error().message);
  EXPECT_TRUE(log->segments()->front().closed);
  EXPECT_EQ(log->steps()->size(), 5U);
}

TEST_F(SessionTest, AGoodbyeFindsRoomWhereNoStepDoes) {
  auto [first, second] = both(3);
  train(second, 1, 10);
  EXPECT_TRUE(second.close());
  train(first, 1, 10);
  EXPECT_TRUE(first.close(Seconds(20)));
  EXPECT_EQ(RunLog::open(run_)->segments()->front().incomplete, "");
}

TEST_F(SessionTest, AnyPatienceIsAPatience) {
  for (const double patience :
       {1e300, static_cast<double>(INFINITY), 0.0, -1.0, static_cast<double>(NAN)}) {
    auto ranks = both();
    std::jthread late([&second = ranks[1]] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_TRUE(second.close());
    });
    EXPECT_EQ(static_cast<bool>(ranks[0].close(Seconds(patience))), patience > 0) << patience;
    late.join();
    std::filesystem::remove_all(run_);
  }
}

// Delivers the same packet endlessly.
class EndlessTransport : public Transport {
 public:
  explicit EndlessTransport(Packet packet) : packet_(std::move(packet)) {}
  std::string announce(const std::string& own) override { return own; }
  bool send(Packet /*packet*/) override { return true; }
  std::optional<Packet> receive() override { return packet_; }

 private:
  Packet packet_;
};

TEST_F(SessionTest, RanksThatSendWithoutEndDoNotKeepRank0) {
  const auto other =
      step::Steps::create({.identity = {.replica = 1, .rank = 1, .replicas = 2}}, {}, {});
  Session session = Session::create(options(0, 2), parameters(),
                                    std::make_unique<EndlessTransport>(other->hello()));
  train(session, 1, 5);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(session.close(Seconds(0.2)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, Seconds(10));
}

TEST_F(SessionTest, NobodyWaitsForARank0ThatIsGone) {
  Transports ways = thread_transports(2);
  ways[0].reset();
  const Session session = Session::create(options(1, 2), parameters(), std::move(ways[1]));
  EXPECT_FALSE(session.active());
  EXPECT_FALSE(session.status());
}

// A locale with a space as the thousands separator.
class Grouping : public std::numpunct<char> {
  char do_thousands_sep() const override { return ' '; }
  std::string do_grouping() const override { return "\3"; }
};

TEST_F(SessionTest, RecordsUnderAnyLocale) {
  const std::locale before =
      std::locale::global(std::locale(std::locale(), new Grouping));  // NOLINT: the locale owns it
  run_ranks(thread_transports(kRanks), [](std::uint32_t, Session& session) {
    train(session, 1, 5);
    EXPECT_TRUE(session.close(Seconds(20)));
  });
  std::locale::global(before);
  EXPECT_EQ(steps_in(run_).size(), 5U);
}

// ---- misuse

TEST_F(SessionTest, AStepThatWasNotBegunIsRefusedAndEndsNothing) {
  Session session = alone();
  EXPECT_FALSE(session.end_step());
  train(session, 1, 2);
  const Status twice = session.end_step();
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(session.active());
  step(session, 2, 1);
  EXPECT_TRUE(session.end_step());
  EXPECT_TRUE(session.close());
  EXPECT_EQ(steps_in(run_).size(), 3U);
}

TEST_F(SessionTest, StepsThatGoBackwardsEndTheRecord) {
  Session session = alone();
  train(session, 1, 3);
  step(session, 0, NAN);
  const Status told = session.end_step();
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().message, "step 0 was begun after step 2: number steps on");
  EXPECT_TRUE(session.close());
  const auto segment = RunLog::open(run_)->segments()->front();
  EXPECT_EQ(segment.incomplete, told.error().message);
}

TEST_F(SessionTest, BadValuesAreRefusedAndTheStepIsNotRecorded) {
  Session session = alone();
  const std::vector<double> values(kElements + 1, 1);
  session.begin_step(0);
  EXPECT_FALSE(session.gradient(0, values.data(), kElements + 1, Dtype::kF64));
  EXPECT_FALSE(session.gradient(0, values.data(), kElements, Dtype{99}));
  EXPECT_FALSE(session.reduced_gradient(0, values.data(), kElements - 1, Dtype::kF64));
  EXPECT_FALSE(session.loss(1, -1));
  EXPECT_FALSE(session.loss(1, INFINITY));
  EXPECT_FALSE(session.loss(1, NAN));
  std::uint64_t next = 1;
  for (const double scale : {0.0, -1.0, static_cast<double>(NAN)}) {
    EXPECT_FALSE(session.end_step({.gradient_scale = scale}));
    step(session, next++, 1);
  }
  EXPECT_TRUE(session.end_step());
  EXPECT_TRUE(session.close());
  EXPECT_EQ(steps_in(run_).size(), 1U);
}

TEST_F(SessionTest, AMovedOneIsInactive) {
  Session session = alone();
  Session other = std::move(session);
  EXPECT_FALSE(session.active());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(session.status());
  train(session, 1, 2);
  EXPECT_TRUE(session.close());
  train(other, 1, 2);
  EXPECT_TRUE(other.close());
}

TEST_F(SessionTest, TellsWhatElseThereIs) {
  Session session = alone();
  session.fact("git", "abc");
  session.begin_step(0);
  session.begin_states();
  const std::vector<float> values(kElements, 1);
  EXPECT_TRUE(session.state(StateHash::Kind::kParameters, 0, values.data(), kElements, 4));
  EXPECT_FALSE(session.state(StateHash::Kind::kParameters, 9, values.data(), kElements, 4));
  session.fingerprint(static_cast<std::uint32_t>(FingerprintKind::kSamplerSeed), 5);
  session.samples(std::vector<std::uint64_t>{1, 2});
  session.indices(std::vector<std::uint64_t>{3, 4});
  EXPECT_TRUE(session.end_step());
  EXPECT_TRUE(session.close());
  const auto facts = RunLog::open(run_)->facts();
  EXPECT_TRUE(std::ranges::any_of(*facts, [](const Fact& f) { return f.value == "abc"; }));
  const auto steps = steps_in(run_);
  EXPECT_EQ(steps.at(0).workers.at(0).states.size(), 1U);
  EXPECT_EQ(steps.at(0).workers.at(0).fingerprints.size(), 1U);
}

TEST_F(SessionTest, NobodyRecordsWhereRank0CannotWrite) {
  Transports ways = thread_transports(2);
  const auto in_a_file = [&](std::uint32_t rank) {
    auto all = options(rank, 2);
    all.run = "/dev/null/run";
    return all;
  };
  std::jthread other([&] {
    auto session = Session::create(in_a_file(1), parameters(), std::move(ways[1]));
    EXPECT_TRUE(session.status());
    EXPECT_FALSE(session.active());
    train(session, 1);
    EXPECT_TRUE(session.close());
  });
  auto session = Session::create(in_a_file(0), parameters(), std::move(ways[0]));
  EXPECT_FALSE(session.status());
  EXPECT_EQ(session.aggregator(), nullptr);
  train(session, 1);
}

TEST_F(SessionTest, ARankAloneNeedsNoTransport) {
  Session session = alone();
  ASSERT_TRUE(session.status());
  train(session, 1);
  const float nothing = 0;
  EXPECT_FALSE(session.gradient(1, &nothing, 1, Dtype::kF32)) << "an unknown parameter";
  EXPECT_TRUE(session.active());
  EXPECT_TRUE(session.close());
  EXPECT_FALSE(session.active());
  EXPECT_TRUE(session.close()) << "nothing is left to do";
  ASSERT_NE(session.aggregator(), nullptr);
  EXPECT_TRUE(session.aggregator()->findings().empty());
}

TEST_F(SessionTest, ADefaultOneDoesNothing) {
  Session session;
  EXPECT_TRUE(session.status());
  EXPECT_FALSE(session.active());
  train(session, 1, 2);
  EXPECT_TRUE(session.close());
  EXPECT_EQ(session.aggregator(), nullptr);
}

TEST_F(SessionTest, StepsAndOptimizerStepsAreThoseOfTheProgram) {
  Session session = alone();
  step(session, 7, 1);
  EXPECT_TRUE(session.end_step({.optimizer_step = 3, .micro_batches = 2}));
  step(session, 8, 1);
  EXPECT_TRUE(session.end_step());
  EXPECT_TRUE(session.close());
  const auto steps = steps_in(run_);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps.at(0).workers[0].optimizer_step, 3U);
  EXPECT_EQ(steps.at(1).workers[0].optimizer_step, 9U);
}

TEST_F(SessionTest, BadOptionsAreAStatus) {
  for (const auto& [bad, parameters] :
       std::vector<std::pair<SessionOptions, std::vector<Parameter>>>{
           {options(1, 1), {}},
           {options(0, 2), {}},
           {options(1, 2), {}},
           {options(), {{.name = "w", .elements = 1}, {.name = "w", .elements = 1}}}}) {
    Session session = Session::create(bad, parameters, nullptr);
    ASSERT_FALSE(session.status());
    EXPECT_EQ(session.status().error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(session.active());
    train(session, 1, 2);
    EXPECT_TRUE(session.close());
  }
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(SessionTest, ARunLogThatBreaksIsToldOnce) {
  Session session = alone();
  train(session, 1, 3);
  std::filesystem::remove_all(run_);
  Status told;
  for (std::uint64_t s = 3; s < 200 && told; ++s) {
    step(session, s, 1);
    told = session.end_step();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_FALSE(told);
  EXPECT_FALSE(session.active());
  EXPECT_EQ(session.status().error().message, told.error().message);
  EXPECT_TRUE(session.end_step());
  EXPECT_TRUE(session.close());
}

}  // namespace
}  // namespace presum
