// SPDX-License-Identifier: Apache-2.0
#include "runlog/writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "base/try.h"
#include "presum/version.h"
#include "runlog/file_watch.h"
#include "runlog/keyed_hash.h"
#include "runlog/schema.h"
#include "runlog/shape.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

constexpr Seconds kCommitEvery{1.0};
constexpr std::size_t kValuesMax = std::size_t{1} << 20;  // workers times kinds of fingerprints
// Second halves of the keys: what the salt is used for (docs/runlog_format.md).
constexpr std::uint64_t kOfSamples = 1;
constexpr std::uint64_t kOfSalts = 2;

// f_type of file systems whose shared-memory locks (WAL needs them) do not reach other machines.
constexpr std::array<std::uint32_t, 9> kNetworkFileSystems = {
    0x6969,      // NFS
    0xFF534D42,  // CIFS
    0xFE534D42,  // SMB2
    0x517B,      // SMB
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS
    0x00C36400,  // Ceph
    0x19830326,  // BeeGFS
    0x65735546,  // FUSE (sshfs, s3fs, ...)
};

std::uint64_t random_run_id() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1;
}

std::string utc_now() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

Status create_schema(Database& db) {
  // One transaction: a reader sees no database or a whole one.
  return db.execute(fmt::format("BEGIN; {} {} PRAGMA application_id={}; PRAGMA user_version={}; "
                                "COMMIT;",
                                kTables, kViews, kApplicationId, kSchemaVersion)
                        .c_str());
}

const char* journal_mode(Journal journal) {
  // WAL with synchronous=NORMAL survives a killed process; a power cut may lose the last commits.
  return journal == Journal::kExclusive
             ? "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE;"
             : "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;";
}

// What writers that were killed left of databases that they were making. One that is minutes old is
// nobody's any more.
void remove_parts(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  constexpr std::chrono::minutes kOld{10};
  const auto prefix = file.filename().string() + ".new-";
  std::error_code error;
  for (fs::directory_iterator at(file.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    const auto written = fs::last_write_time(at->path(), ignored);
    if (ignored || !at->path().filename().string().starts_with(prefix)) continue;
    if (fs::file_time_type::clock::now() - written > kOld) fs::remove(at->path(), ignored);
  }
}

// Made under a name of its own and linked into place: a process that is killed meanwhile leaves no
// half of a database there. Does nothing where there is a file.
Status make_file(const std::filesystem::path& file, Journal journal) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) return {};
  remove_parts(file);
  const std::filesystem::path part = fmt::format("{}.new-{:016x}", file.string(), random_run_id());
  {
    PRESUM_ASSIGN(auto db, Database::open(part, Database::Mode::kWrite));
    PRESUM_TRY(db.execute(journal_mode(journal)));
    PRESUM_TRY(create_schema(db));
  }
  std::filesystem::create_hard_link(part, file, error);
  if (error && error != std::errc::file_exists) std::filesystem::rename(part, file, error);
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  if (!error || error == std::errc::file_exists) return {};
  return fail(ErrorCode::kIo, fmt::format("cannot make {}: {}", file.string(), error.message()));
}

Status prepare_file(Database& db, const std::filesystem::path& file, Journal journal) {
  PRESUM_ASSIGN(const auto tables, db.query_integer("SELECT count(*) FROM sqlite_master"));
  if (tables != 0) {
    PRESUM_TRY(check_identity(db, file));
    PRESUM_TRY(check_shape(db, file));
  }
  PRESUM_TRY(db.execute(journal_mode(journal)));
  return tables == 0 ? create_schema(db) : Status{};
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<std::uint64_t> words(const std::vector<StateHash>& states) {
  std::vector<std::uint64_t> out;
  for (const StateHash& s : states) {
    out.insert(out.end(), {s.group, static_cast<std::uint64_t>(s.of), s.value});
  }
  return out;
}

std::string json_of(const std::vector<std::pair<std::string, Finding::Value>>& evidence) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, value] : evidence) {
    std::visit([&, n = name](const auto& v) { out[n] = v; }, value);
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class T>
std::string json_of(const std::vector<T>& list) {
  return nlohmann::json(list).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot create run folder {}: {}", folder.string(), error.message()));
  }
  return {};
}

