// SPDX-License-Identifier: Apache-2.0
#include "checks/data/interrupted_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

constexpr double kEnough = 12;  // expected repeats by chance; then none at all is significant
constexpr double kChance = 2;   // repeats to ignore: padded batches
constexpr double kHalf = 0.5;   // of the repeats that a pass in another order would have
constexpr const char* kNoPass = "The samples of the interrupted pass are not known.";

struct OtherData {
  std::uint64_t samples = 0;  // in each of the two datasets

  static constexpr std::tuple kFields{field("samples", &OtherData::samples)};
};

std::string sentence(const OtherData& /*seen*/, const Who& who) {
  return who.words() + " continued with a different dataset of the same length";
}

struct SamplesAgain {
  bool pass_begun_anew = false;
  std::uint64_t samples_again = 0;
  std::uint64_t of_samples = 0;
  std::optional<std::uint64_t> samples_never;  // if the sampler deals every sample

  static constexpr std::tuple kFields{field("pass_begun_anew", &SamplesAgain::pass_begun_anew),
                                      field("samples_again", &SamplesAgain::samples_again),
                                      field("of_samples", &SamplesAgain::of_samples),
                                      field("samples_never", &SamplesAgain::samples_never)};
};

struct SomeBeganAnew {
  Ranks went_on;
  std::uint64_t samples_again = 0;  // of those that did not
  std::uint64_t of_draws = 0;

  static constexpr std::tuple kFields{field("went_on", &SomeBeganAnew::went_on),
                                      field("samples_again", &SomeBeganAnew::samples_again),
                                      field("of_draws", &SomeBeganAnew::of_draws)};
};

std::string sentence(const SomeBeganAnew& seen, const Who& who) {
  return fmt::format("{} restarted the interrupted pass over the data, {} continued it",
                     who.words(), Who{seen.went_on, false}.within());
}

std::string sentence(const SamplesAgain& seen, const Who& who) {
  if (seen.pass_begun_anew) {
    return fmt::format(
        "{} restarted the interrupted pass over the data: {} of {} samples were drawn again",
        who.words(), seen.samples_again, seen.of_samples);
  }
  return fmt::format(
      "{} did not continue where the pass over the data was interrupted: of {} samples {} were "
      "drawn "
      "again{}",
      who.words(), seen.of_samples, seen.samples_again,
      seen.samples_never ? fmt::format(", and {} never", *seen.samples_never) : "");
}

}  // namespace

Signal resume_signal(Blame blame, std::size_t workers, Evidence seen) {
  Signal signal = sighting(&kResumeMismatch, 0, std::move(blame), 0.95, std::move(seen));
  signal.workers = static_cast<std::uint32_t>(workers);
  return signal;
}

void InterruptedPass::goes_on_from(LastPass before, std::uint64_t step, Ranks ranks,
                                   const Roster& roster, SignalLog& log) {
  before_ = std::move(before);
  step_ = step;
  ranks_ = std::move(ranks);
  judge(roster, log);
}

void InterruptedPass::forget() {
  judged_ = true;
  before_.forget();
  pass_.reset();
}

// Expected repeats for the same number of draws in another order.
double InterruptedPass::again_by_chance(const Draws& draws) const {
  return static_cast<double>(draws.all) * static_cast<double>(first_) /
         static_cast<double>(before_.length());
}

bool InterruptedPass::began_anew(const Draws& draws) const {
  return static_cast<double>(draws.again) > kChance + kHalf * again_by_chance(draws);
}

bool InterruptedPass::went_on(const Draws& draws) const {
  return again_by_chance(draws) >= kEnough && static_cast<double>(draws.again) <= kChance;
}

// False if nothing can be said of this pass, or of its later steps.
bool InterruptedPass::count(const StepRecord& record) {
  using enum FingerprintKind;
  if (judged_ || ranks_.empty() || !before_.known()) return false;
  if (!std::exchange(counts_, true)) {
    drawn_ = before_.before(step_);
    first_ = drawn_.count();
  }
  if (first_ == 0) return false;
  for (const WorkerRecord& w : record.workers) {
    const std::uint64_t number = value_of(w, kDataPass);
    const bool same = !w.indices.empty() && value_of(w, kDataLength) == before_.length() &&
                      value_of(w, kDataContents) == before_.contents() &&
                      number == number_.value_or(number) &&
                      std::ranges::max(w.indices) < before_.length();
    if (!same) return false;
    number_ = number;
    Draws& draws = draws_[w.rank];
    draws.all += w.indices.size();
    draws.again += static_cast<std::uint64_t>(
        std::ranges::count_if(w.indices, [&](auto index) { return drawn_.contains(index); }));
  }
  return draws_.size() == ranks_.size();
}

