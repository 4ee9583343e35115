// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/hash.h"
#include "observe/gradient_pass.h"
#include "packet/packet.h"

namespace presum {
namespace {

using Values = std::vector<float>;

// Multiples of 1/8 up to 8: sums of them and of their squares are exact.
Values exact_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values out(count);
  for (float& x : out) x = (static_cast<float>(random() % 129) - 64) / 8;
  return out;
}

double sum_squares(const Values& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

float max_abs(const Values& values) {
  float max = 0;
  for (const float x : values) max = std::max(max, std::abs(x));
  return max;
}

Observer make_observer(std::vector<Parameter> parameters, std::uint32_t sketch_size = 256) {
  auto observer = Observer::create({.sketch_size = sketch_size}, std::move(parameters));
  EXPECT_TRUE(observer) << observer.error().message;
  return std::move(*observer);
}

void report(Observer& observer, ParameterId id, const Values& values) {
  ASSERT_TRUE(observer.gradient(id, values.data(), values.size(), Dtype::kF32));
}

packet::Step end(Observer& observer, const StepEnd& how = {}) {
  const auto message = packet::decode(observer.end_step(how).bytes);
  EXPECT_TRUE(message) << message.error().message;
  return std::get<packet::Step>(*message);
}

packet::Step one_step(Observer& observer, std::uint64_t step,
                      const std::vector<Values>& gradients) {
  observer.begin_step(step);
  for (ParameterId id = 0; id < gradients.size(); ++id) report(observer, id, gradients[id]);
  return end(observer);
}

const packet::Group& group(const packet::Step& step, std::string_view name) {
  for (const packet::Group& g : step.groups) {
    if (g.id == name_hash(name)) return g;
  }
  ADD_FAILURE() << "no group " << name;
  return step.groups.front();
}

std::vector<std::uint64_t> random_hashes(std::size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::uint64_t> out(count);
  for (auto& hash : out) hash = random();
  return out;
}

// ---- errors

TEST(Observer, RefusesBadSketchSizes) {
  for (const std::uint32_t size : {1U, 32U, 63U, 65U, 1000U, 131'072U}) {
    const auto observer = Observer::create({.sketch_size = size}, {{"w", 1, ""}});
    ASSERT_FALSE(observer) << size;
    EXPECT_EQ(observer.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(observer.error().message.find(std::to_string(size)), std::string::npos);
  }
  for (const std::uint32_t size : {0U, 64U, 65'536U}) {
    EXPECT_TRUE(Observer::create({.sketch_size = size}, {{"w", 1, ""}})) << size;
  }
}

TEST(Observer, RefusesAReplicaOutsideTheWorld) {
  const auto observer = Observer::create({.identity = {.replica = 2, .replicas = 2}}, {});
  ASSERT_FALSE(observer);
  EXPECT_EQ(observer.error().code, ErrorCode::kInvalidArgument);
}

TEST(Observer, RefusesTwoParametersOfOneCanonicalName) {
  const auto observer = Observer::create({}, {{"module.a.w", 1, ""}, {"a._orig_mod.w", 1, ""}});
  ASSERT_FALSE(observer);
  EXPECT_EQ(observer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(observer.error().message.find("a.w"), std::string::npos);
}

TEST(Observer, RefusesUnknownParametersAndNullData) {
  Observer observer = make_observer({{"w", 4, ""}});
  observer.begin_step(0);
  const Values buffer = {1, 2, 3, 4};
  for (const auto& status : {observer.gradient(1, buffer.data(), 4, Dtype::kF32),
                             observer.gradient(0, nullptr, 4, Dtype::kF32),
                             observer.reduced_gradient(1, buffer.data(), 4, Dtype::kF32),
                             observer.reduced_gradient(0, nullptr, 4, Dtype::kF32)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  const packet::Step step = end(observer);
  EXPECT_EQ(step.total.sum_squares, 0);
  EXPECT_FALSE(step.reduced);
}

// ---- sums

TEST(Observer, SumsPerGroupAndTotalAreThoseOfFloat64) {
  const Values a = exact_values(1003, 1);
  const Values b = exact_values(517, 2);
  const Values c = exact_values(64, 3);
  Observer observer =
      make_observer({{"layers.0.w", 1003, ""}, {"layers.0.b", 517, ""}, {"head.w", 64, ""}});
  const packet::Step step = one_step(observer, 5, {a, b, c});
  EXPECT_EQ(step.header.step, 5U);
  EXPECT_EQ(step.elements, 1003U + 517U + 64U);
  EXPECT_EQ(step.total.sum_squares, sum_squares(a) + sum_squares(b) + sum_squares(c));
  EXPECT_EQ(step.total.max_abs, std::max({max_abs(a), max_abs(b), max_abs(c)}));
  ASSERT_EQ(step.groups.size(), 2U);
  EXPECT_EQ(group(step, "layers.0").sums.sum_squares, sum_squares(a) + sum_squares(b));
  EXPECT_EQ(group(step, "layers.0").sums.max_abs, std::max(max_abs(a), max_abs(b)));
  EXPECT_EQ(group(step, "head.w").sums.sum_squares, sum_squares(c));
  EXPECT_EQ(step.total.nonfinite, 0U);
}

TEST(Observer, NonfiniteElementsAreCountedAndKeptOutOfTheMaximum) {
  Observer observer = make_observer({{"a.0.w", 4, ""}, {"a.1.w", 4, ""}});
  const packet::Step step = one_step(observer, 0, {{1, NAN, -INFINITY, 2}, {1, -3, 0, 2}});
  EXPECT_EQ(step.total.nonfinite, 2U);
  EXPECT_TRUE(std::isnan(step.total.sum_squares));
  EXPECT_EQ(step.total.max_abs, 3);
  EXPECT_EQ(group(step, "a.0").sums.nonfinite, 2U);
  EXPECT_EQ(group(step, "a.1").sums.sum_squares, 14);
}

TEST(Observer, EmptyParametersCountAsZero) {
  Observer observer = make_observer({{"w", 0, ""}, {"v", 2, ""}});
  observer.begin_step(0);
  ASSERT_TRUE(observer.gradient(0, nullptr, 0, Dtype::kF32));
  report(observer, 1, {3, 4});
  const packet::Step step = end(observer);
  EXPECT_EQ(step.total.sum_squares, 25);
  EXPECT_EQ(step.elements, 2U);
  EXPECT_EQ(step.sketch.size(), 256U);
}

TEST(Observer, GradientScaleDividesNormsAndMaxima) {
  Observer observer = make_observer({{"w", 3, ""}});
  observer.begin_step(0);
  report(observer, 0, {512, -1024, 2048});
  const Values reduced = {256, 0, 0};
  ASSERT_TRUE(observer.reduced_gradient(0, reduced.data(), 3, Dtype::kF32));
  const packet::Step step = end(observer, {.gradient_scale = 256});
  EXPECT_EQ(step.total.sum_squares, 4 + 16 + 64);
  EXPECT_EQ(step.total.max_abs, 8);
  EXPECT_EQ(step.groups.at(0).sums.sum_squares, 84);
  ASSERT_TRUE(step.reduced);
  EXPECT_EQ(step.reduced->sum_squares, 1);
  EXPECT_EQ(step.gradient_scale, 256);
}

TEST(Observer, ReducedGradientIsReportedOnlyWhereItWasGiven) {
  Observer observer = make_observer({{"w", 2, ""}});
  observer.begin_step(0);
  const Values buffer = {3, 4};
  ASSERT_TRUE(observer.reduced_gradient(0, buffer.data(), 2, Dtype::kF32));
  const packet::Step with = end(observer);
  ASSERT_TRUE(with.reduced);
  EXPECT_EQ(with.reduced->sum_squares, 25);
  EXPECT_NE(with.reduced->fingerprint, 0U);
  EXPECT_EQ(with.total.sum_squares, 0);
  observer.begin_step(1);
  EXPECT_FALSE(end(observer).reduced);
}

TEST(Observer, PassesOnEverythingElseOfTheStep) {
  Observer observer = make_observer({{"w", 1, ""}});
  observer.begin_step(9);
  observer.loss(0.5, 2, 77);
  observer.loss(NAN);
  observer.fingerprint(4, 0xF00D);
  const packet::Step step =
      end(observer,
          {.optimizer_step = 6, .micro_batches = 2, .skipped_parameters = 3, .gradient_scale = 1});
  ASSERT_EQ(step.micro.size(), 2U);
  EXPECT_EQ(step.micro[0].loss, 0.5);
  EXPECT_EQ(step.micro[0].weight, 2);
  EXPECT_EQ(step.micro[0].tokens, 77U);
  EXPECT_TRUE(std::isnan(step.micro[1].loss));
  ASSERT_EQ(step.fingerprints.size(), 1U);
  EXPECT_EQ(step.fingerprints[0].value, 0xF00DU);
  EXPECT_EQ(step.optimizer_step, 6U);
  EXPECT_EQ(step.micro_batches, 2U);
  EXPECT_EQ(step.skipped_parameters, 3U);
}

TEST(Observer, BeginStepForgetsTheStepBefore) {
  Observer observer = make_observer({{"w", 2, ""}, {"v", 2, ""}});
  observer.begin_step(0);
  report(observer, 0, {3, 4});
  observer.loss(1);
  observer.fingerprint(1, 1);
  end(observer);
  const packet::Step step = one_step(observer, 1, {});
  EXPECT_EQ(step.total.sum_squares, 0);
  EXPECT_EQ(step.elements, 0U);
  EXPECT_TRUE(step.micro.empty());
  EXPECT_TRUE(step.fingerprints.empty());
  EXPECT_EQ(step.sketch, std::vector<float>(256, 0.0F));
}

TEST(Observer, ASecondReportReplacesTheFirstWhoseStepHasNoSketch) {
  const Values first = exact_values(700, 6);
  const Values last = exact_values(700, 7);
  const Values other = exact_values(500, 8);
  const std::vector<Parameter> parameters = {{"a.w", 700, ""}, {"b.w", 500, ""}};
  Observer twice = make_observer(parameters);
  Observer once = make_observer(parameters);
  for (std::uint64_t s = 0; s < 4; ++s) {
    twice.begin_step(s);
    report(twice, 0, first);
    report(twice, 1, other);
    report(twice, 0, last);
    const packet::Step step = end(twice);
    const packet::Step want = one_step(once, s, {last, other});
    EXPECT_EQ(step.total.sum_squares, want.total.sum_squares);
    EXPECT_EQ(step.total.fingerprint, want.total.fingerprint);
    EXPECT_EQ(step.sketch, s == 0 ? std::vector<float>() : want.sketch) << "step " << s;
  }
  // A later step without that parameter must not hold its old sketch.
  twice.begin_step(4);
  report(twice, 1, other);
  once.begin_step(4);
  report(once, 1, other);
  EXPECT_EQ(end(twice).sketch, end(once).sketch);
}

// ---- sketches

TEST(Observer, WrappersDoNotChangeTheSketch) {
  const Values values = exact_values(5000, 12);
  Observer bare = make_observer({{"layers.0.w", 5000, ""}});
  Observer wrapped = make_observer({{"module._orig_mod.layers.0.w", 5000, ""}});
  EXPECT_EQ(one_step(bare, 1, {values}).sketch, one_step(wrapped, 1, {values}).sketch);
}

TEST(Observer, TheOrderOfReportsDoesNotMatter) {
  const Values a = exact_values(900, 13);
  const Values b = exact_values(900, 14);
  Observer observer = make_observer({{"a", 900, ""}, {"b", 900, ""}});
  const packet::Step forward = one_step(observer, 1, {a, b});
  observer.begin_step(1);
  report(observer, 1, b);
  report(observer, 0, a);
  const packet::Step backward = end(observer);
  EXPECT_EQ(forward.sketch, backward.sketch);
  EXPECT_EQ(forward.total.fingerprint, backward.total.fingerprint);
  observer.begin_step(1);
  report(observer, 0, b);
  report(observer, 1, a);
  EXPECT_NE(end(observer).total.fingerprint, forward.total.fingerprint);
}

TEST(Observer, SketchSizeZeroTurnsItOff) {
  Observer observer = make_observer({{"w", 3, ""}}, 0);
  const packet::Step step = one_step(observer, 0, {{1, 2, 2}});
  EXPECT_TRUE(step.sketch.empty());
  EXPECT_EQ(step.total.sum_squares, 9);
}

// ---- packets

TEST(Observer, HelloNamesTheWorkerAndItsGroups) {
  const auto observer = Observer::create(
      {.identity = {.module = 1, .replica = 2, .shard = 3, .rank = 9, .replicas = 4},
       .host = "node-1",
       .facts = {{"torch", "2.13.0"}}},
      {{"module.layers.0.w", 10, ""}, {"layers.0.b", 5, ""}, {"x", 7, "mine"}});
  ASSERT_TRUE(observer);
  const auto message = packet::decode(observer->hello().bytes);
  ASSERT_TRUE(message);
  const auto& hello = std::get<packet::Hello>(*message);
  EXPECT_EQ(hello.header.identity.rank, 9U);
  EXPECT_EQ(hello.header.identity.shard, 3U);
  EXPECT_EQ(hello.facts.host, "node-1");
  ASSERT_EQ(hello.facts.facts.size(), 1U);
  EXPECT_EQ(hello.facts.facts[0].second, "2.13.0");
  ASSERT_EQ(hello.facts.groups.size(), 2U);
  EXPECT_EQ(hello.facts.groups[0].name, "layers.0");
  EXPECT_EQ(hello.facts.groups[0].elements, 15U);
  EXPECT_EQ(hello.facts.groups[0].id, name_hash("layers.0"));
  EXPECT_EQ(hello.facts.groups[1].name, "mine");
}

// ---- states: what parameters and buffers were before the step

packet::Note goodbye_of(const Observer& observer, std::uint64_t clock = 0) {
  const auto message = packet::decode(observer.goodbye(clock).bytes);
  EXPECT_TRUE(message) << message.error().message;
  return std::get<packet::Note>(*message);
}

// The fingerprint of float32 values that were handed in as a gradient.
std::uint64_t fingerprint_of(const Values& values) {
  return observe::gradient_pass(values.data(), values.size(), Dtype::kF32, {}).fingerprint;
}

void report_state(Observer& observer, StateHash::Kind kind, std::uint32_t index,
                  const Values& values) {
  ASSERT_TRUE(observer.state(kind, index, values.data(), values.size(), 4));
}

constexpr auto kParameters = StateHash::Kind::kParameters;
constexpr auto kBuffers = StateHash::Kind::kBuffers;

Observer stateful_observer() {
  auto observer = Observer::create(
      {.sketch_size = 0, .buffers = {{"module.layers.0.running_mean", 2, ""}, {"frozen.w", 2, ""}}},
      {{"layers.0.w", 3, ""}, {"layers.0.b", 3, ""}, {"head.w", 3, ""}});
  EXPECT_TRUE(observer);
  return std::move(*observer);
}

TEST(ObserverStates, AreSummedByGroupAndKind) {
  Observer observer = stateful_observer();
  observer.begin_states();
  report_state(observer, kParameters, 0, {1, 2, 3});
  report_state(observer, kParameters, 1, {4, 5, 6});
  report_state(observer, kParameters, 2, {7, 8, 9});
  report_state(observer, kBuffers, 0, {1, 2});
  report_state(observer, kBuffers, 1, {3, 4});
  observer.begin_step(0);
  const auto states = end(observer).states;
  ASSERT_EQ(states.size(), 4U) << "one a group and kind";
  const auto of = [](const char* name, const Values& values) {
    return mix64(fingerprint_of(values) ^ name_hash(name));
  };
  EXPECT_EQ(states[0].group, name_hash("layers.0"));
  EXPECT_EQ(states[0].kind, kParameters);
  EXPECT_EQ(states[0].value, of("layers.0.w", {1, 2, 3}) + of("layers.0.b", {4, 5, 6}));
  EXPECT_EQ(states[1].group, name_hash("head.w"));
  EXPECT_EQ(states[1].value, of("head.w", {7, 8, 9}));
  EXPECT_EQ(states[2].group, name_hash("layers.0"));
  EXPECT_EQ(states[2].kind, kBuffers);
  EXPECT_EQ(states[2].value, of("layers.0.running_mean", {1, 2}));
  EXPECT_EQ(states[3].group, name_hash("frozen.w"));
  EXPECT_EQ(states[3].kind, kBuffers);
}

TEST(ObserverStates, SurviveBeginStepButNotEndStep) {
  Observer observer = stateful_observer();
  observer.begin_states();
  report_state(observer, kParameters, 0, {1, 2, 3});
  observer.begin_step(0);
  EXPECT_EQ(end(observer).states.size(), 1U);
  observer.begin_step(1);
  EXPECT_TRUE(end(observer).states.empty());
}

TEST(ObserverStates, OfAForwardPassThatIsDoneAgainReplaceTheFirst) {
  Observer observer = stateful_observer();
  observer.begin_states();
  report_state(observer, kParameters, 0, {1, 2, 3});
  report_state(observer, kParameters, 2, {1, 2, 3});
  observer.begin_states();
  report_state(observer, kParameters, 0, {4, 5, 6});
  observer.begin_step(0);
  const auto states = end(observer).states;
  ASSERT_EQ(states.size(), 1U);
  EXPECT_EQ(states[0].value, mix64(fingerprint_of({4, 5, 6}) ^ name_hash("layers.0.w")));
}

TEST(ObserverStates, TravelWithAFinalNoteOnly) {
  Observer observer = stateful_observer();
  observer.begin_states();
  report_state(observer, kParameters, 2, {1, 2, 3});
  const packet::Note note = goodbye_of(observer, 9);
  ASSERT_EQ(note.state.states.size(), 1U);
  EXPECT_EQ(note.state.states[0].group, name_hash("head.w"));
  EXPECT_EQ(note.state.optimizer_steps, 9U);
  observer.begin_step(0);
  static_cast<void>(end(observer));
  EXPECT_TRUE(goodbye_of(observer, 9).state.states.empty()) << "those went with the step";
}

TEST(ObserverStates, OfNothingCount) {
  Observer observer = stateful_observer();
  observer.begin_states();
  ASSERT_TRUE(observer.state(kParameters, 0, nullptr, 0, 4));
  const auto states = goodbye_of(observer).state.states;
  ASSERT_EQ(states.size(), 1U);
  EXPECT_EQ(states[0].value, mix64(name_hash("layers.0.w")));
}

TEST(ObserverStates, RefusesWhatItDoesNotKnow) {
  Observer observer = stateful_observer();
  observer.begin_states();
  const Values buffer = {1, 2, 3};
  for (const auto& status :
       {observer.state(kParameters, 3, buffer.data(), 3, 4),
        observer.state(kBuffers, 2, buffer.data(), 3, 4),
        observer.state(StateHash::Kind{0}, 0, buffer.data(), 3, 4),
        observer.state(StateHash::Kind::kWatched, 0, buffer.data(), 3, 4),
        observer.state(StateHash::Kind{6}, 0, buffer.data(), 3, 4),
        observer.state(kParameters, 0, buffer.data(), 3, 4, StateHash::kShardsMax + 1),
        observer.state(kParameters, 0, nullptr, 3, 4),
        observer.state(kParameters, 0, buffer.data(), 3, 1),
        observer.state(kParameters, 0, buffer.data(), 3, 0),
        observer.state(kParameters, 0, buffer.data(), 3, 16)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(goodbye_of(observer).state.states.empty());
}

TEST(ObserverStates, BuffersAreNoGradients) {
  Observer observer = stateful_observer();
  observer.begin_step(0);
  EXPECT_EQ(end(observer).groups.size(), 2U) << "layers.0 and head.w";
  const auto message = packet::decode(observer.hello().bytes);
  ASSERT_TRUE(message);
  const auto& groups = std::get<packet::Hello>(*message).facts.groups;
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].elements, 6U) << "of the parameters only";
  EXPECT_EQ(groups[2].name, "frozen.w");
  EXPECT_EQ(groups[2].elements, 0U);
}

// ---- samples, indices, facts

Samples samples_of(const std::vector<std::uint64_t>& hashes) {
  Observer observer = make_observer({}, 0);
  observer.begin_step(0);
  observer.samples(hashes);
  return end(observer).samples;
}

TEST(ObserverSamples, UpTo256TravelAsTheyAre) {
  for (const std::size_t count : {0U, 1U, 256U}) {
    const auto hashes = random_hashes(count);
    const auto samples = samples_of(hashes);
    EXPECT_EQ(samples.rows, count);
    EXPECT_EQ(samples.thinned, 0U);
    EXPECT_EQ(samples.hashes, hashes);
  }
}

TEST(ObserverSamples, MoreAreThinnedOutByHash) {
  for (const std::size_t count : {257U, 10'000U, 300'000U}) {
    const auto hashes = random_hashes(count);
    const auto samples = samples_of(hashes);
    EXPECT_EQ(samples.rows, count) << "all rows count";
    EXPECT_LE(samples.hashes.size(), 256U);
    EXPECT_GT(samples.hashes.size(), 80U) << "no more than needed";
    std::vector<std::uint64_t> divisible;
    std::uint64_t before = 0;  // how many one thinning less would have left
    for (const std::uint64_t hash : hashes) {
      if (hash % (1ULL << samples.thinned) == 0) divisible.push_back(hash);
      if (hash % (1ULL << (samples.thinned - 1)) == 0) ++before;
    }
    EXPECT_EQ(samples.hashes, divisible) << "the same rows on every worker, in their order";
    EXPECT_GT(before, 256U);
  }
}

TEST(ObserverSamples, RowsThatAreAllEqualAreNotCutByChance) {
  const auto gone = samples_of(std::vector<std::uint64_t>(1000, 5));
  EXPECT_EQ(gone.rows, 1000U);
  EXPECT_TRUE(gone.hashes.empty());
  const auto zeros = samples_of(std::vector<std::uint64_t>(1000, 0));
  EXPECT_EQ(zeros.rows, 1000U);
  EXPECT_EQ(zeros.thinned, packet::kThinnedMax);
}

TEST(ObserverSamples, OfMicroBatchesAddUp) {
  Observer observer = make_observer({}, 0);
  observer.begin_step(0);
  observer.samples(std::vector<std::uint64_t>{1, 2});
  observer.samples(std::vector<std::uint64_t>{3});
  observer.indices(std::vector<std::uint64_t>{30, 20});
  observer.indices({});
  observer.indices(std::vector<std::uint64_t>{10});
  const packet::Step step = end(observer);
  EXPECT_EQ(step.samples.rows, 3U);
  EXPECT_EQ(step.samples.hashes, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(step.indices, (std::vector<std::uint64_t>{30, 20, 10})) << "in their order";
  observer.begin_step(1);
  const packet::Step next = end(observer);
  EXPECT_EQ(next.samples.rows, 0U);
  EXPECT_TRUE(next.indices.empty());
}

TEST(ObserverSamples, TheFirst4096IndicesTravel) {
  Observer observer = make_observer({}, 0);
  observer.begin_step(0);
  std::vector<std::uint64_t> want;
  for (std::uint64_t i = 0; i < 6000; i += 1500) {
    std::vector<std::uint64_t> part(1500);
    for (std::uint64_t k = 0; k < 1500; ++k) part[k] = i + k;
    want.insert(want.end(), part.begin(), part.end());
    observer.indices(part);
  }
  observer.indices(std::vector<std::uint64_t>{999});
  want.resize(4096);
  EXPECT_EQ(end(observer).indices, want);
}

TEST(Observer, AFingerprintThatIsReportedTwiceCountsAsItsLast) {
  Observer observer = make_observer({}, 0);
  observer.begin_step(0);
  observer.fingerprint(1, 10);
  observer.fingerprint(2000, 20);
  observer.fingerprint(1, 11);
  const packet::Step step = end(observer);
  ASSERT_EQ(step.fingerprints.size(), 2U);
  EXPECT_EQ(step.fingerprints[0].value, 11U);
  EXPECT_EQ(step.fingerprints[1].kind, 2000U);
}

TEST(Observer, AFactReplacesTheOneOfItsName) {
  auto observer = Observer::create({.facts = {{"torch", "2.13.0"}}}, {});
  ASSERT_TRUE(observer);
  observer->fact("sampler", "SequentialSampler");
  observer->fact("torch", "2.14.0");
  observer->fact("sampler", "");
  const auto message = packet::decode(observer->hello().bytes);
  ASSERT_TRUE(message);
  const std::vector<std::pair<std::string, std::string>> want = {{"torch", "2.14.0"},
                                                                 {"sampler", ""}};
  EXPECT_EQ(std::get<packet::Hello>(*message).facts.facts, want);
}

TEST(Observer, CutsFactsThatAreTooLongToRead) {
  std::string text;
  while (text.size() < 5000) text += "\u00fc";  // two bytes each
  auto observer = Observer::create({.facts = {{"given", text}}}, {});
  ASSERT_TRUE(observer);
  observer->fact("later", text + "!");
  const auto message = packet::decode(observer->hello().bytes);
  ASSERT_TRUE(message);
  const auto& facts = std::get<packet::Hello>(*message).facts.facts;
  ASSERT_EQ(facts.size(), 2U);
  for (const auto& [key, value] : facts) {
    EXPECT_LE(value.size(), Observer::kFactBytesMax);
    EXPECT_TRUE(value.starts_with("\u00fc\u00fc"));
    const auto cut = value.find("...");
    ASSERT_NE(cut, std::string::npos);
    EXPECT_EQ(cut % 2, 0U) << "inside a character";
  }
  EXPECT_NE(facts[0].second.find("5000 bytes"), std::string::npos);
  EXPECT_NE(facts[0].second, facts[1].second) << "texts that begin alike stay two";
}

}  // namespace
}  // namespace presum