// A new file on a local file system, with what `target` holds so far.
Result<std::filesystem::path> local_copy(const std::filesystem::path& target) {
  std::error_code error;
  auto file = std::filesystem::temp_directory_path(error);
  if (error) return fail(ErrorCode::kIo, "no folder for temporary files: " + error.message());
  file /= fmt::format("presum-{}-{:016x}.db", getpid(), random_run_id());
  if (std::filesystem::exists(target, error)) std::filesystem::copy_file(target, file, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    return fail(ErrorCode::kIo, fmt::format("{}: {}", file.string(), error.message()));
  }
  return file;
}

}  // namespace

Journal choose_journal(const std::filesystem::path& folder) {
  struct statfs info {};
  if (statfs(folder.c_str(), &info) != 0) return Journal::kWal;
  const auto type = static_cast<std::uint32_t>(info.f_type);
  const bool network = std::find(kNetworkFileSystems.begin(), kNetworkFileSystems.end(), type) !=
                       kNetworkFileSystems.end();
  return network ? Journal::kExclusive : Journal::kWal;
}

struct Writer::State {
  State(Database database, MonotonicClock injected)
      : db(std::move(database)), clock(std::move(injected)) {}

  Database db;
  MonotonicClock clock;
  std::filesystem::path file;
  std::filesystem::path copy_to;  // kLocalCopy only
  std::optional<FileWatch> watch;
  bool gone = false;               // another file stands in its place, or none
  std::uint64_t last_written = 0;  // the id of this segment's last step; 0: none
  std::uint64_t last_committed = 0;
  std::optional<std::uint64_t> written_step;  // the highest one
  std::optional<std::uint64_t> committed_step;
  std::uint64_t run = 0;
  std::uint32_t segment = 0;
  bool in_transaction = false;
  bool closed = false;
  Seconds began{0};
  std::uint64_t salt = 0;
  std::optional<Statement> insert_step, insert_worker, insert_group, insert_missing,
      insert_fingerprint;
  using ValueKey = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  std::map<ValueKey, std::uint64_t> last_values;  // by module, shard, replica and kind

  std::uint64_t salted(std::uint64_t hash) const { return KeyedHash(salt, kOfSamples)(hash); }

  Status begin_segment() {
    PRESUM_ASSIGN(const auto last, db.query_integer("SELECT ifnull(max(segment), 0) FROM segment"));
    segment = static_cast<std::uint32_t>(last) + 1;
    run = random_run_id();
    PRESUM_ASSIGN(auto insert, db.prepare("INSERT INTO segment (segment, run, started_utc, "
                                          "presum_version, salt) VALUES (?,?,?,?,?)"));
    insert.with(segment, fmt::format("{:016x}", run), utc_now(), std::string_view(version()),
                fmt::format("{:016x}", KeyedHash(salt, kOfSalts)(0)));
    PRESUM_TRY(insert.run());
    // Best effort: a reader may prevent it.
    static_cast<void>(db.execute("PRAGMA wal_checkpoint(PASSIVE)"));
    return {};
  }

  Status prepare_statements() {
    const std::array<std::pair<std::optional<Statement>*, const char*>, 5> all = {{
        {&insert_step,
         "INSERT INTO step VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
         "?,?,?,?,?)"},
        {&insert_worker,
         "INSERT INTO worker_step VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"},
        {&insert_group, "INSERT INTO group_step VALUES (?,?,?,?,?,?,?,?)"},
        {&insert_missing, "INSERT INTO missing_worker VALUES (?,?)"},
        {&insert_fingerprint, "INSERT OR REPLACE INTO fingerprint VALUES (?,?,?,?,?,?,?)"},
    }};
    for (const auto& [statement, sql] : all) {
      PRESUM_ASSIGN(auto prepared, db.prepare(sql));
      statement->emplace(std::move(prepared));
    }
    return {};
  }

  Status begin() {
    if (in_transaction) return {};
    if (closed) return fail(ErrorCode::kInvalidArgument, "the run log is closed");
    PRESUM_TRY(check_file());
    PRESUM_TRY(db.execute("BEGIN"));
    in_transaction = true;
    began = clock();
    return {};
  }

