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
  std::uint32_t segment = 0;  // which one saved it
  std::string state;
  bool operator==(const SavedDetector&) const = default;
};

// Appends one run's records to its database. Commits at most a second after a record came in, as
// long as `tick` is called; a process that dies loses at most that second, never the database.
// Thread-safety: one thread at a time. Ownership: holds the database file until destroyed.
class Writer {
 public:
  // Creates the folder and the database, or opens an existing one and begins its next segment.
  // The file holds row hashes keyed with `salt`, so that outsiders cannot look samples up
  // (docs/runlog_format.md, "Salt").
  // Errors: kIo (not writable, no space), kCorrupt or kUnsupported (what is there is not ours).
  static Result<Writer> open(const std::filesystem::path& folder, MonotonicClock clock,
                             Journal journal, std::uint64_t salt = 0);
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

  std::uint64_t run() const;
  std::uint32_t segment() const;

  Status add(const packet::Hello& hello);
  Status add(const packet::Note& note);
  // Of a worker's saved snapshots the last eight are kept.
  Status add(const packet::SnapshotOf& snapshot);
  Status add(StepRecord record);

  // A stall of this segment; one of a number that was written before is replaced.
  Status add(const Stall& stall);

  // The findings and checks of one model of this segment, in place of those given before.
  Status replace(const ModelKey& model, std::span<const Finding> findings,
                 std::span<const CheckRecord> checks);
  // How a model of this segment began; a later one of the same model takes its place.
  Status add(const Continuation& continuation);
  // Saves a detector's state for a restart; saved_detector() returns the latest of any segment.
  Status save_detector(std::uint32_t model_index, std::uint32_t dp_group, std::string_view state);
  Result<std::optional<SavedDetector>> saved_detector(std::uint32_t model_index,
                                                      std::uint32_t dp_group);
  // The exit code with which a preflight ends this segment.
  Status preflight(int exit_code);

  // Stores the counts of this segment's packets that were not used so far.
  Status count(const PacketCounts& packets);
  // Marks the segment as incomplete from here on; the first call counts. Writing goes on.
  Status mark_incomplete(std::string_view why);

  // Whether `tick` would commit. Write what belongs to the records so far before it does.
  bool is_due() const;
  Status tick();
  // Now, whether that is due or not.
  Status commit();
  // The highest step that was committed; none before the first.
  std::optional<std::uint64_t> committed_step() const;
  // Commits, marks the segment as closed and leaves one plain file.
  Status close();
  // Ends the writing after an error. What was committed stays, the segment is not marked as closed,
  // and `why` is stored if the file can still be written.
  void abandon(std::string_view why);

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A writer as it suits the folder's file system, with the project's salt. Creates the folder.
// Errors: those of Writer::open.
Result<Writer> open_writer(const std::filesystem::path& run, const MonotonicClock& clock);

}  // namespace presum::runlog