void InterruptedPass::see(const StepRecord& record, SignalLog& log) {
  if (!count(record)) return;
  Blame anew;
  SomeBeganAnew seen;
  for (const auto& [rank, draws] : draws_) {
    if (went_on(draws)) {
      insert(seen.went_on, rank);
    } else if (began_anew(draws)) {
      insert(anew.ranks, rank);
      seen.samples_again += draws.again;
      seen.of_draws += draws.all;
    }
  }
  const bool parted = !seen.went_on.empty() && !anew.ranks.empty() &&
                      seen.went_on.size() + anew.ranks.size() == draws_.size();
  if (std::exchange(parted_, parted) && !parted) {
    log.forget(&kResumeMismatch, key_of(SomeBeganAnew{}));
  }
  if (!parted) return;
  Signal signal = resume_signal(std::move(anew), ranks_.size(), std::move(seen));
  signal.last_step = record.step;
  signal.severity = Severity::kWarning;
  signal.remedy =
      "Save every rank's position in the data (its sampler, its list of files), and restore each "
      "rank's own.";
  log.add(std::move(signal));
}

void InterruptedPass::over(const Pass& pass, const Roster& roster, SignalLog& log) {
  if (judged_ || pass_ || !pass.is_first) return;
  pass_ = pass;
  judge(roster, log);
}

void InterruptedPass::judge(const Roster& roster, SignalLog& log) {
  if (judged_ || ranks_.empty() || !pass_) return;
  if (pass_->ended && !parted_) compare(roster, log);
  forget();
}

Signal InterruptedPass::signal_of(Evidence seen) const {
  return resume_signal({ranks_, true}, ranks_.size(), std::move(seen));
}

// The dataset numbers its samples differently than before.
void InterruptedPass::other_data(SignalLog& log) const {
  Signal signal = signal_of(OtherData{before_.length()});
  signal.severity = Severity::kInfo;
  signal.remedy =
      "Nothing, if this is intended. If not, check the order in which files are listed and the "
      "version of the data.";
  log.add(std::move(signal));
}

void InterruptedPass::compare(const Roster& roster, SignalLog& log) const {
  const bool known = before_.known() && pass_->gapless && pass_->all_workers && pass_->indexed &&
                     pass_->ranks == ranks_;
  if (!known || before_.length() != pass_->length) return log.cannot(&kResumeMismatch, kNoPass);
  if (before_.contents() != 0 && pass_->contents != 0 && before_.contents() != pass_->contents) {
    return other_data(log);
  }
  const bool deals = deals_all(roster.fact("sampler"), pass_->own, pass_->length);
  SampleSet all = before_.before(step_);
  const std::uint64_t first = all.count();
  const std::uint64_t batch = ranks_.size() * pass_->rows_at_once;
  const std::uint64_t slack = 2 * std::max(batch, before_.rows_at_once());
  if (first == 0 || first + slack >= before_.length()) return;  // saved between passes
  const std::uint64_t second = pass_->drawn.count();
  all.unite(pass_->drawn);
  const std::uint64_t again = first + second - all.count();
  const std::uint64_t never = deals ? before_.length() - all.count() : 0;
  if (again <= slack && never <= slack) return;
  const bool anew =
      deals ? never <= slack && again + slack >= first : second + slack >= before_.length();
  SamplesAgain seen{
      .pass_begun_anew = anew, .samples_again = again, .of_samples = before_.length()};
  if (deals) seen.samples_never = never;
  Signal signal = signal_of(seen);
  signal.last_step = pass_->last_step;
  signal.severity = anew ? Severity::kInfo : Severity::kWarning;
  signal.remedy =
      "Restore the sampler's seed and epoch, and skip the batches that were trained on before the "
      "checkpoint (`skip_first_batches`, or a stateful sampler).";
  log.add(std::move(signal));
}

}  // namespace presum::checks