  Status commit() {
    if (!in_transaction) return {};
    in_transaction = false;
    auto done = check_file();
    if (done) done = db.execute("COMMIT");
    if (done) {
      watch->remember();
      last_committed = last_written;
      committed_step = written_step;
    }
    if (!done) static_cast<void>(db.execute("ROLLBACK"));
    return done;
  }

  // Nothing may be written to a file that somebody has put in this one's place.
  Status check_file() {
    const auto seen = watch->look();
    if (seen == FileWatch::State::kOurs) return {};
    if (seen == FileWatch::State::kTouched && is_ours() && holds_the_last_step()) {
      watch->remember();
      return {};
    }
    gone = true;
    return fail(ErrorCode::kIo,
                fmt::format("{} is not the file any more that was written: it was deleted, "
                            "replaced or changed by somebody else; the record is lost",
                            file.string()));
  }

  // Without its log: it holds this segment. (When a segment begins, its log is written into it.)
  bool is_ours() const {
    auto alone = Database::open(file, Database::Mode::kReadFileAlone);
    if (!alone) return false;
    auto mine = alone->prepare("SELECT run FROM segment WHERE segment=?");
    if (!mine) return false;
    const auto row = mine->with(segment).next();
    return row && *row && mine->text(0) == fmt::format("{:016x}", run);
  }

  // Read anew, with its log: nothing that was committed is missing.
  bool holds_the_last_step() const {
    if (last_committed == 0) return true;
    auto other = Database::open(file, Database::Mode::kRead);
    if (!other) return false;
    auto last = other->prepare("SELECT 1 FROM step WHERE id=? AND segment=?");
    if (!last) return false;
    const auto row = last->with(last_committed, segment).next();
    return row && *row;
  }

  Status write_workers(const StepRecord& r, std::uint64_t id) {
    for (const WorkerRecord& w : r.workers) {
      std::vector<double> micro;
      for (const MicroBatchRecord& m : w.micro) {
        micro.insert(micro.end(), {m.loss, m.weight, static_cast<double>(m.tokens)});
      }
      insert_worker->with(id, w.replica, w.rank, w.loss, std::uint32_t{w.loss_nonfinite}, w.weight,
                          w.tokens, w.micro_batches, w.grad_norm, w.grad_max, w.nonfinite,
                          w.cosine_to_others, w.reduced_norm, w.fingerprint, w.reduced_fingerprint,
                          w.optimizer_step, w.dropped, w.skipped_parameters);
      // A single micro-batch repeats what the columns say.
      if (w.micro.size() > 1) insert_worker->bind_blob(19, std::as_bytes(std::span(micro)));
      bind_data(w);
      bind_states(r, w);
      PRESUM_TRY(insert_worker->run());
      PRESUM_TRY(write_fingerprints(r, w));
    }
    return {};
  }

  void bind_data(const WorkerRecord& w) {
    if (w.rows == 0) return;
    std::vector<std::uint64_t> samples;
    for (const std::uint64_t hash : w.samples) samples.push_back(salted(hash));
    insert_worker->bind(20, w.rows);
    insert_worker->bind(21, w.thinned);
    insert_worker->bind_blob(22, bytes_of(samples));
    if (!w.indices.empty()) insert_worker->bind_blob(23, bytes_of(w.indices));
  }

  // NULL where they are those of the step's first worker.
  void bind_states(const StepRecord& r, const WorkerRecord& w) {
    const auto mine = words(w.states);
    const WorkerRecord& first = r.workers.front();
    const bool known = &w == &first ? mine.empty() : mine == words(first.states);
    if (!known) insert_worker->bind_blob(24, bytes_of(mine));
  }

  // A row where a value changed.
  Status write_fingerprints(const StepRecord& r, const WorkerRecord& w) {
    for (const FingerprintValue& f : w.fingerprints) {
      const bool of_samples = f.kind == static_cast<std::uint32_t>(FingerprintKind::kBatch);
      const std::uint64_t value = of_samples ? salted(f.value) : f.value;
      const ValueKey key{r.module, r.shard, w.replica, f.kind};
      if (last_values.size() >= kValuesMax && !last_values.contains(key)) continue;
      const auto [last, fresh] = last_values.try_emplace(key, value);
      if (!fresh && last->second == value) continue;
      last->second = value;
      insert_fingerprint->with(segment, r.module, r.shard, w.replica, f.kind, r.step, value);
      PRESUM_TRY(insert_fingerprint->run());
    }
    return {};
  }

