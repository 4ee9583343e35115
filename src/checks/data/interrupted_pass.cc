// SPDX-License-Identifier: Apache-2.0
#include "checks/data/interrupted_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checks/data/sampler_mismatch.h"

namespace presum::checks {
namespace {

constexpr const char* kNoPass = "The samples of the pass that was interrupted are not known.";

bool deals_all_samples(const StepContext& context) {
  using enum FingerprintKind;
  const auto& workers = context.record.workers;
  if (workers.empty()) return false;
  return deals_all(context.roster.fact("sampler"), value_of(workers.front(), kSamplerLength),
                   value_of(workers.front(), kDataLength));
}

}  // namespace

Signal resume_signal(std::uint64_t key, Blame blame, std::size_t workers) {
  Signal signal = sighting({&kResumeMismatch, key}, 0, std::move(blame), 0.95);
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

Signal InterruptedPass::signal_of(std::uint64_t key) const {
  Blame everyone{{}, true};
  for (const auto& [replica, rank] : ranks_) insert(everyone.ranks, rank);
  return resume_signal(key, std::move(everyone), ranks_.size());
}

// Its samples have the numbers of others.
void InterruptedPass::other_data(SignalLog& log) const {
  Signal signal = signal_of(7);
  signal.severity = Severity::kInfo;
  signal.title = "{Ranks} went on with another data set of the same length";
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
  Signal signal = signal_of(5);
  signal.last_step = last_step_;
  signal.severity = anew ? Severity::kInfo : Severity::kWarning;
  signal.title =
      anew ? fmt::format(
                 "{{Ranks}} began the interrupted pass over the data anew: {} of {} samples "
                 "were drawn again",
                 again, before_.length())
           : fmt::format(
                 "{{Ranks}} did not go on where the pass over the data was interrupted: of "
                 "{} samples {} were drawn again{}",
                 before_.length(), again, deals_all_ ? fmt::format(", and {} never", never) : "");
  signal.evidence = {{"samples_again", static_cast<std::int64_t>(again)},
                     {"of_samples", static_cast<std::int64_t>(before_.length())}};
  if (deals_all_) signal.evidence.emplace_back("samples_never", static_cast<std::int64_t>(never));
  signal.remedy =
      "Restore the sampler's seed and epoch, and skip the batches that were trained on before the "
      "checkpoint (`skip_first_batches`, a sampler with a state of its own).";
  log.add(std::move(signal));
}

}  // namespace presum::checks
