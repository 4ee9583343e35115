// SPDX-License-Identifier: Apache-2.0
#include "runlog/tables.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "packet/packet.h"
#include "records/names.h"

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
constexpr ColumnText kModelIndexText = {
    "data-parallel model, numbered from 0 in the order in which the aggregator first heard of "
    "each"};
constexpr ColumnText kDpGroupText = {
    "tells data-parallel groups of one model apart: the lowest of their global ranks; 0 without "
    "model parallelism"};

constexpr ColumnText kReplicaText = {"data-parallel rank"};
constexpr ColumnText kRankText = {"global rank"};

template <class Record, auto... Model>
Columns<Record> model_columns() {
  return {column<Model..., &ModelKey::segment>("segment", kSegmentText),
          column<Model..., &ModelKey::model_index>("model_index", kModelIndexText),
          column<Model..., &ModelKey::dp_group>("dp_group", kDpGroupText)};
}

template <class Record>
Columns<Record> with_model(Columns<Record> columns) {
  return join({model_columns<Record, &Record::model>(), std::move(columns)});
}

// A list in the packets' encoding. NULL means fewer than `kLeast` elements.
template <class T, std::size_t kLeast = 1>
struct PackedCodec : CellOf<Type::kBlob, true> {
  static void bind(Statement& row, int at, const std::vector<T>& values) {
    if (values.size() >= kLeast) row.bind_blob(at, packet::List<T>::encode(values));
  }
  static std::vector<T> read(const Statement& row, int at) {
    return packet::List<T>::decode(row.blob(at));
  }
};
using StateCodec = PackedCodec<StateHash, 0>;

// ---- lists and evidence as JSON. An untrusted file must not crash the reader, so anything
// malformed, of another type or nested deeper than 16 is left out.

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 16;  // presum itself writes only lists and objects of plain values

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json parse(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  Json value = Json::parse(text, shallow, false);
  return value.is_discarded() ? Json() : value;
}

template <class T>
bool is_of(const Json& item) {
  if constexpr (std::is_same_v<T, std::string>) {
    return item.is_string();
  } else {
    return item.is_number_unsigned() && item.get<std::uint64_t>() <= std::numeric_limits<T>::max();
  }
}

template <class T>
std::vector<T> list_of(const Json& items) {
  std::vector<T> out;
  for (const Json& item : items) {
    if (is_of<T>(item)) out.push_back(item.get<T>());
  }
  return out;
}

template <class T>
struct JsonListCodec : CellOf<Type::kText, false> {
  static void bind(Statement& row, int at, const std::vector<T>& list) {
    row.bind(at, std::string_view(text_of(list)));
  }
  static std::vector<T> read(const Statement& row, int at) {
    return list_of<T>(parse(row.text(at)));
  }
};
using TextsCodec = JsonListCodec<std::string>;
using NumbersCodec = JsonListCodec<std::uint32_t>;

struct EvidenceCodec : CellOf<Type::kText, false> {
  static void bind(Statement& row, int at, const std::vector<Finding::Evidence>& evidence) {
    Json all = Json::array();
    for (const Finding::Evidence& e : evidence) {
      all.push_back({{"check", e.check},
                     {"ranks", e.ranks},
                     {"sentence", e.sentence},
                     {"values", parse(e.values)}});
    }
    row.bind(at, std::string_view(text_of(all)));
  }
  static std::vector<Finding::Evidence> read(const Statement& row, int at) {
    std::vector<Finding::Evidence> out;
    for (const Json& item : parse(row.text(at))) {
      if (!item.is_object()) continue;
      const Json values = item.value("values", Json());
      out.push_back({text_in(item, "check"), list_of<std::uint32_t>(item.value("ranks", Json())),
                     text_in(item, "sentence"), values.is_object() ? text_of(values) : "{}"});
    }
    return out;
  }
  static std::string text_in(const Json& item, const char* name) {
    const auto found = item.find(name);
    return found != item.end() && found->is_string() ? found->get<std::string>() : "";
  }
};

constexpr std::string_view kNoTimes = "times are not known, as of the first step";

struct SecondsOf {
  Phase phase;
  constexpr auto& operator()(auto& times) const {
    return times.seconds[static_cast<std::size_t>(phase)];
  }
};

// Whether the step was reduced; the window number is not kept.
struct ReducedCodec : CellOf<Type::kInteger, false> {
  static void bind(Statement& row, int at, std::uint32_t window) {
    row.bind(at, std::uint64_t{window == StepNumber::kReduced});
  }
  static std::uint32_t read(const Statement& row, int at) {
    return row.integer(at) != 0 ? StepNumber::kReduced : 0;
  }
};

