// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "packet/packet.h"
#include "presum/finding.h"
#include "presum/run_log.h"
#include "presum/status.h"
#include "presum/step_record.h"
#include "runlog/run_file.h"

namespace presum::runlog {

struct SavedDetector {
  std::uint32_t segment = 0;  // the segment that saved it
  std::string state;
  bool operator==(const SavedDetector&) const = default;
};

// Appends one run's records to its database. Commits at most one second after a record arrives, as
// long as `tick` is called; a process that dies loses at most that second and never the database.
// Thread-safety: one thread at a time. Ownership: holds the database file until destroyed.
class Writer {
 public:
  // Creates the folder and the database, or opens an existing one, and begins the next segment. Row
  // hashes in the file are keyed with `salt`, so that others cannot look samples up
  // (docs/runlog_format.md, "Salt"). Errors: kIo (not writable, no space), kCorrupt or kUnsupported
  // (the existing file is not a run log of this version).
  static Result<Writer> open(const std::filesystem::path& folder, MonotonicClock clock,
                             Journal journal, std::uint64_t salt = 0);
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

  std::uint64_t run() const;
  std::uint32_t segment() const;

  Status add(const packet::Hello& hello);
  Status add(const packet::Note& note);
  // Keeps the last eight snapshots of each rank that are of saved states.
  Status add(const packet::SnapshotOf& snapshot);
  Status add(StepRecord record);

  // Adds a stall of this segment; replaces an earlier one with the same number.
  Status add(const Stall& stall);

  // Replaces the findings and checks of one model of this segment.
  Status replace(const ModelKey& model, std::span<const Finding> findings,
                 std::span<const CheckRecord> checks);
  // How a model of this segment began; replaces an earlier one of the same model.
  Status add(const Continuation& continuation);
  // Saves a detector's state for a restart. saved_detector() returns the latest one of any segment.
  Status save_detector(std::uint32_t model_index, std::uint32_t dp_group, std::string_view state);
  Result<std::optional<SavedDetector>> saved_detector(std::uint32_t model_index,
                                                      std::uint32_t dp_group);
  // Records the exit code with which a preflight ends this segment.
  Status preflight(int exit_code);

  // Stores the number of this segment's packets that could not be used so far.
  Status count(const PacketCounts& packets);
  // Marks the segment as incomplete from here on; only the first call has an effect. Writing
  // continues.
  Status mark_incomplete(std::string_view why);

  // Whether `tick` would commit. Before that, write everything that belongs to the records so far.
  bool is_due() const;
  Status tick();
  // Commits now, whether or not it is due.
  Status commit();
  // The highest committed step; empty before the first.
  std::optional<std::uint64_t> committed_step() const;
  // Commits, marks the segment as closed and leaves a single plain file.
  Status close();
  // Stops writing after an error. Committed data stays, the segment is not marked as closed, and
  // `why` is stored if the file can still be written.
  void abandon(std::string_view why);

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Opens a writer with the journal mode that suits the folder's file system and the project's salt.
// Creates the folder. Errors: as Writer::open.
Result<Writer> open_writer(const std::filesystem::path& run, const MonotonicClock& clock);

}  // namespace presum::runlog