  Status write_groups(const StepRecord& r, std::uint64_t id) {
    for (const GroupRecord& g : r.groups) {
      insert_group->with(id, g.id, g.norm_mean, g.norm_std, g.nonfinite);
      insert_group->bind_blob(6, bytes_of(g.norms));
      insert_group->bind_blob(7, bytes_of(g.maxima));
      if (!g.fingerprints.empty()) insert_group->bind_blob(8, bytes_of(g.fingerprints));
      PRESUM_TRY(insert_group->run());
    }
    return {};
  }

  Status write_record(const StepRecord& r) {
    PRESUM_TRY(write_step(r));
    const std::uint64_t id = db.last_row();
    PRESUM_TRY(write_workers(r, id));
    PRESUM_TRY(write_groups(r, id));
    for (const std::uint32_t replica : r.missing_replicas) {
      PRESUM_TRY(insert_missing->with(id, replica).run());
    }
    last_written = id;
    written_step = std::max(written_step.value_or(0), r.step);
    return {};
  }

  Status write_final_state(const packet::Note& note) {
    if (note.states.empty()) return {};
    const packet::Header& h = note.header;
    PRESUM_ASSIGN(auto insert,
                  db.prepare("INSERT OR REPLACE INTO final_state VALUES (?,?,?,?,?,?)"));
    insert.with(h.segment, h.identity.module, h.identity.shard, h.identity.replica, note.clock);
    insert.bind_blob(6, bytes_of(words(note.states)));
    return insert.run();
  }

  Status write_finding(const Finding& f, std::uint32_t id) {
    PRESUM_ASSIGN(auto insert,
                  db.prepare("INSERT INTO finding VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"));
    return insert
        .with(segment, f.module, f.shard, id, f.check, json_of(f.also),
              static_cast<std::uint32_t>(f.severity), json_of(f.ranks), json_of(f.hosts),
              f.first_step, f.last_step, f.confidence, f.title, json_of(f.evidence), f.remedy,
              f.resembles)
        .run();
  }

  Status remove(const char* table, std::uint32_t module, std::uint32_t shard) {
    return db.execute(fmt::format("DELETE FROM {} WHERE segment={} AND module={} AND shard={}",
                                  table, segment, module, shard)
                          .c_str());
  }

  Status write_step(const StepRecord& r) {
    insert_step->with(r.segment, r.module, r.shard, r.step, r.workers_expected,
                      static_cast<std::uint32_t>(r.workers.size()), r.loss_mean, r.loss_std,
                      r.loss_range, r.grad_norm_mean, r.grad_norm_std, r.grad_norm_cv,
                      r.cosine_mean, r.cosine_low, r.cosine_high,
                      static_cast<std::uint32_t>(r.cosine_source), r.consistency, r.reduced_norm,
                      std::uint32_t{r.reduced_disagrees}, r.signal, r.noise, r.noise_scale,
                      r.effective_workers, r.tokens_cv, r.distinct_gradients, r.sketch_size);
    if (!r.cosines.empty()) insert_step->bind_blob(27, bytes_of(r.cosines));
    insert_step->bind(28, r.mean_norm);
    insert_step->bind(29, r.mean_norm_error);
    return insert_step->run();
  }

  // Gives up the file and its lock: until then an exclusive one keeps readers out.
  void release() {
    if (gone) db.leave_the_file_alone();
    for (auto* statement :
         {&insert_step, &insert_worker, &insert_group, &insert_missing, &insert_fingerprint}) {
      statement->reset();
    }
    db = {};
  }