// NULL means 0.
struct CountCodec : CellOf<Type::kInteger, true> {
  static void bind(Statement& row, int at, std::uint64_t value) {
    if (value > 0) row.bind(at, value);
  }
  static std::uint64_t read(const Statement& row, int at) { return row.integer(at); }
};

// A distance in units in the last place, if the audit has one.
template <auto Member>
Column<AuditedStep> ulps_column(const char* name, std::string_view meaning) {
  return {{.name = name, .nullable = true, .text = {meaning, "ulp", "no element is finite"}},
          [](Statement& row, int at, const AuditedStep& a) {
            if (a.audit.ulps) row.bind(at, (*a.audit.ulps).*Member);
          },
          [](const Statement& row, int at, AuditedStep& a) {
            if (row.type(at) == SQLITE_NULL) return;
            if (!a.audit.ulps) a.audit.ulps.emplace();
            (*a.audit.ulps).*Member = row.integer(at);
          }};
}

Column<WorkerStepRow> reduced_fingerprint_column() {
  using Row = WorkerStepRow;
  return {{.name = "reduced_fingerprint",
           .nullable = true,
           .text = {"of the reduced gradient", "", "it was not read at this step"},
           .shown = Display::kHex},
          [](Statement& row, int at, const Row& w) {
            const bool read = w.reduced_fingerprint != 0 || !std::isnan(w.reduced_norm);
            if (read) row.bind(at, w.reduced_fingerprint);
          },
          [](const Statement& row, int at, Row& w) { w.reduced_fingerprint = row.integer(at); }};
}

Column<WorkerStepRow> states_column() {
  using Row = WorkerStepRow;
  return {{.name = "states",
           .type = Type::kBlob,
           .nullable = true,
           .text = {"of each group and kind a `u64` group, a `u32` of kind and shard and a `u64` "
                    "value: kind in the low byte (1 parameters, 2 buffers, 3 optimizer state, 4 "
                    "watched, 5 frozen parameters, 6 parameters outside the model), the shard "
                    "above it, 0 for the whole; empty: the rank sent none although another did",
                    "", "those of the row of the step with the lowest `replica`"}},
          [](Statement& row, int at, const Row& w) {
            if (!w.shares_states) StateCodec::bind(row, at, w.states);
          },
          [](const Statement& row, int at, Row& w) {
            w.shares_states = row.type(at) == SQLITE_NULL;
            w.states = StateCodec::read(row, at);
          }};
}

}  // namespace

const Table<SegmentRow> kSegmentTable = {
    "segment",
    "A row for each recording into the folder.",
    {column<&SegmentRow::segment>("segment", {"1, 2, ...; the primary key"}),
     column<&SegmentRow::run>(
         "run", {"16 hexadecimal digits, drawn at random for this segment; packets carry it"}),
     column<&SegmentRow::started_utc>("started_utc",
                                      {"when the segment began, as `2026-01-31T23:59:59Z`"}),
     column<&SegmentRow::presum_version>("presum_version", {"version of the writer"}),
     column<&SegmentRow::closed>("closed", {"1: ended in order"}),
     column<&SegmentRow::salt>("salt", {"16 hexadecimal digits: the name of the salt, see Salt"}),
     column<&SegmentRow::preflight_exit_code>("preflight_exit_code",
                                              {"what a preflight ended with: 0 fine, 1 findings at "
                                               "or above warning, 2 could not judge",
                                               "", "no preflight ended it"}),
     column<&SegmentRow::packets, &PacketCounts::damaged>("damaged",
                                                          {"packets that were none, so far"}),
     column<&SegmentRow::packets, &PacketCounts::foreign>("foreign_packets",
                                                          {"packets of another run or segment"}),
     column<&SegmentRow::packets, &PacketCounts::duplicate>(
         "duplicate", {"packets of a rank's step that was already there"}),
     column<&SegmentRow::packets, &PacketCounts::late>(
         "late", {"packets of steps that were already closed"}),
     column<&SegmentRow::incomplete>("incomplete",
                                     {"why the record lacks steps, or ranks in them; empty where "
                                      "nothing is known to be lacking"}),
     column<&SegmentRow::incomplete_after>("incomplete_after",
                                           {"the last step that was written before", "step",
                                            "there was none, or nothing is lacking"})},
    ", PRIMARY KEY (segment))"};

