// SPDX-License-Identifier: Apache-2.0
#include "checks/data/interrupted_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "checks/data/sampler_mismatch.h"

namespace presum::checks {
namespace {

constexpr const char* kNoPass = "The samples of the pass that was interrupted are not known.";

struct OtherData {
  std::uint64_t samples = 0;  // in each of the two data sets

  static constexpr std::tuple kFields{field("samples", &OtherData::samples)};
};

std::string sentence(const OtherData& /*seen*/, const Who& who) {
  return who.words() + " went on with another data set of the same length";
}

struct SamplesAgain {
  bool pass_begun_anew = false;
  std::uint64_t samples_again = 0;
  std::uint64_t of_samples = 0;
  std::optional<std::uint64_t> samples_never;  // where the sampler deals every sample

  static constexpr std::tuple kFields{field("pass_begun_anew", &SamplesAgain::pass_begun_anew),
                                      field("samples_again", &SamplesAgain::samples_again),
                                      field("of_samples", &SamplesAgain::of_samples),
                                      field("samples_never", &SamplesAgain::samples_never)};
};

std::string sentence(const SamplesAgain& seen, const Who& who) {
  if (seen.pass_begun_anew) {
    return fmt::format(
        "{} began the interrupted pass over the data anew: {} of {} samples were drawn again",
        who.words(), seen.samples_again, seen.of_samples);
  }
  return fmt::format(
      "{} did not go on where the pass over the data was interrupted: of {} samples {} were drawn "
      "again{}",
      who.words(), seen.of_samples, seen.samples_again,
      seen.samples_never ? fmt::format(", and {} never", *seen.samples_never) : "");
}

bool deals_all_samples(const StepContext& context) {
  using enum FingerprintKind;
  const auto& workers = context.record.workers;
  if (workers.empty()) return false;
  return deals_all(context.roster.fact("sampler"), value_of(workers.front(), kSamplerLength),
                   value_of(workers.front(), kDataLength));
}

}  // namespace

Signal resume_signal(Blame blame, std::size_t workers, Evidence seen) {
  Signal signal = sighting(&kResumeMismatch, 0, std::move(blame), 0.95, std::move(seen));
  signal.workers = static_cast<std::uint32_t>(workers);
  return signal;
}

void InterruptedPass::goes_on_from(PassDraws before, std::uint64_t step, Ranks ranks,
                                   SignalLog& log) {
  before_ = std::move(before);
  step_ = step;
  ranks_ = std::move(ranks);
  if (ended()) judge(log);
}

void InterruptedPass::forget() {
  over_ = true;
  before_.forget();
  draws_.forget();
}

void InterruptedPass::update(const StepContext& context, SignalLog& log) {
  last_step_ = context.record.step;
  if (over_) return;
  if (draws_with_replacement(context.roster) || repeats_by_design(context)) return forget();
  deals_all_ = deals_all_samples(context);
  draws_.see(context.record);
  if (ended()) judge(log);
}

// The last steps may come after the farewells.
void InterruptedPass::farewell(std::uint32_t rank, const FinalState& last, SignalLog& log) {
  const std::uint64_t pass = last.fingerprint_or_zero(FingerprintKind::kDataPass);
  if (over_ || last.fingerprint_or_zero(FingerprintKind::kDataEnded) != pass + 1) return;
  if (pass == draws_.pass()) {
    farewells_[rank] = last.fingerprint_or_zero(FingerprintKind::kDataBatch) + 1;
  }
  if (ended()) judge(log);
}

// On every worker a loader has come to the end of the pass.
bool InterruptedPass::ended() const {
  if (ranks_.empty() || draws_.broken_off()) return false;
  return draws_.ended() || std::ranges::all_of(ranks_, [&](const auto& worker) {
           const auto at = farewells_.find(worker.second);
           return at != farewells_.end() && at->second == draws_.next_batch(worker.first);
         });
}

void InterruptedPass::judge(SignalLog& log) {
  compare(log);
  forget();
}

Signal InterruptedPass::signal_of(Evidence seen) const {
  Blame everyone{{}, true};
  for (const auto& [replica, rank] : ranks_) insert(everyone.ranks, rank);
  return resume_signal(std::move(everyone), ranks_.size(), std::move(seen));
}

// Its samples have the numbers of others.
void InterruptedPass::other_data(SignalLog& log) const {
  Signal signal = signal_of(OtherData{before_.length()});
  signal.severity = Severity::kInfo;
  signal.remedy =
      "Nothing, where that was meant; else look at the order in which files are listed, and at the "
      "version of the data.";
  log.add(std::move(signal));
}

void InterruptedPass::compare(SignalLog& log) const {
  if (!before_.known() || !draws_.known() || before_.length() != draws_.length()) {
    return log.cannot(&kResumeMismatch, kNoPass);
  }
  if (before_.contents() != 0 && draws_.contents() != 0 &&
      before_.contents() != draws_.contents()) {
    return other_data(log);
  }
  SampleSet all = before_.before(step_);
  const std::uint64_t first = all.count();
  const std::uint64_t slack = std::max(before_.slack(), draws_.slack());
  if (first == 0 || first + slack >= before_.length()) return;  // saved between passes
  const SampleSet since = draws_.before(UINT64_MAX);
  const std::uint64_t second = since.count();
  all.unite(since);
  const std::uint64_t again = first + second - all.count();
  const std::uint64_t never = deals_all_ ? before_.length() - all.count() : 0;
  if (again <= slack && never <= slack) return;
  const bool anew =
      deals_all_ ? never <= slack && again + slack >= first : second + slack >= before_.length();
  SamplesAgain seen{
      .pass_begun_anew = anew, .samples_again = again, .of_samples = before_.length()};
  if (deals_all_) seen.samples_never = never;
  Signal signal = signal_of(seen);
  signal.last_step = last_step_;
  signal.severity = anew ? Severity::kInfo : Severity::kWarning;
  signal.remedy =
      "Restore the sampler's seed and epoch, and skip the batches that were trained on before the "
      "checkpoint (`skip_first_batches`, a sampler with a state of its own).";
  log.add(std::move(signal));
}

}  // namespace presum::checks
