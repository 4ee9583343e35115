// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diagnose/audits.h"
#include "diagnose/clip_norm.h"
#include "diagnose/data_coverage.h"
#include "diagnose/data_order.h"
#include "diagnose/duplicates.h"
#include "diagnose/gradients.h"
#include "diagnose/lost_gradients.h"
#include "diagnose/manifest.h"
#include "diagnose/overlap.h"
#include "diagnose/pace.h"
#include "diagnose/presence.h"
#include "diagnose/progress.h"
#include "diagnose/rank_ended.h"
#include "diagnose/recomputed.h"
#include "diagnose/reduction.h"
#include "diagnose/resume.h"
#include "diagnose/rng.h"
#include "diagnose/roster.h"
#include "diagnose/sampler.h"
#include "diagnose/settings.h"
#include "diagnose/slow_workers.h"
#include "diagnose/stalls.h"
#include "diagnose/states.h"
#include "diagnose/statistics.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Every rule with what it remembers of one model. The table in rules.cc says which checks a rule
// makes and what it is told. Not synchronised.
struct Rules {
  RankEnded rank_ended{};
  Presence presence{};
  Nonfinite nonfinite_gradient{Check::kNonfiniteGradient};
  Nonfinite nonfinite_loss{Check::kNonfiniteLoss};
  Reduction reduction{};
  Audits audits{};
  ClipNorm clip_norm{};
  LostGradients lost_gradients{};
  Recomputed recomputed{};
  Settings settings{};
  Manifest manifest{};
  Duplicates duplicates{};
  DataOrder data_order{};
  Sampler sampler{};
  Overlap overlap{};
  DataCoverage data_coverage{};
  Resume resume{};
  States states{};
  ZeroGradient zero{};
  FrozenGradient frozen{};
  NoProgress progress{};
  Statistics statistics{};
  Rng rng{};
  SlowWorkers slow_workers{};
  Pace pace{};
  Stalls stalls{};

  void update(const StepContext& context, SignalLog& log);
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);
};

}  // namespace presum::diagnose
