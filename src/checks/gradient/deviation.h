// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "checks/engine/evidence.h"
#include "checks/engine/signal_log.h"
#include "checks/gradient/compared.h"
#include "detect/detector.h"

namespace presum::checks {

// An alarm in readable form.
struct Deviation : Compared {
  detect::Alarm::Kind kind = detect::Alarm::Kind::kOutlier;
  detect::Statistic of = detect::Statistic::kLoss;
  bool high = false;
  bool of_all = false;          // the alarm names no minority
  bool of_static_data = false;  // every rank reads its own samples again and again
  std::string layer;            // the layer whose gradient differs most
  bool layer_alone = false;     // and no other layer differs
  double log10_evidence = kNaN;
  double effect_sd = kNaN;
  double ratio = kNaN;  // to the others' mean; of two ranks, the first's to the second's
  std::optional<std::uint32_t> of_rank;
  std::optional<std::uint32_t> beside_rank;
  std::vector<std::string> scales_beside;  // of two ranks, how the second's loss may be scaled

  std::string statistic() const;
  std::string kind_name() const;
  // An alarm of all ranks has a different key than one that names ranks.
  std::uint64_t key() const {
    if (of_static_data) return 0;
    return 16 + static_cast<std::uint64_t>(kind) * 64 + static_cast<std::uint64_t>(of) * 4 +
           (of_all ? 2 : 0) + (high ? 1 : 0);
  }
  static constexpr auto kFields = std::tuple_cat(
      std::tuple{field("kind", &Deviation::kind_name), field("statistic", &Deviation::statistic),
                 field("high", &Deviation::high), field("effect_sd", &Deviation::effect_sd),
                 field("ratio", &Deviation::ratio), field("of_rank", &Deviation::of_rank),
                 field("beside_rank", &Deviation::beside_rank),
                 field("scales_beside", &Deviation::scales_beside),
                 field("layer", &Deviation::layer), field("layer_alone", &Deviation::layer_alone),
                 field("of_static_data", &Deviation::of_static_data),
                 field("log10_evidence", &Deviation::log10_evidence)},
      Compared::kFields);
};

std::string sentence(const Deviation& seen, const Who& who);

// Possible causes for ranks that deviate.
std::string outlier_suspects(std::span<const Signal* const> signals);

}  // namespace presum::checks
