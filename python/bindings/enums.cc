// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <string>

#include "bindings.h"
#include "presum/fingerprint.h"
#include "step/phases.h"
#include "step/steps.h"

namespace presum::python {
namespace {

namespace nb = nanobind;

std::string upper(std::string_view name) {
  std::string out(name);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

// Where a copy of the extension is loaded too, nanobind has the type: to bind it again would abort.
template <class Enum, class Fill, class... Extra>
void bind_enum(nb::module_& m, const char* name, Fill fill, const Extra&... extra) {
  if (const nb::handle known = nb::type<Enum>(); known.is_valid()) {
    m.attr(name) = known;
    return;
  }
  nb::enum_<Enum> bound(m, name, extra...);
  fill(bound);
}

}  // namespace

void bind_enums(nb::module_& m) {
  using State = StateHash::Kind;
  bind_enum<Dtype>(
      m, "Dtype",
      [](auto& bound) {
        bound.value("FLOAT32", Dtype::kF32)
            .value("FLOAT64", Dtype::kF64)
            .value("BFLOAT16", Dtype::kBF16)
            .value("FLOAT16", Dtype::kF16);
      },
      "Element types that are read and summed.");
  bind_enum<step::Read>(
      m, "Read",
      [](auto& bound) {
        bound.value("NOTHING", step::Read::kNothing)
            .value("SUMS", step::Read::kSums, "What .grad holds once it has accumulated.")
            .value("ARRIVALS", step::Read::kArrivals,
                   "What is added to it: it held something before.");
      },
      "What is to be read of the pass that begins.");
  bind_enum<step::Mark>(
      m, "Mark",
      [](auto& bound) {
        bound.value("STEP_ENDS", step::Mark::kStepEnds)
            .value("EVALUATES", step::Mark::kEvaluates)
            .value("FORWARD", step::Mark::kForward)
            .value("BACKWARD", step::Mark::kBackward)
            .value("PASS_ENDS", step::Mark::kPassEnds)
            .value("REDUCED", step::Mark::kReduced)
            .value("OPTIMIZER_BEGINS", step::Mark::kOptimizerBegins)
            .value("OPTIMIZER_ENDS", step::Mark::kOptimizerEnds);
      },
      "What a time on a device's clock is of (see src/step/phases.h).");
  bind_enum<State>(
      m, "StateKind",
      [](auto& bound) {
        bound.value("PARAMETERS", State::kParameters)
            .value("BUFFERS", State::kBuffers)
            .value("OPTIMIZER", State::kOptimizer)
            .value("WATCHED", State::kWatched)
            .value("FROZEN", State::kFrozen)
            .value("OUTSIDE", State::kOutside);
      },
      "What a state is a hash of.");
  using Snapshot = TrainingSnapshot::Kind;
  bind_enum<Snapshot>(
      m, "SnapshotKind",
      [](auto& bound) {
        bound.value("BEGUN", Snapshot::kBegun)
            .value("SAVED", Snapshot::kSaved)
            .value("LEFT", Snapshot::kLeft);
      },
      "When a snapshot was taken.");
  bind_enum<FingerprintKind>(
      m, "FingerprintKind",
      [](auto& bound) {
        for (const FingerprintInfo& info : fingerprint_kinds()) {
          bound.value(upper(info.name).c_str(), info.kind);
        }
      },
      nb::is_arithmetic(), "docs/runlog_format.md, kinds of fingerprints.");
}

}  // namespace presum::python
