// SPDX-License-Identifier: Apache-2.0
#include "blame/blame.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "blame/usual.h"

namespace presum::blame {
namespace {

constexpr std::uint64_t kProgressEvery = 256;

// A sample, identified by its index or, if that is not known, by the hash of its row.
struct SampleKey {
  bool by_index = false;
  std::uint64_t value = 0;
  auto operator<=>(const SampleKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

std::vector<SampleKey> keys_of(const WorkerRecord& worker) {
  const bool by_index = !worker.indices.empty();
  std::vector<SampleKey> out;
  for (const std::uint64_t value : by_index ? worker.indices : worker.samples.hashes) {
    out.push_back({by_index, value});
  }
  return out;
}

// A rank's earlier steps.
struct History {
  Usual loss;
  Usual norm;
  std::unordered_map<std::uint64_t, Usual> groups;  // norms, by id
};

struct Draws {
  std::uint64_t count = 0;
  std::vector<EarlierDraw> last;
};

// Reads the steps before the target, and keeps what is needed to describe it.
class Reader {
 public:
  explicit Reader(const StepRecord& target) {
    for (const WorkerRecord& w : target.workers) {
      for (const SampleKey& key : keys_of(w)) draws_[key];
    }
  }

  void read(const StepRecord& record) {
    for (std::size_t at = 0; at < record.workers.size(); ++at) {
      const WorkerRecord& w = record.workers[at];
      History& history = workers_[w.rank];
      note_draws(record.step, w, history);
      history.loss.add(w.loss);
      history.norm.add(w.grad_norm);
      for (const GroupRecord& g : record.groups) {
        if (at < g.norms.size()) history.groups[g.id].add(g.norms[at]);
      }
    }
    mean_.add(record.loss_mean);
    ++steps_;
  }

  Step told(const StepRecord& record, const std::map<std::uint64_t, std::string>& names,
            const std::map<std::uint32_t, std::string>& hosts) {
    Step out{.key = {record.model, record.step},
             .workers_expected = record.workers_expected,
             .loss = {record.loss_mean, mean_.median()},
             .compared_with = steps_};
    std::map<SampleKey, std::vector<std::uint32_t>> drawn;
    for (const WorkerRecord& w : record.workers) {
      for (const SampleKey& key : keys_of(w)) drawn[key].push_back(w.rank);
    }
    for (std::size_t at = 0; at < record.workers.size(); ++at) {
      Worker worker = worker_of(record.workers[at]);
      const auto host = hosts.find(worker.rank);
      if (host != hosts.end()) worker.host = host->second;
      worker.layers = layers_of(record, at, names);
      worker.samples = samples_of(record.workers[at], drawn);
      out.workers.push_back(std::move(worker));
    }
    std::ranges::sort(out.workers, {}, &Worker::rank);
    return out;
  }

 private:
  void note_draws(std::uint64_t step, const WorkerRecord& worker, const History& history) {
    for (const SampleKey& key : keys_of(worker)) {
      const auto found = draws_.find(key);
      if (found == draws_.end()) continue;
      Draws& draws = found->second;
      if (draws.last.size() == kEarlierKept) draws.last.erase(draws.last.begin());
      draws.last.push_back({step, worker.rank, {worker.loss, history.loss.median()}});
      ++draws.count;
    }
  }

  Worker worker_of(const WorkerRecord& w) {
    const History& history = workers_[w.rank];
    Worker out{.rank = w.rank,
               .loss = {w.loss_nonfinite ? std::numeric_limits<double>::infinity() : w.loss,
                        history.loss.median()},
               .norm = {w.nonfinite > 0 ? std::numeric_limits<double>::infinity() : w.grad_norm,
                        history.norm.median()},
               .nonfinite = w.nonfinite,
               .tokens = w.tokens,
               .targets = w.targets,
               .token_weight = w.token_weight,
               .micro_batches = w.micro_batches,
               .micro = w.micro,
               .rows = w.samples.rows};
    for (std::size_t i = 0; w.tokens + w.targets > 0 && i < w.micro.size(); ++i) {
      if (w.micro[i].tokens + w.micro[i].targets == 0) out.without_target.push_back(i);
    }
    return out;
  }

  std::vector<Layer> layers_of(const StepRecord& record, std::size_t at,
                               const std::map<std::uint64_t, std::string>& names) {
    std::vector<Layer> out;
    auto& usual = workers_[record.workers[at].rank].groups;
    for (const GroupRecord& g : record.groups) {
      if (at >= g.norms.size()) continue;
      const auto name = names.find(g.id);
      out.push_back({name == names.end() ? "?" : name->second,
                     {g.norms[at], usual[g.id].median()},
                     at < g.maxima.size() ? g.maxima[at] : kNaN});
    }
    const auto distance = [](const Layer& layer) {
      if (!std::isfinite(layer.norm.value)) return std::numeric_limits<double>::infinity();
      const double ratio = layer.norm.ratio();
      return std::isnan(ratio) ? 0 : std::abs(std::log(ratio));  // a ratio of 0 is infinitely far
    };
    std::ranges::stable_sort(out, std::ranges::greater{}, distance);
    return out;
  }

  std::vector<Sample> samples_of(const WorkerRecord& worker,
                                 const std::map<SampleKey, std::vector<std::uint32_t>>& drawn) {
    std::vector<Sample> out;
    const bool paired =
        worker.samples.thinned == 0 && worker.samples.hashes.size() == worker.indices.size();
    const auto keys = keys_of(worker);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Sample sample;
      if (keys[i].by_index) sample.index = keys[i].value;
      if (!keys[i].by_index) sample.hash = keys[i].value;
      if (keys[i].by_index && paired) sample.hash = worker.samples.hashes[i];
      for (const std::uint32_t rank : drawn.at(keys[i])) {
        if (rank != worker.rank) sample.others.push_back(rank);
      }
      const Draws& draws = draws_.at(keys[i]);
      sample.draws_before = draws.count;
      sample.before = draws.last;
      out.push_back(std::move(sample));
    }
    return out;
  }

  std::map<SampleKey, Draws> draws_;          // for the samples of the target step
  std::map<std::uint32_t, History> workers_;  // by rank
  Usual mean_;
  std::uint64_t steps_ = 0;
};

// The models that have the step, in the requested segment or else in the last one that has it.
std::vector<ModelKey> models_with(const std::vector<StepRecord>& steps, const Question& question) {
  std::vector<ModelKey> out;
  for (const StepRecord& s : steps) {
    if (s.step != question.step || s.model.segment != question.segment.value_or(s.model.segment)) {
      continue;
    }
    if (!out.empty() && out.back().segment < s.model.segment) out.clear();
    out.push_back(s.model);
  }
  return out;
}

std::uint64_t steps_up_to(const std::vector<StepRecord>& steps, const ModelKey& model,
                          std::uint64_t last) {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      steps, [&](const StepRecord& s) { return s.model == model && s.step <= last; }));
}

Result<Step> blame_one(const RunLog& log, const ModelKey& model, std::uint64_t step,
                       const std::function<void()>& tick) {
  PRESUM_ASSIGN(StepCursor there, log.cursor(model, step));
  PRESUM_ASSIGN(const StepRecord* found, there.next());
  if (found == nullptr) return Error{ErrorCode::kNotFound, "the step is gone"};
  const StepRecord target = *found;
  Reader reader(target);
  PRESUM_ASSIGN(StepCursor cursor, log.cursor(model));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* record, cursor.next());
    if (record == nullptr || record->step >= step) break;
    reader.read(*record);
    tick();
  }
  std::map<std::uint64_t, std::string> names;
  PRESUM_ASSIGN(const auto groups, log.groups());
  for (const GroupInfo& g : groups) {
    if (g.model == model) names[g.id] = g.name;
  }
  std::map<std::uint32_t, std::string> hosts;
  PRESUM_ASSIGN(const auto modules, log.modules());
  for (const ModelInfo& m : modules) {
    for (const WorkerInfo& w : m.workers) hosts[w.rank] = w.host;
  }
  return reader.told(target, names, hosts);
}

}  // namespace

