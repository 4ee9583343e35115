// SPDX-License-Identifier: Apache-2.0
#include "runlog/tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "records/names.h"
#include "runlog/json_text.h"

namespace presum::runlog {
namespace {

constexpr const char* kLossUnit = "loss";
constexpr const char* kGradientUnit = "gradient";
constexpr const char* kSquareUnit = "gradient^2";

template <class Record>
using Columns = std::vector<Column<Record>>;

template <class Record>
Columns<Record> join(std::initializer_list<Columns<Record>> parts) {
  Columns<Record> out;
  for (const Columns<Record>& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

constexpr ColumnText kSegmentText = {"number of the recording into this folder, from 1"};
constexpr ColumnText kModuleText = {
    "data-parallel model, numbered from 0 in the order in which the aggregator first heard of "
    "each"};
constexpr ColumnText kShardText = {
    "tells data-parallel groups of one module apart: the lowest of their global ranks; 0 without "
    "model parallelism"};

template <class Record>
Columns<Record> model_columns() {
  return {column<Record, &Record::model, &ModelKey::segment>("segment", kSegmentText),
          column<Record, &Record::model, &ModelKey::module>("module", kModuleText),
          column<Record, &Record::model, &ModelKey::shard>("shard", kShardText)};
}

template <class Record>
Columns<Record> with_model(Columns<Record> columns) {
  return join({model_columns<Record>(), std::move(columns)});
}

template <class Record, auto Member>
Column<Record> replica_column() {
  return column<Record, Member>("replica", {"data-parallel rank"});
}

template <class Record, auto Member>
Column<Record> rank_column() {
  return column<Record, Member>("rank", {"global rank"});
}

// A blob without a header.
struct BlobCodec {
  static constexpr Type kType = Type::kBlob;
  static constexpr bool kNullable = true;
};

// Records one after the other, each as the words that `Layout` makes of it. NULL stands for fewer
// than `kLeast`.
template <class Record, class Layout, std::size_t kLeast = 1>
struct PackedCodec : BlobCodec {
  using Words = std::vector<typename Layout::Words>;
  static void bind(Statement& row, int at, const std::vector<Record>& records) {
    if (records.size() < kLeast) return;
    Words words;
    std::ranges::transform(records, std::back_inserter(words), Layout::words_of);
    row.bind_blob(at, std::as_bytes(std::span(words)));
  }
  static std::vector<Record> read(const Statement& row, int at) {
    std::vector<Record> out;
    std::ranges::transform(Codec<Words>::read(row, at), std::back_inserter(out), Layout::record_of);
    return out;
  }
};

// Group, of, value.
struct StateLayout {
  using Words = std::array<std::uint64_t, 3>;
  static Words words_of(const StateHash& s) { return {s.group, s.kind_and_shard(), s.value}; }
  static StateHash record_of(const Words& w) {
    return StateHash::of(w[0], static_cast<std::uint32_t>(w[1]), w[2]);
  }
};
using StateCodec = PackedCodec<StateHash, StateLayout, 0>;

// Kind and value.
struct GeneratorLayout {
  using Words = std::array<std::uint64_t, 2>;
  static Words words_of(const FingerprintValue& v) { return {v.kind, v.value}; }
  static FingerprintValue record_of(const Words& w) {
    return {static_cast<std::uint32_t>(w[0]), w[1]};
  }
};
using GeneratorCodec = PackedCodec<FingerprintValue, GeneratorLayout>;

// Loss, weight, tokens.
struct MicroBatchLayout {
  using Words = std::array<double, 3>;
  static Words words_of(const MicroBatch& m) {
    return {m.loss, m.weight, static_cast<double>(m.tokens)};
  }
  static MicroBatch record_of(const Words& w) {
    const double tokens = w[2];  // of a damaged file it may be anything
    const bool count = tokens >= 0 && tokens < 0x1p64;
    return {w[0], w[1], count ? static_cast<std::uint64_t>(tokens) : 0};
  }
};
// A single one repeats what the columns say.
using MicroBatchCodec = PackedCodec<MicroBatch, MicroBatchLayout, 2>;

// Data, forward, backward.
struct MicroTimesLayout {
  using Words = std::array<float, 3>;
  static Words words_of(const MicroBatchTimes& m) { return {m.data, m.forward, m.backward}; }
  static MicroBatchTimes record_of(const Words& w) { return {w[0], w[1], w[2]}; }
};
using MicroTimesCodec = PackedCodec<MicroBatchTimes, MicroTimesLayout>;

// Seven words of a group, and how many floats of its sketch follow, two a word.
struct MomentGroupCodec : BlobCodec {
  static constexpr std::size_t kWords = 8;
  static constexpr std::size_t kFloatsMax = 1 << 16;
  static void bind(Statement& row, int at, const std::vector<MomentGroup>& groups) {
    std::vector<std::uint64_t> words;
    for (const MomentGroup& g : groups) {
      words.insert(words.end(), {g.id, g.elements, std::bit_cast<std::uint64_t>(g.squares),
                                 g.parameters, g.optimizer, g.shard, g.formats, g.sketch.size()});
      const std::size_t begin = words.size();
      words.resize(begin + (g.sketch.size() + 1) / 2);
      std::memcpy(words.data() + begin, g.sketch.data(), g.sketch.size() * sizeof(float));
    }
    if (!words.empty()) row.bind_blob(at, std::as_bytes(std::span(words)));
  }
  static std::vector<MomentGroup> read(const Statement& row, int at) {
    const auto words = Codec<std::vector<std::uint64_t>>::read(row, at);
    std::vector<MomentGroup> out;
    for (std::size_t i = 0; i + kWords <= words.size();) {
      MomentGroup g{.id = words[i],
                    .elements = words[i + 1],
                    .squares = std::bit_cast<double>(words[i + 2]),
                    .parameters = words[i + 3],
                    .optimizer = words[i + 4],
                    .shard = static_cast<std::uint32_t>(words[i + 5]),
                    .formats = static_cast<std::uint16_t>(words[i + 6])};
      const std::uint64_t floats = words[i + 7];
      i += kWords;
      if (floats > kFloatsMax || (floats + 1) / 2 > words.size() - i) return out;  // damaged
      g.sketch.resize(floats);
      std::memcpy(g.sketch.data(), words.data() + i, floats * sizeof(float));
      i += (floats + 1) / 2;
      out.push_back(std::move(g));
    }
    return out;
  }
};

template <class T, T (*kParse)(const std::string&)>
struct JsonCodec {
  static constexpr Type kType = Type::kText;
  static constexpr bool kNullable = false;
  static void bind(Statement& row, int at, const T& value) {
    row.bind(at, std::string_view(json_text(value)));
  }
  static T read(const Statement& row, int at) { return kParse(row.text(at)); }
};
using TextsCodec = JsonCodec<std::vector<std::string>, texts_of>;
using NumbersCodec = JsonCodec<std::vector<std::uint32_t>, numbers_of>;
using EvidenceCodec = JsonCodec<Finding::Evidence, evidence_of>;

// Whether it was reduced; which window it was is not kept.
struct ReducedCodec {
  static constexpr Type kType = Type::kInteger;
  static constexpr bool kNullable = false;
  static void bind(Statement& row, int at, std::uint32_t window) {
    row.bind(at, std::uint64_t{window == StepNumber::kReduced});
  }
  static std::uint32_t read(const Statement& row, int at) {
    return row.integer(at) != 0 ? StepNumber::kReduced : 0;
  }
};

// NULL stands for 0.
struct CountCodec {
  static constexpr Type kType = Type::kInteger;
  static constexpr bool kNullable = true;
  static void bind(Statement& row, int at, std::uint64_t value) {
    if (value > 0) row.bind(at, value);
  }
  static std::uint64_t read(const Statement& row, int at) { return row.integer(at); }
};

// A distance in units in the last place, where the audit has any.
template <auto Member>
Column<AuditedStep> ulps_column(const char* name, std::string_view meaning) {
  return {.name = name,
          .type = Type::kInteger,
          .nullable = true,
          .text = {meaning, "ulp", "no element is finite"},
          .bind =
              [](Statement& row, int at, const AuditedStep& a) {
                if (a.audit.ulps) row.bind(at, (*a.audit.ulps).*Member);
              },
          .read =
              [](const Statement& row, int at, AuditedStep& a) {
                if (row.type(at) == SQLITE_NULL) return;
                if (!a.audit.ulps) a.audit.ulps.emplace();
                (*a.audit.ulps).*Member = row.integer(at);
              }};
}

template <auto Member>
Column<AuditedStep> audit_column(const char* name, ColumnText text) {
  return column<AuditedStep, &AuditedStep::audit, Member>(name, text);
}

template <auto& Names, auto Member>
Column<AuditedStep> audit_names(const char* name, ColumnText text) {
  return enumeration<Names, AuditedStep, &AuditedStep::audit, Member>(name, text);
}

Columns<StepRow> dispersion_columns() {
  using Row = StepRow;
  return {
      column<Row, &Row::workers_expected>("workers_expected",
                                          {"data-parallel world size", "workers"}),
      column<Row, &Row::workers_seen>("workers", {"workers whose packet arrived", "workers"}),
      column<Row, &Row::workers_left_out>(
          "workers_left_out",
          {"of an unreduced step: workers that went on without it (docs/step.md)", "workers"}),
      column<Row, &Row::loss_mean>(
          "loss_mean", {"unweighted mean over workers with a finite loss", kLossUnit, "no loss"}),
      column<Row, &Row::loss_std>(
          "loss_std",
          {"population standard deviation over workers with a finite loss", kLossUnit, "no loss"}),
      column<Row, &Row::loss_range>(
          "loss_range", {"largest minus smallest finite loss of a worker", kLossUnit, "no loss"}),
      column<Row, &Row::grad_norm_mean>("grad_norm_mean", {"mean over workers with a finite norm",
                                                           kGradientUnit, "no finite norm"}),
      column<Row, &Row::grad_norm_std>(
          "grad_norm_std", {"population standard deviation over workers with a finite norm",
                            kGradientUnit, "no finite norm"}),
      column<Row, &Row::grad_norm_cv>("grad_norm_cv", {"grad_norm_std / grad_norm_mean", "ratio",
                                                       "the mean is 0 or not known"}),
      column<Row, &Row::cosine_mean>(
          "cosine_mean", {"mean over pairs of workers", "cosine", "fewer than two directions"}),
      column<Row, &Row::cosine_low>("cosine_low", {"lower end of the 95% interval of cosine_mean",
                                                   "cosine", "fewer than two directions"}),
      column<Row, &Row::cosine_high>("cosine_high", {"upper end of the 95% interval of cosine_mean",
                                                     "cosine", "fewer than two directions"})};
}

Columns<StepRow> sum_columns() {
  using Row = StepRow;
  return {
      enumeration<records::kCosineSources, Row, &Row::cosine_source>(
          "cosine_source", {"from what the cosines follow, from the least to the most exact"}),
      column<Row, &Row::consistency>(
          "consistency", {"norm-weighted mean cosine, exact", "cosine",
                          "the reduced gradient's norm and the Gram matrix are not known"}),
      column<Row, &Row::reduced_norm>(
          "reduced_norm", {"norm of the reduced gradient, where all that read it hold the same "
                           "bits, or from the workers' dot products with it",
                           kGradientUnit, "not read at this step, or workers disagree"}),
      column<Row, &Row::reduced_disagrees>(
          "reduced_disagrees",
          {"1: workers hold different reduced gradients, or it is not the mean of what went in"}),
      column<Row, &Row::signal>("signal", {"estimate of the squared norm of the true gradient",
                                           kSquareUnit, "too few workers"}),
      column<Row, &Row::noise>(
          "noise", {"estimate of the variance of one worker's gradient, summed over elements",
                    kSquareUnit, "too few workers"}),
      column<Row, &Row::noise_scale>(
          "noise_scale",
          {"running noise / running signal", "worker batches", "the signal is not positive"}),
      column<Row, &Row::effective_workers>("effective_workers",
                                           {"1 to the number of workers", "workers", "no cosines"}),
      column<Row, &Row::tokens_cv>("tokens_cv", {"coefficient of variation of the token counts",
                                                 "ratio", "a count is not known"}),
      column<Row, &Row::distinct_gradients>(
          "distinct_gradients", {"different fingerprints among gradients that are not zero"}),
      column<Row, &Row::sketch_size>("sketch_size", {"values of the sketches in use; 0 without"}),
      column<Row, &Row::mean_norm>(
          "mean_norm", {"norm of the mean of the workers' own gradients, from their "
                        "sketches or their Gram matrix",
                        kGradientUnit, "neither sketches nor the Gram matrix are known"}),
      column<Row, &Row::mean_norm_error>(
          "mean_norm_error", {"standard error of mean_norm: 0 from the Gram matrix", kGradientUnit,
                              "`mean_norm` is 0 or not known"}),
      column<Row, &Row::cosines>(
          "cosines",
          {"`f32`, of pairs i < j of the step's workers by replica: (0,1), (0,2), ..., (1,2), ...; "
           "NaN for a pair without a direction; above 256 workers at every 50th step",
           "cosine", "no pair of workers, or the matrix was not kept"})};
}

Column<WorkerStepRow> reduced_fingerprint_column() {
  using Row = WorkerStepRow;
  return {
      .name = "reduced_fingerprint",
      .type = Type::kInteger,
      .nullable = true,
      .text = {"of the reduced gradient", "", "it was not read at this step"},
      .bind =
          [](Statement& row, int at, const Row& w) {
            if (w.reduced_fingerprint != 0 || !std::isnan(w.reduced_norm)) {
              row.bind(at, w.reduced_fingerprint);
            }
          },
      .read = [](const Statement& row, int at, Row& w) { w.reduced_fingerprint = row.integer(at); },
      .shown = Display::kHex};
}

Column<WorkerStepRow> states_column() {
  using Row = WorkerStepRow;
  return {
      .name = "states",
      .type = Type::kBlob,
      .nullable = true,
      .text = {"`u64` triples group, kind and shard, value: kind in the low byte (1 parameters, 2 "
               "buffers, 3 optimiser state, 4 what the program watches, 5 frozen parameters), the "
               "shard above it, 0 for the whole; empty: the worker sent none although another did",
               "", "those of the row of the step with the lowest `replica`"},
      .bind =
          [](Statement& row, int at, const Row& w) {
            if (!w.shares_states) StateCodec::bind(row, at, w.states);
          },
      .read =
          [](const Statement& row, int at, Row& w) {
            w.shares_states = row.type(at) == SQLITE_NULL;
            w.states = StateCodec::read(row, at);
          }};
}

Columns<WorkerStepRow> gradient_columns() {
  using Row = WorkerStepRow;
  return {
      column<Row, &Row::step_id>("step_id", {"`step.id`"}).hidden(),
      rank_column<Row, &Row::rank>(),
      replica_column<Row, &Row::replica>(),
      column<Row, &Row::loss>("loss", {"weighted mean over its micro-batches", kLossUnit,
                                       "none was reported, or it is NaN"}),
      column<Row, &Row::weight>("weight", {"sum of the micro-batches' weights", "", "never"}),
      column<Row, &Row::tokens>("tokens", {"target tokens; 0 if unknown", "tokens"}),
      column<Row, &Row::micro_batches>("micro_batches",
                                       {"backward passes that went into the step"}),
      coded_column<ReducedCodec, Row, &Row::number, &StepNumber::window>(
          "reduced", {"1: a backward pass that synchronises ended the step; 0: an optimiser step "
                      "took gradients that were not reduced"}),
      column<Row, &Row::number, &StepNumber::unreduced>(
          "unreduced_steps", {"its steps before this one that were not reduced", "steps"}),
      enumeration<records::kStepUses, Row, &Row::use>(
          "use", {"what became of the gradient before the next forward pass: an optimiser step "
                  "used it, it was zeroed unused, or it was kept"}),
      column<Row, &Row::grad_norm>("grad_norm", {"L2 norm of its own gradient", kGradientUnit,
                                                 "an element is NaN, or none was read"}),
      column<Row, &Row::grad_max>(
          "grad_max", {"largest absolute value of a finite element", kGradientUnit, "never"}),
      column<Row, &Row::nonfinite>("nonfinite", {"NaN and Inf elements", "elements"}),
      column<Row, &Row::loss_nonfinite>("loss_nonfinite",
                                        {"1: a loss was reported and it is NaN or Inf"}),
      column<Row, &Row::cosine_to_others>(
          "cosine_to_others",
          {"mean cosine with the other workers", "cosine", "it or all others have no direction"}),
      column<Row, &Row::reduced_norm>(
          "reduced_norm", {"norm of the reduced gradient as this worker read it", kGradientUnit,
                           "it was not read at this step"}),
      column<Row, &Row::optimizer_step>("optimizer_step",
                                        {"optimiser steps it had finished", "steps"}),
      column<Row, &Row::dropped>("dropped", {"packets it could not send so far", "packets"}),
      column<Row, &Row::skipped_parameters>("skipped_parameters", {"gradients that were not read"}),
      column<Row, &Row::fingerprint>("fingerprint", {"of its own gradient"}).hex()};
}

template <Phase P>
Column<WorkerStepRow> phase_column(const char* name, std::string_view meaning) {
  using Row = WorkerStepRow;
  return {.name = name,
          .type = Type::kReal,
          .nullable = true,
          .text = {meaning, "s", "times are not known, as of the first step"},
          .bind = [](Statement& row, int at, const Row& w) { row.bind(at, w.times.of(P)); },
          .read = [](const Statement& row, int at, Row& w) { w.times.of(P) = row.number(at); }};
}

Columns<WorkerStepRow> time_columns() {
  using Row = WorkerStepRow;
  return {
      phase_column<Phase::kData>(
          "time_data",
          "from the end of the step before to its first forward pass ([time.md]"
          "(time.md))"),
      phase_column<Phase::kForward>("time_forward", "in forward passes and losses"),
      phase_column<Phase::kBackward>("time_backward",
                                     "in backward passes, up to its last own gradient"),
      phase_column<Phase::kOptimizer>("time_optimizer", "in the optimiser's step"),
      phase_column<Phase::kRest>("time_rest", "between these, evaluation and checkpoints too"),
      phase_column<Phase::kReduction>("time_reduction",
                                      "waiting in reductions and other collectives"),
      column<Row, &Row::times, &StepTimes::processor>(
          "time_processor", {"that its thread was on a processor", "s", "not known"}),
      column<Row, &Row::times, &StepTimes::queued>(
          "time_queued",
          {"that its thread could run and had no processor", "s", "the system does not tell"}),
      column<Row, &Row::times, &StepTimes::on_device>("time_on_device",
                                                      {"1: times are those of a device's clock"})
          .hidden(),
      coded_column<MicroTimesCodec, Row, &Row::times, &StepTimes::micro>(
          "micro_times", {"`f32` triples data, forward, backward, of the first 64 micro-batches",
                          "s", "fewer than two micro-batches, or times not known"})};
}

Columns<WorkerStepRow> data_columns() {
  using Row = WorkerStepRow;
  return {
      coded_column<CountCodec, Row, &Row::samples, &Samples::rows>(
          "rows", {"samples in the step's micro-batches", "samples", "they are not known"})
          .hidden(),
      column<Row, &Row::samples, &Samples::thinned>(
          "thinned", {"m: samples whose row hash 2^m does not divide were left out"})
          .hidden(),
      coded_column<MicroBatchCodec, Row, &Row::micro>(
          "micro", {"`f64` triples loss, weight, tokens, one for each micro-batch", "",
                    "fewer than two micro-batches: the columns say the same"}),
      column<Row, &Row::samples, &Samples::hashes>(
          "samples",
          {"`u64`: a keyed hash of each row hash that was sent, in the order of the rows, see Salt",
           "", "they are not known"}),
      column<Row, &Row::indices>("indices", {"`u64`: positions of samples in the data set as the "
                                             "sampler drew them, at most the first 4,096",
                                             "", "the sampler is not known"})};
}

}  // namespace

const Table<SegmentRow>& segment_table() {
  using Row = SegmentRow;
  static const Table<Row> table = {
      "segment",
      "A row for each recording into the folder.",
      {column<Row, &Row::segment>("segment", {"1, 2, ...; the primary key"}),
       column<Row, &Row::run>(
           "run", {"16 hexadecimal digits, drawn at random for this segment; packets carry it"}),
       column<Row, &Row::started_utc>("started_utc",
                                      {"when the segment began, as `2026-01-31T23:59:59Z`"}),
       column<Row, &Row::presum_version>("presum_version", {"version of the writer"}),
       column<Row, &Row::closed>("closed", {"1: ended in order"}),
       column<Row, &Row::salt>("salt", {"16 hexadecimal digits: the name of the salt, see Salt"}),
       column<Row, &Row::preflight_exit_code>("preflight_exit_code",
                                              {"what a preflight ended with: 0 fine, 1 findings at "
                                               "or above warning, 2 could not judge",
                                               "", "no preflight ended it"}),
       column<Row, &Row::packets, &PacketCounts::damaged>("damaged",
                                                          {"packets that were none, so far"}),
       column<Row, &Row::packets, &PacketCounts::foreign>("foreign_packets",
                                                          {"packets of another run or segment"}),
       column<Row, &Row::packets, &PacketCounts::duplicate>(
           "duplicate", {"packets of a worker's step that was already there"}),
       column<Row, &Row::packets, &PacketCounts::late>(
           "late", {"packets of steps that were already closed"}),
       column<Row, &Row::incomplete>("incomplete",
                                     {"why the record lacks steps, or workers in them; empty where "
                                      "nothing is known to be lacking"}),
       column<Row, &Row::incomplete_after>("incomplete_after",
                                           {"the last step that was written before", "step",
                                            "there was none, or nothing is lacking"})},
      "PRIMARY KEY (segment))"};
  return table;
}

const Table<WorkerRow>& worker_table() {
  using Row = WorkerRow;
  static const Table<Row> table = {
      "worker", "A row for each worker that said hello.",
      with_model<Row>({
          replica_column<Row, &Row::replica>(),
          column<Row, &Row::replicas>("replicas", {"data-parallel world size"}),
          rank_column<Row, &Row::rank>(),
          column<Row, &Row::host>("host", {"host name"}),
      }),
      "PRIMARY KEY (segment, module, shard, replica)) WITHOUT ROWID"};
  return table;
}

const Table<Fact>& fact_table() {
  static const Table<Fact> table = {
      "fact",
      "What workers said about themselves, such as `torch` or `device`.",
      {column<Fact, &Fact::segment>("segment", kSegmentText),
       column<Fact, &Fact::module>("module", kModuleText), rank_column<Fact, &Fact::rank>(),
       column<Fact, &Fact::key>("key", {"name of the fact"}),
       column<Fact, &Fact::value>("value", {"value of the fact"})},
      "PRIMARY KEY (segment, module, rank, key)) WITHOUT ROWID"};
  return table;
}

const Table<GroupInfo>& group_table() {
  using Row = GroupInfo;
  static const Table<Row> table = {
      "group_name", "Groups of parameters.",
      with_model<Row>({
          column<Row, &Row::id>("id", {"name hash of the group ([packet_format.md]"
                                       "(packet_format.md))"}),
          column<Row, &Row::name>("name", {"by default the layer"}),
          column<Row, &Row::elements>("elements", {"of all parameters in the group", "elements"}),
          column<Row, &Row::position>(
              "position",
              {"place among the model's groups, in the order of its parameters, from 0; "
               "those without gradients come last"}),
      }),
      "PRIMARY KEY (segment, module, shard, id)) WITHOUT ROWID"};
  return table;
}

const Table<StepRow>& step_table() {
  using Row = StepRow;
  static const Table<Row> table = {
      "step", "A row for each step of each model: metrics over its workers.",
      join<Row>(
          {{coded_column<CountCodec, Row, &Row::id>("id",
                                                    {"what other tables refer to", "", "never"})
                .hidden(),
            column<Row, &Row::step>("step", {"synchronising backward passes before this one"})},
           model_columns<Row>(),
           dispersion_columns(),
           sum_columns()}),
      "PRIMARY KEY (id), UNIQUE (segment, module, shard, step))"};
  return table;
}

const Table<WorkerStepRow>& worker_step_table() {
  static const Table<WorkerStepRow> table = {
      "worker_step", "A row for each worker whose packet of the step arrived.",
      join<WorkerStepRow>({gradient_columns(),
                           {reduced_fingerprint_column()},
                           time_columns(),
                           data_columns(),
                           {states_column()}}),
      "PRIMARY KEY (step_id, replica)) WITHOUT ROWID"};
  return table;
}

const Table<GroupStepRow>& group_step_table() {
  using Row = GroupStepRow;
  static const Table<Row> table = {
      "group_step",
      "A row for each group of a step.",
      {column<Row, &Row::step_id>("step_id", {"`step.id`"}).hidden(),
       column<Row, &Row::id>("group_id", {"`group_name.id`"}).hidden(),
       column<Row, &Row::norm_mean>(
           "norm_mean",
           {"mean over workers with a finite norm in this group", kGradientUnit, "no finite norm"}),
       column<Row, &Row::norm_std>(
           "norm_std",
           {"population standard deviation over workers with a finite norm in this group",
            kGradientUnit, "no finite norm"}),
       column<Row, &Row::nonfinite>("nonfinite",
                                    {"NaN and Inf elements, summed over workers", "elements"}),
       column<Row, &Row::norms>("norms",
                                {"`f32`: one norm for each row of `worker_step` of the step, by "
                                 "replica; NaN for a worker that did not report the group",
                                 kGradientUnit, "never"}),
       column<Row, &Row::maxima>(
           "maxima", {"`f32`: largest absolute finite value, likewise", kGradientUnit, "never"}),
       column<Row, &Row::fingerprints>(
           "fingerprints", {"`u32`: low half of the fingerprint of each worker's own gradient of "
                            "the group, likewise; 0 where nothing was reported",
                            "", "they were not kept"})},
      "PRIMARY KEY (step_id, group_id)) WITHOUT ROWID"};
  return table;
}

const Table<MissingRow>& missing_table() {
  using Row = MissingRow;
  static const Table<Row> table = {
      "missing_worker",
      "A row for each worker that is known to be missing from a step.",
      {column<Row, &Row::step_id>("step_id", {"`step.id`"}).hidden(),
       column<Row, &Row::replica>(
           "replica",
           {"a replica that is missing from the step (findings.md says when); one that is "
            "neither here nor in `worker_step` may have had its packet on the way when "
            "the step was given up"})},
      "PRIMARY KEY (step_id, replica)) WITHOUT ROWID"};
  return table;
}

const Table<NoteRow>& note_table() {
  using Row = NoteRow;
  static const Table<Row> table = {
      "note",
      "What went wrong with the collection itself, in words.",
      {coded_column<CountCodec, Row, &Row::id>("id", {"order of arrival", "", "never"}).hidden(),
       column<Row, &Row::segment>("segment", kSegmentText), rank_column<Row, &Row::rank>(),
       column<Row, &Row::text>("text", {"one line by convention; not trusted, so clean it before a "
                                        "terminal shows it"})},
      "PRIMARY KEY (id))"};
  return table;
}

const Table<FingerprintRow>& fingerprint_table() {
  using Row = FingerprintRow;
  static const Table<Row> table = {
      "fingerprint",
      "What workers are compared by besides their gradients. A row for each value that a worker "
      "had "
      "not had at the step before; until its next row of that kind it holds it.",
      with_model<Row>({
          replica_column<Row, &Row::replica>(),
          column<Row, &Row::value, &FingerprintValue::kind>("kind", {"see Kinds of fingerprints"}),
          column<Row, &Row::step>("step", {"from this step on"}),
          column<Row, &Row::value, &FingerprintValue::value>(
              "value",
              {"64 bits; of kinds 70 (`batch`) and 72 (`labels`) a keyed hash of them, see Salt"}),
      }),
      "PRIMARY KEY (segment, module, shard, replica, kind, step)) WITHOUT ROWID"};
  return table;
}

const Table<AuditedStep>& audit_table() {
  using Row = AuditedStep;
  static const Table<Row> table = {
      "audit",
      "What workers found of the reduction of a step ([audit.md](audit.md)).",
      {column<Row, &Row::key, &StepKey::model, &ModelKey::segment>("segment", kSegmentText),
       column<Row, &Row::key, &StepKey::model, &ModelKey::module>("module", kModuleText),
       column<Row, &Row::key, &StepKey::model, &ModelKey::shard>("shard", kShardText),
       column<Row, &Row::key, &StepKey::step>("step", {"synchronising backward passes before it"}),
       replica_column<Row, &Row::replica>(),
       audit_names<records::kFormats, &AuditRecord::gradient>("gradient",
                                                              {"format of the gradients"}),
       audit_names<records::kFormats, &AuditRecord::accumulation>(
           "accumulation", {"narrowest format that partial sums were rounded to"}),
       audit_names<records::kOrders, &AuditRecord::order>(
           "order", {"in which the workers' values were added"}),
       audit_names<records::kDivisions, &AuditRecord::division>("division",
                                                                {"how the sum became a mean"}),
       audit_column<&AuditRecord::elements>("elements", {"elements that were audited", "elements"}),
       audit_column<&AuditRecord::differing>(
           "differing", {"audited elements that are not the correctly rounded value", "elements"}),
       audit_column<&AuditRecord::wrong>(
           "wrong", {"audited elements further off than rounding explains", "elements"}),
       audit_column<&AuditRecord::relative_l2>(
           "relative_l2",
           {"norm of the error over that of the exact value", "ratio", "that is zero"}),
       audit_column<&AuditRecord::error_max>(
           "error_max", {"largest error of an element over the sum of its absolute values", "ratio",
                         "all are zero"}),
       ulps_column<&UlpPercentiles::p50>("ulps_p50",
                                         "distance from the correctly rounded value, in units in "
                                         "the last place of the gradients' format, that half of "
                                         "the elements do not exceed"),
       ulps_column<&UlpPercentiles::p90>("ulps_p90",
                                         "distance from the correctly rounded value, in units in "
                                         "the last place, that 90 % of the elements do not exceed"),
       ulps_column<&UlpPercentiles::p99>("ulps_p99",
                                         "distance from the correctly rounded value, in units in "
                                         "the last place, that 99 % of the elements do not exceed"),
       ulps_column<&UlpPercentiles::max>(
           "ulps_max",
           "largest distance from the correctly rounded value, in units in the last place"),
       audit_names<records::kRepeats, &AuditRecord::repeat>(
           "repeat", {"whether the same reduction of the same values gave the same bits twice"})},
      "PRIMARY KEY (segment, module, shard, step, replica)) WITHOUT ROWID"};
  return table;
}

const Table<FinalStateRecord>& final_state_table() {
  using Row = FinalStateRecord;
  static const Table<Row> table = {
      "final_state",
      "A worker's states after its last step, from its final note. No row for a worker that sent "
      "none.",
      with_model<Row>({
          replica_column<Row, &Row::replica>(),
          column<Row, &Row::optimizer_steps>(
              "optimizer_steps",
              {"optimiser steps it had finished; states of equal counts can be compared", "steps"}),
          coded_column<StateCodec, Row, &Row::states>("states",
                                                      {"as in `worker_step`, of all parameters"}),
      }),
      "PRIMARY KEY (segment, module, shard, replica)) WITHOUT ROWID"};
  return table;
}

const Table<MomentRecord>& moment_table() {
  using Row = MomentRecord;
  static const Table<Row> table = {
      "moment",
      "Where a worker's training stood: before its first forward pass, and when the program took "
      "the optimiser's state, the last eight times. What a run that continues is held against.",
      with_model<Row>({
          replica_column<Row, &Row::replica>(),
          column<Row, &Row::kind>("kind", {"1 begun, 2 saved"}),
          column<Row, &Row::step>("step", {"the step to come"}),
          column<Row, &Row::number>("number", {"of those of its kind and step, from 0"}),
          column<Row, &Row::optimizer_steps>(
              "optimizer_steps",
              {"steps as the optimiser itself counts them", "steps", "it does not count them"}),
          column<Row, &Row::learning_rate>("learning_rate",
                                           {"of the first parameter group", "", "it has none"}),
          coded_column<GeneratorCodec, Row, &Row::generators>(
              "generators", {"`u64` pairs kind, value: fingerprints of the random generators", "",
                             "they were not read"}),
          coded_column<MomentGroupCodec, Row, &Row::groups>(
              "groups", {"of each group eight `u64`: id, elements, bits of the sum of squares, "
                         "hash of the parameters, hash of the optimiser's state, shard, formats, "
                         "number of values n; then n `f32` of its sketch, filled up to whole words",
                         "", "another worker tells the same"}),
      }),
      "PRIMARY KEY (segment, module, shard, replica, kind, step, number)) WITHOUT ROWID"};
  return table;
}

const Table<FindingRow>& finding_table() {
  using Row = FindingRow;
  static const Table<Row> table = {
      "finding",
      "What is wrong with the run, as of the last commit: rows of a segment's model are replaced "
      "while it is recorded. One cause is one finding.",
      with_model<Row>({
          column<Row, &Row::id>(
              "id", {"place among the findings of the model, from 0; it may change from commit to "
                     "commit"})
              .hidden(),
          column<Row, &Row::check>("check_id", {"such as `duplicate-data`"}),
          coded_column<TextsCodec, Row, &Row::also>("also",
                                                    {"list of the checks that it absorbed"}),
          enumeration<records::kSeverities, Row, &Row::severity>("severity", {"how bad it is"}),
          coded_column<NumbersCodec, Row, &Row::ranks>(
              "ranks",
              {"list of global ranks, ascending: the minority, or all where there is none"}),
          coded_column<TextsCodec, Row, &Row::hosts>("hosts", {"list of the hosts of those ranks"}),
          column<Row, &Row::first_step>("first_step", {"first step that shows it", "step"}),
          column<Row, &Row::last_step>("last_step", {"last step that showed it so far", "step"}),
          column<Row, &Row::confidence>(
              "confidence", {"how sure it is that this is the cause", "0 to 1", "never"}),
          column<Row, &Row::title>("title",
                                   {"one sentence; not trusted, for it holds names from the run"}),
          coded_column<EvidenceCodec, Row, &Row::evidence>(
              "evidence", {"object of names and numbers or texts"}),
          column<Row, &Row::remedy>("remedy", {"one or two sentences"}),
          column<Row, &Row::resembles>("resembles", {"a public report of the same kind, or empty"}),
      }),
      "PRIMARY KEY (segment, module, shard, id)) WITHOUT ROWID"};
  return table;
}

const Table<CheckRow>& check_table() {
  using Row = CheckRow;
  static const Table<Row> table = {
      "check_state",
      "Every check, also those that found nothing or could not be made; replaced as findings are.",
      with_model<Row>({
          column<Row, &Row::position>("position", {"order in which checks are listed, from 0"})
              .hidden(),
          column<Row, &Row::record, &CheckRecord::check>("check_id", {"such as `duplicate-data`"}),
          enumeration<records::kCheckStates, Row, &Row::record, &CheckRecord::state>(
              "state", {"what came of it"}),
          column<Row, &Row::record, &CheckRecord::reason>(
              "reason", {"one sentence; for a passed check what it rests on"}),
      }),
      "PRIMARY KEY (segment, module, shard, position)) WITHOUT ROWID"};
  return table;
}

const Table<StallRecord>& stall_table() {
  using Row = StallRecord;
  static const Table<Row> table = {
      "stall",
      "When the job stood still ([time.md](time.md)): a row for each time, and where it changed.",
      {column<Row, &Row::segment>("segment", kSegmentText),
       column<Row, &Row::number>("number", {"of the segment's, from 1"}),
       column<Row, &Row::step>("step", {"the latest that a rank had got to", "step"}),
       column<Row, &Row::seconds>("seconds", {"that it stood still so far", "s", "never"}),
       column<Row, &Row::over>("over", {"1: it went on"}),
       column<Row, &Row::harmless>("harmless", {"1: it may well be meant, as a checkpoint is"}),
       column<Row, &Row::awaited>("awaited", {"1: somebody waited for another"}),
       column<Row, &Row::busy>("busy", {"1: who kept the others waiting worked"}),
       column<Row, &Row::sentence>("sentence",
                                   {"who was where; not trusted, for it holds names from the run"}),
       coded_column<NumbersCodec, Row, &Row::ranks>(
           "ranks", {"list of the ranks that kept others waiting; empty: not known"})},
      "PRIMARY KEY (segment, number)) WITHOUT ROWID"};
  return table;
}

const Table<StalledRankRow>& stalled_rank_table() {
  using Row = StalledRankRow;
  using Beat = Heartbeat;
  static const Table<Row> table = {
      "stalled_rank",
      "A row for each rank of a stall: what it said of itself last. Texts are not trusted.",
      {column<Row, &Row::segment>("segment", kSegmentText),
       column<Row, &Row::number>("number", {"`stall.number`"}),
       rank_column<Row, &Row::rank>(),
       column<Row, &Row::where>("place", {"where it was, as one phrase"}),
       column<Row, &Row::answers>("answers", {"1: it was heard lately"}),
       column<Row, &Row::left>("left_training", {"1: it had said goodbye"}),
       column<Row, &Row::unheard>("unheard", {"since it was heard", "s", "never"}),
       column<Row, &Row::layer>("layer", {"of the last gradient that had come; may be empty"}),
       column<Row, &Row::last, &Beat::host>("host", {"host name"}),
       column<Row, &Row::last, &Beat::still>("still", {"since its last event", "s", "never"}),
       column<Row, &Row::last, &Beat::step>("step", {"of its last event", "step"}),
       column<Row, &Row::last, &Beat::micro_batch>("micro_batch", {"of its last event, from 0"}),
       enumeration<records::kPhases, Row, &Row::last, &Beat::phase>("phase", {"of its last event"}),
       column<Row, &Row::last, &Beat::waiting>("waiting", {"1: for others, as hooks show"}),
       column<Row, &Row::last, &Beat::lock_held>("lock_held",
                                                 {"1: a call held the interpreter's lock"}),
       column<Row, &Row::last, &Beat::processor>(
           "processor", {"share of a processor that its thread used", "ratio", "not known"}),
       column<Row, &Row::last, &Beat::collective>(
           "collective", {"function of torch.distributed in which it waited; may be empty"}),
       column<Row, &Row::last, &Beat::site>("site", {"the program's innermost line"}),
       column<Row, &Row::last, &Beat::stack>("stack", {"its thread's, innermost first"}),
       column<Row, &Row::last, &Beat::recorder>(
           "recorder", {"last collectives as torch's flight recorder has them; may be empty"})},
      "PRIMARY KEY (segment, number, rank)) WITHOUT ROWID"};
  return table;
}

const Table<DetectorRow>& detector_table() {
  using Row = DetectorRow;
  static const Table<Row> table = {
      "detector_state",
      "What the detectors of a model need to go on after a restart. The bytes are theirs: no "
      "format "
      "is promised, and bytes that they do not understand make them begin anew.",
      {column<Row, &Row::module>("module", kModuleText),
       column<Row, &Row::shard>("shard", kShardText),
       column<Row, &Row::segment>("segment", {"which segment wrote it last"}),
       column<Row, &Row::state>("state", {"opaque", "", "never"})},
      "PRIMARY KEY (module, shard)) WITHOUT ROWID"};
  return table;
}

const Table<Continuation>& continuation_table() {
  using Row = Continuation;
  static const Table<Row> table = {
      "continuation",
      "How a model began in a segment after the first: a row once its first step there is judged.",
      with_model<Row>({
          column<Row, &Row::from_segment>(
              "from_segment",
              {"which segment's parameters it went on from", "", "from none that are known"}),
          column<Row, &Row::from_step>("from_step",
                                       {"the step that was to come there", "step", "likewise"}),
          column<Row, &Row::steps_before>(
              "steps_before",
              {"recorded steps of its training up to there; steps done again count once", "steps"}),
          column<Row, &Row::detector_steps>(
              "detector_steps",
              {"of these, those that its detectors know; 0: they began anew", "steps"}),
          column<Row, &Row::reason>("reason", {"why they began anew; empty where they went on"}),
      }),
      "PRIMARY KEY (segment, module, shard)) WITHOUT ROWID"};
  return table;
}

}  // namespace presum::runlog