  Status copy_home() const {
    // Renamed into place: a reader sees the old file or the new one, whole.
    auto part = copy_to;
    part += ".part";
    std::error_code error;
    std::filesystem::copy_file(file, part, std::filesystem::copy_options::overwrite_existing,
                               error);
    if (!error) std::filesystem::rename(part, copy_to, error);
    if (error) {
      return fail(ErrorCode::kIo,
                  fmt::format("cannot copy the run log to {}: {} (it is kept in {})",
                              copy_to.string(), error.message(), file.string()));
    }
    std::filesystem::remove(file, error);
    return {};
  }
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() {
  if (!state_ || state_->closed) return;
  static_cast<void>(state_->commit());
  state_->release();
}

Result<Writer> Writer::open(const std::filesystem::path& folder, MonotonicClock clock,
                            Journal journal, std::uint64_t salt) {
  PRESUM_TRY(make_folder(folder));
  const auto target = folder / kFileName;
  auto file = target;
  if (journal == Journal::kLocalCopy) {
    PRESUM_ASSIGN(auto local, local_copy(target));
    file = std::move(local);
  }
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) {
    return fail(ErrorCode::kIo,
                fmt::format("unable to open {}: it is in the way, and not a file", file.string()));
  }
  PRESUM_TRY(check_side_files(file));
  PRESUM_TRY(make_file(file, journal));
  PRESUM_ASSIGN(auto db, Database::open(file, Database::Mode::kWrite));
  PRESUM_TRY(prepare_file(db, target, journal));
  auto state = std::make_unique<State>(std::move(db), std::move(clock));
  state->file = file;
  state->salt = salt;
  if (journal == Journal::kLocalCopy) state->copy_to = target;
  PRESUM_TRY(state->begin_segment());
  PRESUM_TRY(state->prepare_statements());
  state->watch.emplace(file, journal != Journal::kExclusive);
  return Writer(std::move(state));
}

std::uint64_t Writer::run() const { return state_->run; }
std::uint32_t Writer::segment() const { return state_->segment; }

Status Writer::add(const packet::Hello& hello) {
  PRESUM_TRY(state_->begin());
  const packet::Header& h = hello.header;
  const Identity& who = h.identity;
  auto worker = state_->db.prepare(
      "INSERT OR REPLACE INTO worker (segment, module, shard, replica, replicas, rank, host) "
      "VALUES (?,?,?,?,?,?,?)");
  auto fact = state_->db.prepare("INSERT OR REPLACE INTO fact VALUES (?,?,?,?,?)");
  auto group = state_->db.prepare("INSERT OR IGNORE INTO group_name VALUES (?,?,?,?,?,?,?)");
  for (const auto* statement : {&worker, &fact, &group}) {
    if (!*statement) return statement->error();
  }
  PRESUM_TRY(worker
                 ->with(h.segment, who.module, who.shard, who.replica, who.replicas, who.world_rank,
                        std::string_view(hello.host))
                 .run());
  for (const auto& [key, value] : hello.facts) {
    fact->with(h.segment, who.module, who.world_rank, std::string_view(key),
               std::string_view(value));
    PRESUM_TRY(fact->run());
  }
  std::uint32_t position = 0;
  for (const packet::GroupName& g : hello.groups) {
    group->with(h.segment, who.module, who.shard, g.id, std::string_view(g.name), g.elements,
                position++);
    PRESUM_TRY(group->run());
  }
  return {};
}

Status Writer::add(const packet::Note& note) {
  PRESUM_TRY(state_->begin());
  const packet::Header& h = note.header;
  auto counts = state_->db.prepare(
      "UPDATE worker SET sent=?, dropped=? WHERE segment=? AND module=? AND shard=? AND replica=?");
  auto text = state_->db.prepare("INSERT INTO note (segment, rank, text) VALUES (?,?,?)");
  if (!counts) return counts.error();
  if (!text) return text.error();
  counts->with(note.sent, note.dropped, h.segment, h.identity.module, h.identity.shard,
               h.identity.replica);
  PRESUM_TRY(counts->run());
  PRESUM_TRY(state_->write_final_state(note));
  if (note.text.empty()) return {};
  return text->with(h.segment, h.identity.world_rank, std::string_view(note.text)).run();
}

Status Writer::add(const StepRecord& record) {
  PRESUM_TRY(state_->begin());
  PRESUM_TRY(state_->db.execute("SAVEPOINT step"));
  auto written = state_->write_record(record);
  if (!written) static_cast<void>(state_->db.execute("ROLLBACK TO step"));  // no half a step
  const auto released = state_->db.execute("RELEASE step");
  return written ? released : written;
}