double Compared::ratio() const {
  if (std::isinf(value)) return std::numeric_limits<double>::infinity();
  return usual > 0 ? value / usual : kNaN;
}

double Worker::distance() const {
  const double a = loss.ratio();
  const double b = norm.ratio();
  return std::max(std::isnan(a) ? 0 : a, std::isnan(b) ? 0 : b);
}

Result<std::vector<Step>> blame(const RunLog& log, const Question& question,
                                const Progress& progress) {
  PRESUM_ASSIGN(const auto steps, log.steps());
  const auto models = models_with(steps, question);
  if (models.empty()) {
    if (steps.empty()) return Error{ErrorCode::kNotFound, "no step was recorded"};
    const auto [low, high] = std::ranges::minmax_element(steps, {}, &StepRecord::step);
    const auto [first, last] =
        std::ranges::minmax_element(steps, {}, [](const StepRecord& s) { return s.model.segment; });
    const bool several = last->model.segment > first->model.segment;
    return Error{ErrorCode::kNotFound,
                 "step " + std::to_string(question.step) + " was not recorded; steps are from " +
                     std::to_string(low->step) + " to " + std::to_string(high->step) +
                     (several ? "; segments count from 0 each (--segment asks for one)" : "")};
  }
  std::uint64_t all = 0;
  for (const ModelKey& model : models) all += steps_up_to(steps, model, question.step);
  std::uint64_t done = 0;
  const auto tick = [&] {
    if (++done % kProgressEvery == 0 && progress) progress(done, all);
  };
  std::vector<Step> out;
  for (const ModelKey& model : models) {
    PRESUM_ASSIGN(auto one, blame_one(log, model, question.step, tick));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace presum::blame