const Table<WorkerRow> kWorkerTable = {
    "worker", "A row for each rank that said hello.",
    with_model<WorkerRow>({
        column<&WorkerRow::replica>("replica", kReplicaText),
        column<&WorkerRow::replicas>("replicas", {"data-parallel world size"}),
        column<&WorkerRow::rank>("rank", kRankText),
        column<&WorkerRow::host>("host", {"host name"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, replica)) WITHOUT ROWID"};

const Table<Fact> kFactTable = {
    "fact",
    "What ranks said about themselves, such as `torch` or `device`.",
    {column<&Fact::segment>("segment", kSegmentText),
     column<&Fact::model_index>("model_index", kModelIndexText),
     column<&Fact::rank>("rank", kRankText), column<&Fact::key>("key", {"name of the fact"}),
     column<&Fact::value>("value", {"value of the fact"})},
    ", PRIMARY KEY (segment, model_index, rank, key)) WITHOUT ROWID"};

const Table<GroupInfo> kGroupTable = {
    "group_name", "Groups of parameters.",
    with_model<GroupInfo>({
        column<&GroupInfo::id>("id", {"name hash of the group ([packet_format.md]"
                                      "(packet_format.md))"}),
        column<&GroupInfo::name>("name", {"by default the layer"}),
        column<&GroupInfo::elements>("elements", {"of all parameters in the group", "elements"}),
        column<&GroupInfo::position>(
            "position", {"place among the model's groups, in the order of its parameters, from 0; "
                         "those without gradients come last"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, id)) WITHOUT ROWID"};

const Table<StepRow> kStepTable = {
    "step", "A row for each step of each model: metrics over its ranks.",
    join<StepRow>(
        {{coded_column<CountCodec, &StepRow::id>("id", {"what other tables refer to", "", "never"})
              .hidden(),
          column<&StepRow::step>("step", {"synchronizing backward passes before this one"})},
         model_columns<StepRow, &StepRow::model>(),
         {column<&StepRow::workers_expected>("workers_expected",
                                             {"data-parallel world size", "ranks"}),
          column<&StepRow::workers_seen>("workers", {"ranks whose packet arrived", "ranks"}),
          column<&StepRow::workers_left_out>(
              "workers_left_out",
              {"of an unreduced step: ranks that continued without it (docs/step.md)", "ranks"}),
          column<&StepRow::loss_mean>(
              "loss_mean", {"unweighted mean over ranks with a finite loss", kLossUnit, "no loss"}),
          column<&StepRow::loss_std>(
              "loss_std", {"population standard deviation over ranks with a finite loss", kLossUnit,
                           "no loss"}),
          column<&StepRow::loss_range>(
              "loss_range", {"largest minus smallest finite loss of a rank", kLossUnit, "no loss"}),
          column<&StepRow::grad_norm_mean>("grad_norm_mean", {"mean over ranks with a finite norm",
                                                              kGradientUnit, "no finite norm"}),
          column<&StepRow::grad_norm_std>(
              "grad_norm_std", {"population standard deviation over ranks with a finite norm",
                                kGradientUnit, "no finite norm"}),
          column<&StepRow::grad_norm_cv>("grad_norm_cv", {"grad_norm_std / grad_norm_mean", "ratio",
                                                          "the mean is 0 or not known"}),
          column<&StepRow::cosine_mean>(
              "cosine_mean", {"mean over pairs of ranks", "cosine", "fewer than two directions"}),
          column<&StepRow::cosine_low>("cosine_low",
                                       {"lower end of the 95% interval of cosine_mean", "cosine",
                                        "fewer than two directions"}),
          column<&StepRow::cosine_high>("cosine_high",
                                        {"upper end of the 95% interval of cosine_mean", "cosine",
                                         "fewer than two directions"}),
          enumeration<records::kCosineSources, &StepRow::cosine_source>(
              "cosine_source", {"from what the cosines follow, from the least to the most exact"}),
          column<&StepRow::consistency>(
              "consistency", {"norm-weighted mean cosine, exact", "cosine",
                              "the reduced gradient's norm and the Gram matrix are not known"}),
          column<&StepRow::reduced_norm>(
              "reduced_norm", {"norm of the reduced gradient, where all that read it hold the same "
                               "bits, or from the ranks' dot products with it",
                               kGradientUnit, "not read at this step, or ranks disagree"}),
          column<&StepRow::reduced_disagrees>("reduced_disagrees",
                                              {"1: ranks hold different reduced gradients, or it "
                                               "is not the mean of what went in"}),
          column<&StepRow::signal>("signal", {"estimate of the squared norm of the true gradient",
                                              kSquareUnit, "too few ranks"}),
          column<&StepRow::noise>(
              "noise", {"estimate of the variance of one rank's gradient, summed over elements",
                        kSquareUnit, "too few ranks"}),
          column<&StepRow::noise_scale>(
              "noise_scale",
              {"running noise / running signal", "rank batches", "the signal is not positive"}),
          column<&StepRow::effective_workers>("effective_workers",
                                              {"1 to the number of ranks", "ranks", "no cosines"}),
          column<&StepRow::tokens_cv>("tokens_cv", {"coefficient of variation of the token counts",
                                                    "ratio", "a count is not known"}),
          column<&StepRow::distinct_gradients>(
              "distinct_gradients", {"different fingerprints among gradients that are not zero"}),
          column<&StepRow::sketch_size>("sketch_size",
                                        {"values of the sketches in use; 0 without"}),
          column<&StepRow::mean_norm>(
              "mean_norm", {"norm of the mean of the ranks' own gradients, from their "
                            "sketches or their Gram matrix",
                            kGradientUnit, "neither sketches nor the Gram matrix are known"}),
          column<&StepRow::mean_norm_error>("mean_norm_error",
                                            {"standard error of mean_norm: 0 from the Gram matrix",
                                             kGradientUnit, "`mean_norm` is 0 or not known"}),
          column<&StepRow::cosines>(
              "cosines",
              {"`f32`, of pairs i < j of the step's ranks by replica: (0,1), (0,2), ..., (1,2), "
               "...; NaN for a pair without a direction; above 256 ranks at every 50th step",
               "cosine", "no pair of ranks, or the matrix was not kept"})}}),
    ", PRIMARY KEY (id), UNIQUE (segment, model_index, dp_group, step))"};

const Table<WorkerStepRow> kWorkerStepTable = {
    "worker_step",
    "A row for each rank whose packet of the step arrived.",
    {column<&WorkerStepRow::step_id>("step_id", {"`step.id`"}).hidden(),
     column<&WorkerStepRow::rank>("rank", kRankText),
     column<&WorkerStepRow::replica>("replica", kReplicaText),
     column<&WorkerStepRow::loss>("loss", {"weighted mean over its micro-batches", kLossUnit,
                                           "none was reported, or it is NaN"}),
     column<&WorkerStepRow::weight>("weight", {"sum of the micro-batches' weights", "", "never"}),
     column<&WorkerStepRow::tokens>("tokens", {"target tokens; 0 if unknown", "tokens"}),
     column<&WorkerStepRow::targets>(
         "targets", {"targets of the loss function: the tokens, or the elements of a loss without "
                     "tokens; 0 if unknown",
                     "targets"}),
     column<&WorkerStepRow::token_weight>(
         "token_weight", {"what one of these weighs in the rank's loss, before the reduction", "",
                          "the loss function is unknown"}),
     column<&WorkerStepRow::micro_batches>("micro_batches",
                                           {"backward passes that went into the step"}),
     coded_column<ReducedCodec, &WorkerStepRow::number, &StepNumber::window>(
         "reduced", {"1: a backward pass that synchronizes ended the step; 0: an optimizer step "
                     "took gradients that were not reduced"}),
     column<&WorkerStepRow::number, &StepNumber::unreduced>(
         "unreduced_steps", {"its steps before this one that were not reduced", "steps"}),
     enumeration<records::kStepUses, &WorkerStepRow::use>(
         "use", {"what became of the gradient before the next forward pass: an optimizer step "
                 "used it, it was zeroed unused, or it was kept"}),
     column<&WorkerStepRow::grad_norm>("grad_norm", {"L2 norm of its own gradient", kGradientUnit,
                                                     "an element is NaN, or none was read"}),
     column<&WorkerStepRow::grad_max>(
         "grad_max", {"largest absolute value of a finite element", kGradientUnit, "never"}),
     column<&WorkerStepRow::nonfinite>("nonfinite", {"NaN and Inf elements", "elements"}),
     column<&WorkerStepRow::loss_nonfinite>("loss_nonfinite",
                                            {"1: a loss was reported and it is NaN or Inf"}),
     column<&WorkerStepRow::cosine_to_others>(
         "cosine_to_others",
         {"mean cosine with the other ranks", "cosine", "it or all others have no direction"}),
     column<&WorkerStepRow::reduced_norm>(
         "reduced_norm", {"norm of the reduced gradient as this rank read it", kGradientUnit,
                          "it was not read at this step"}),
     column<&WorkerStepRow::optimizer_step>("optimizer_step",
                                            {"optimizer steps it had finished", "steps"}),
     column<&WorkerStepRow::dropped>("dropped", {"packets it could not send so far", "packets"}),
     column<&WorkerStepRow::skipped_parameters>("skipped_parameters",
                                                {"gradients that were not read"}),
     column<&WorkerStepRow::fingerprint>("fingerprint", {"of its own gradient"}).hex(),
     reduced_fingerprint_column(),
     column<&WorkerStepRow::times, SecondsOf{Phase::kData}>(
         "time_data", {"from the end of the step before to its first forward pass ([time.md]"
                       "(time.md))",
                       "s", kNoTimes}),
     column<&WorkerStepRow::times, SecondsOf{Phase::kForward}>(
         "time_forward", {"in forward passes and losses", "s", kNoTimes}),
     column<&WorkerStepRow::times, SecondsOf{Phase::kBackward}>(
         "time_backward", {"in backward passes, up to its last own gradient", "s", kNoTimes}),
     column<&WorkerStepRow::times, SecondsOf{Phase::kOptimizer}>(
         "time_optimizer", {"in the optimizer's step", "s", kNoTimes}),
     column<&WorkerStepRow::times, SecondsOf{Phase::kRest}>(
         "time_rest", {"between these, evaluation and checkpoints too", "s", kNoTimes}),
     column<&WorkerStepRow::times, SecondsOf{Phase::kReduction}>(
         "time_reduction", {"waiting in reductions and other collectives", "s", kNoTimes}),
     column<&WorkerStepRow::times, &StepTimes::processor>(
         "time_processor", {"that its thread was on a processor", "s", "not known"}),
     column<&WorkerStepRow::times, &StepTimes::queued>(
         "time_queued",
         {"that its thread could run and had no processor", "s", "the system does not tell"}),
     column<&WorkerStepRow::times, &StepTimes::on_device>(
         "time_on_device", {"1: times are those of a device's clock"})
         .hidden(),
     coded_column<PackedCodec<MicroBatchTimes>, &WorkerStepRow::times, &StepTimes::micro>(
         "micro_times", {"`f32` triples data, forward, backward, of the first 64 micro-batches",
                         "s", "fewer than two micro-batches, or times not known"}),
     coded_column<CountCodec, &WorkerStepRow::samples, &Samples::rows>(
         "rows", {"samples in the step's micro-batches", "samples", "they are not known"})
         .hidden(),
     column<&WorkerStepRow::samples, &Samples::thinned>(
         "thinned", {"m: samples whose row hash 2^m does not divide were left out"})
         .hidden(),
     coded_column<PackedCodec<MicroBatch, 2>, &WorkerStepRow::micro>(
         "micro",
         {"of each micro-batch `f64` loss and weight, `u64` tokens and targets, `f64` token "
          "weight, `u32` 1 if the loss is the tensor that the rank differentiates",
          "", "fewer than two micro-batches: the columns say the same"}),
     column<&WorkerStepRow::samples, &Samples::hashes>(
         "samples",
         {"`u64`: a keyed hash of each row hash that was sent, in the order of the rows, see Salt",
          "", "they are not known"}),
     column<&WorkerStepRow::indices>("indices",
                                     {"`u64`: positions of samples in the dataset as the "
                                      "sampler drew them, at most the first 4,096",
                                      "", "the sampler is not known"}),
     states_column()},
    ", PRIMARY KEY (step_id, replica)) WITHOUT ROWID"};

const Table<GroupStepRow> kGroupStepTable = {
    "group_step",
    "A row for each group of a step.",
    {column<&GroupStepRow::step_id>("step_id", {"`step.id`"}).hidden(),
     column<&GroupStepRow::id>("group_id", {"`group_name.id`"}).hidden(),
     column<&GroupStepRow::norm_mean>(
         "norm_mean",
         {"mean over ranks with a finite norm in this group", kGradientUnit, "no finite norm"}),
     column<&GroupStepRow::norm_std>(
         "norm_std", {"population standard deviation over ranks with a finite norm in this group",
                      kGradientUnit, "no finite norm"}),
     column<&GroupStepRow::nonfinite>("nonfinite",
                                      {"NaN and Inf elements, summed over ranks", "elements"}),
     column<&GroupStepRow::norms>("norms",
                                  {"`f32`: one norm for each row of `worker_step` of the step, by "
                                   "replica; NaN for a rank that did not report the group",
                                   kGradientUnit, "never"}),
     column<&GroupStepRow::maxima>(
         "maxima",
         {"`f32`: largest absolute finite value, per replica as above", kGradientUnit, "never"}),
     column<&GroupStepRow::fingerprints>(
         "fingerprints", {"`u32`: low half of the fingerprint of each rank's own gradient of "
                          "the group, per replica as above; 0 where nothing was reported",
                          "", "they were not kept"})},
    ", PRIMARY KEY (step_id, group_id)) WITHOUT ROWID"};

const Table<MissingRow> kMissingTable = {
    "missing_worker",
    "A row for each rank that is known to be missing from a step.",
    {column<&MissingRow::step_id>("step_id", {"`step.id`"}).hidden(),
     column<&MissingRow::replica>(
         "replica", {"a replica that is missing from the step (findings.md says when); one that is "
                     "neither here nor in `worker_step` may have had its packet on the way when "
                     "the step was given up"})},
    ", PRIMARY KEY (step_id, replica)) WITHOUT ROWID"};

const Table<NoteRecord> kNoteTable = {
    "note",
    "What went wrong with the collection itself, in words, in the order of arrival.",
    {column<&NoteRecord::segment>("segment", kSegmentText),
     column<&NoteRecord::rank>("rank", kRankText),
     column<&NoteRecord::text>("text", {"one line by convention; not trusted, so clean it before a "
                                        "terminal shows it"})}};

const Table<FingerprintRow> kFingerprintTable = {
    "fingerprint",
    "What ranks are compared by besides their gradients. A row for each value that a rank had "
    "not had at the step before; until its next row of that kind it holds it.",
    with_model<FingerprintRow>({
        column<&FingerprintRow::replica>("replica", kReplicaText),
        column<&FingerprintRow::value, &FingerprintValue::kind>("kind",
                                                                {"see Kinds of fingerprints"}),
        column<&FingerprintRow::step>("step", {"from this step on"}),
        column<&FingerprintRow::value, &FingerprintValue::value>(
            "value",
            {"64 bits; of kinds 70 (`batch`) and 72 (`labels`) a keyed hash of them, see Salt"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, replica, kind, step)) WITHOUT ROWID"};

const Table<AuditedStep> kAuditTable = {
    "audit", "What ranks measured of the reduction of a step ([audit.md](audit.md)).",
    join<AuditedStep>(
        {model_columns<AuditedStep, &AuditedStep::key, &StepKey::model>(),
         {column<&AuditedStep::key, &StepKey::step>("step",
                                                    {"synchronizing backward passes before it"}),
          column<&AuditedStep::replica>("replica", kReplicaText),
          enumeration<records::kFormats, &AuditedStep::audit, &AuditRecord::gradient>(
              "gradient", {"format of the gradients"}),
          enumeration<records::kFormats, &AuditedStep::audit, &AuditRecord::accumulation>(
              "accumulation", {"narrowest format that partial sums were rounded to"}),
          enumeration<records::kOrders, &AuditedStep::audit, &AuditRecord::order>(
              "order", {"in which the ranks' values were added"}),
          enumeration<records::kDivisions, &AuditedStep::audit, &AuditRecord::division>(
              "division", {"how the sum became a mean"}),
          column<&AuditedStep::audit, &AuditRecord::elements>(
              "elements", {"elements that were audited", "elements"}),
          column<&AuditedStep::audit, &AuditRecord::differing>(
              "differing",
              {"audited elements that are not the correctly rounded value", "elements"}),
          column<&AuditedStep::audit, &AuditRecord::wrong>(
              "wrong", {"audited elements further off than rounding explains", "elements"}),
          column<&AuditedStep::audit, &AuditRecord::relative_l2>(
              "relative_l2",
              {"norm of the error over that of the exact value", "ratio", "that is zero"}),
          column<&AuditedStep::audit, &AuditRecord::error_max>(
              "error_max", {"largest error of an element over the sum of its absolute values",
                            "ratio", "all are zero"}),
          ulps_column<&UlpPercentiles::p50>(
              "ulps_p50",
              "distance from the correctly rounded value, in units in "
              "the last place of the gradients' format, that half of "
              "the elements do not exceed"),
          ulps_column<&UlpPercentiles::p90>(
              "ulps_p90",
              "distance from the correctly rounded value, in units in "
              "the last place, that 90 % of the elements do not exceed"),
          ulps_column<&UlpPercentiles::p99>(
              "ulps_p99",
              "distance from the correctly rounded value, in units in "
              "the last place, that 99 % of the elements do not exceed"),
          ulps_column<&UlpPercentiles::max>(
              "ulps_max",
              "largest distance from the correctly rounded value, in units in the last place"),
          enumeration<records::kRepeats, &AuditedStep::audit, &AuditRecord::repeat>(
              "repeat",
              {"whether the same reduction of the same values gave the same bits twice"})}}),
    ", PRIMARY KEY (segment, model_index, dp_group, step, replica)) WITHOUT ROWID"};

const Table<FinalStateRecord> kFinalStateTable = {
    "final_state",
    "A rank's states after its last step, from its final note. No row for a rank that sent "
    "none.",
    with_model<FinalStateRecord>({
        column<&FinalStateRecord::replica>("replica", kReplicaText),
        column<&FinalStateRecord::optimizer_steps>(
            "optimizer_steps",
            {"optimizer steps it had finished; states of equal counts can be compared", "steps"}),
        coded_column<StateCodec, &FinalStateRecord::states>(
            "states", {"as in `worker_step`, of all parameters"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, replica)) WITHOUT ROWID"};

const Table<SnapshotRecord> kSnapshotTable = {
    "snapshot",
    "A snapshot of a rank's training: before its first forward pass, when the program took the "
    "optimizer's state, the last eight times, and at the end. A continued run is compared with it.",
    with_model<SnapshotRecord>({
        column<&SnapshotRecord::replica>("replica", kReplicaText),
        column<&SnapshotRecord::kind>("kind", {"1 begun, 2 saved, 3 left"}),
        column<&SnapshotRecord::step>("step", {"the step to come"}),
        column<&SnapshotRecord::number>("number", {"of those of its kind and step, from 0"}),
        column<&SnapshotRecord::optimizer_steps>(
            "optimizer_steps",
            {"steps as the optimizer itself counts them", "steps", "it does not count them"}),
        column<&SnapshotRecord::learning_rate>("learning_rate",
                                               {"of the first parameter group", "", "it has none"}),
        coded_column<PackedCodec<FingerprintValue>, &SnapshotRecord::generators>(
            "generators",
            {"pairs of a `u32` kind and a `u64` value: fingerprints of the random generators", "",
             "they were not read"}),
        coded_column<PackedCodec<SnapshotGroup>, &SnapshotRecord::groups>(
            "groups", {"of each group `u64` id and elements, `f64` sum of squares, `u64` hashes of "
                       "the parameters and of the optimizer's state, `u32` shard, `u16` whether it "
                       "has a sketch, `u16` formats, and where it has one, 256 `f32`",
                       "", "another rank reports the same"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, replica, kind, step, number)) WITHOUT ROWID"};

const Table<FindingRow> kFindingTable = {
    "finding",
    "What is wrong with the run, as of the last commit: rows of a segment's model are replaced "
    "while it is recorded. One cause is one finding.",
    with_model<FindingRow>({
        column<&FindingRow::id>(
            "id", {"place among the findings of the model, from 0; it may change from commit to "
                   "commit"})
            .hidden(),
        column<&FindingRow::check>("check_id", {"such as `duplicate-data`"}),
        coded_column<TextsCodec, &FindingRow::also>("also",
                                                    {"list of the checks that it absorbed"}),
        enumeration<records::kSeverities, &FindingRow::severity>("severity", {"how bad it is"}),
        coded_column<NumbersCodec, &FindingRow::ranks>(
            "ranks", {"list of global ranks, ascending: the minority, or all where there is none"}),
        coded_column<TextsCodec, &FindingRow::hosts>("hosts", {"list of the hosts of those ranks"}),
        column<&FindingRow::first_step>("first_step", {"first step that shows it", "step"}),
        column<&FindingRow::last_step>("last_step", {"last step that showed it so far", "step"}),
        column<&FindingRow::equal_until>(
            "equal_until",
            {"last step at which what differs was seen to be equal", "step", "it never was"}),
        column<&FindingRow::certain_step>(
            "certain_step",
            {"of a statistic: the step with enough evidence", "step", "of other checks"}),
        column<&FindingRow::confidence>(
            "confidence", {"how sure it is that this is the cause", "0 to 1", "never"}),
        column<&FindingRow::title>("title",
                                   {"one sentence; not trusted, for it holds names from the run"}),
        coded_column<EvidenceCodec, &FindingRow::evidence>(
            "evidence",
            {"list of what was seen, its own first: check, ranks, sentence, and an object of "
             "values"}),
        column<&FindingRow::suspects>("suspects", {"what it may come from, or empty"}),
        column<&FindingRow::remedy>("remedy", {"one or two sentences"}),
        column<&FindingRow::resembles>("resembles", {"a public report of the same kind, or empty"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, id)) WITHOUT ROWID"};

const Table<CheckRow> kCheckTable = {
    "check_state",
    "Every check, also those that found nothing or could not be made; replaced as findings are.",
    with_model<CheckRow>({
        column<&CheckRow::position>("position", {"order in which checks are listed, from 0"})
            .hidden(),
        column<&CheckRow::record, &CheckRecord::check>("check_id", {"such as `duplicate-data`"}),
        enumeration<records::kCheckStates, &CheckRow::record, &CheckRecord::state>(
            "state", {"what came of it"}),
        column<&CheckRow::record, &CheckRecord::reason>(
            "reason", {"one sentence; for a passed check what it rests on"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group, position)) WITHOUT ROWID"};

const Table<StallRecord> kStallTable = {
    "stall",
    "Stalls of the job ([time.md](time.md)): a row for each stall and each change of it.",
    {column<&StallRecord::segment>("segment", kSegmentText),
     column<&StallRecord::number>("number", {"of the segment's, from 1"}),
     column<&StallRecord::step>("step", {"the latest that a rank had got to", "step"}),
     column<&StallRecord::seconds>("seconds", {"that the stall has lasted", "s", "never"}),
     column<&StallRecord::over>("over", {"1: the job continued"}),
     column<&StallRecord::harmless>("harmless", {"1: it may well be meant, as a checkpoint is"}),
     column<&StallRecord::awaited>("awaited", {"1: a rank waited for another"}),
     column<&StallRecord::busy>("busy", {"1: who kept the others waiting worked"}),
     column<&StallRecord::sentence>(
         "sentence", {"who was where; not trusted, for it holds names from the run"}),
     coded_column<NumbersCodec, &StallRecord::ranks>(
         "ranks", {"list of the ranks that kept others waiting; empty: not known"})},
    ", PRIMARY KEY (segment, number)) WITHOUT ROWID"};

const Table<StalledRankRow> kStalledRankTable = {
    "stalled_rank",
    "A row for each rank of a stall, with its last report. Texts are not trusted.",
    {column<&StalledRankRow::segment>("segment", kSegmentText),
     column<&StalledRankRow::number>("number", {"`stall.number`"}),
     column<&StalledRankRow::rank>("rank", kRankText),
     column<&StalledRankRow::where>("place", {"where it was, as one phrase"}),
     column<&StalledRankRow::answers>("answers", {"1: it was heard lately"}),
     column<&StalledRankRow::left>("left_training", {"1: it had said goodbye"}),
     column<&StalledRankRow::unheard>("unheard", {"since it was heard", "s", "never"}),
     column<&StalledRankRow::layer>("layer", {"of the last gradient that had come; may be empty"}),
     column<&StalledRankRow::last, &Heartbeat::host>("host", {"host name"}),
     column<&StalledRankRow::last, &Heartbeat::still>("still",
                                                      {"since its last event", "s", "never"}),
     column<&StalledRankRow::last, &Heartbeat::step>("step", {"of its last event", "step"}),
     column<&StalledRankRow::last, &Heartbeat::micro_batch>("micro_batch",
                                                            {"of its last event, from 0"}),
     enumeration<records::kPhases, &StalledRankRow::last, &Heartbeat::phase>("phase",
                                                                             {"of its last event"}),
     column<&StalledRankRow::last, &Heartbeat::waiting>("waiting",
                                                        {"1: for others, as hooks show"}),
     column<&StalledRankRow::last, &Heartbeat::lock_held>(
         "lock_held", {"1: a call held the interpreter's lock"}),
     column<&StalledRankRow::last, &Heartbeat::processor>(
         "processor", {"share of a processor that its thread used", "ratio", "not known"}),
     column<&StalledRankRow::last, &Heartbeat::collective>(
         "collective", {"function of torch.distributed in which it waited; may be empty"}),
     column<&StalledRankRow::last, &Heartbeat::site>("site", {"the program's innermost line"}),
     column<&StalledRankRow::last, &Heartbeat::stack>("stack", {"its thread's, innermost first"}),
     column<&StalledRankRow::last, &Heartbeat::recorder>(
         "recorder", {"last collectives as torch's flight recorder has them; may be empty"})},
    ", PRIMARY KEY (segment, number, rank)) WITHOUT ROWID"};

const Table<DetectorRow> kDetectorTable = {
    "detector_state",
    "What the detectors of a model need to continue after a restart. The bytes are theirs: no "
    "format is promised, and bytes that they do not understand make them start over.",
    {column<&DetectorRow::model_index>("model_index", kModelIndexText),
     column<&DetectorRow::dp_group>("dp_group", kDpGroupText),
     column<&DetectorRow::segment>("segment", {"which segment wrote it last"}),
     column<&DetectorRow::state>("state", {"opaque", "", "never"})},
    ", PRIMARY KEY (model_index, dp_group)) WITHOUT ROWID"};

const Table<Continuation> kContinuationTable = {
    "continuation",
    "How a model began in a segment after the first: a row once its first step there is judged.",
    with_model<Continuation>({
        column<&Continuation::from_segment>(
            "from_segment",
            {"which segment's parameters it continued from", "", "from none that are known"}),
        column<&Continuation::from_step>("from_step",
                                         {"the step that was to come there", "step", "likewise"}),
        column<&Continuation::steps_before>(
            "steps_before",
            {"recorded steps of its training up to there; steps done again count once", "steps"}),
        column<&Continuation::detector_steps>(
            "detector_steps",
            {"of these, those that its detectors know; 0: they started over", "steps"}),
        column<&Continuation::reason>("reason",
                                      {"why they started over; empty where they continued"}),
    }),
    ", PRIMARY KEY (segment, model_index, dp_group)) WITHOUT ROWID"};

}  // namespace presum::runlog