Status Writer::replace(std::uint32_t module, std::uint32_t shard, std::span<const Finding> findings,
                       std::span<const CheckRecord> checks) {
  PRESUM_TRY(state_->begin());
  for (const char* table : {"finding", "check_state"}) {
    PRESUM_TRY(state_->remove(table, module, shard));
  }
  std::uint32_t id = 0;
  for (const Finding& f : findings) {
    PRESUM_TRY(state_->write_finding(f, id++));
  }
  PRESUM_ASSIGN(auto insert, state_->db.prepare("INSERT INTO check_state VALUES (?,?,?,?,?,?,?)"));
  std::uint32_t position = 0;
  for (const CheckRecord& c : checks) {
    insert.with(state_->segment, module, shard, position++, c.check,
                static_cast<std::uint32_t>(c.state), c.reason);
    PRESUM_TRY(insert.run());
  }
  return {};
}

Status Writer::save_detector(std::uint32_t module, std::uint32_t shard, std::string_view state) {
  PRESUM_TRY(state_->begin());
  PRESUM_ASSIGN(auto insert,
                state_->db.prepare("INSERT OR REPLACE INTO detector_state VALUES (?,?,?,?)"));
  insert.with(module, shard, state_->segment);
  insert.bind_blob(4, std::as_bytes(std::span(state)));
  return insert.run();
}

Result<std::optional<std::string>> Writer::saved_detector(std::uint32_t module,
                                                          std::uint32_t shard) {
  PRESUM_ASSIGN(auto select,
                state_->db.prepare("SELECT state FROM detector_state WHERE module=? AND shard=?"));
  PRESUM_ASSIGN(const auto row, select.with(module, shard).next());
  if (!row) return std::optional<std::string>();
  const auto bytes = select.blob(0);
  return std::optional<std::string>(std::in_place, reinterpret_cast<const char*>(bytes.data()),
                                    bytes.size());
}

Status Writer::preflight(int exit_code) {
  PRESUM_TRY(state_->begin());
  return state_->db.execute(
      fmt::format("UPDATE segment SET preflight_exit_code={} WHERE segment={}", exit_code,
                  state_->segment)
          .c_str());
}

Status Writer::count(const PacketCounts& packets) {
  PRESUM_TRY(state_->begin());
  PRESUM_ASSIGN(
      auto update,
      state_->db.prepare(
          "UPDATE segment SET damaged=?, foreign_packets=?, duplicate=?, late=? WHERE segment=?"));
  return update
      .with(packets.damaged, packets.foreign, packets.duplicate, packets.late, state_->segment)
      .run();
}

Status Writer::mark_incomplete(std::string_view why) {
  PRESUM_TRY(state_->begin());
  PRESUM_ASSIGN(
      auto update,
      state_->db.prepare(
          "UPDATE segment SET incomplete=?1, incomplete_after=(SELECT max(step) FROM step WHERE "
          "segment=?2) WHERE segment=?2 AND incomplete=''"));
  return update.with(why, state_->segment).run();
}

bool Writer::is_due() const {
  return state_->in_transaction && state_->clock() - state_->began >= kCommitEvery;
}

Status Writer::tick() { return is_due() ? state_->commit() : Status(); }

std::optional<std::uint64_t> Writer::committed_step() const { return state_->committed_step; }

Status Writer::close() {
  if (state_->closed) return {};
  auto s = state_->commit();
  if (s) s = state_->check_file();
  if (!s) {
    abandon(s.error().message);
    return s;
  }
  const auto sql = fmt::format("UPDATE segment SET closed=1 WHERE segment={}", state_->segment);
  s = state_->db.execute(sql.c_str());
  if (!s) {
    abandon(s.error().message);
    return s;
  }
  state_->closed = true;
  // Best effort: one plain file that also opens from a read-only folder. A reader may prevent it.
  static_cast<void>(state_->db.execute("PRAGMA busy_timeout=0; PRAGMA journal_mode=DELETE"));
  state_->release();
  return state_->copy_to.empty() ? Status{} : state_->copy_home();
}

void Writer::abandon(std::string_view why) {
  if (state_->closed) return;
  // Each step may fail, as the one did that led here.
  static_cast<void>(state_->commit());
  if (!state_->gone && mark_incomplete(why)) static_cast<void>(state_->commit());
  state_->closed = true;
  state_->release();
  if (!state_->gone && !state_->copy_to.empty()) static_cast<void>(state_->copy_home());
}

}  // namespace presum::runlog
