// SPDX-License-Identifier: Apache-2.0
#include "runlog/schema.h"

namespace presum::runlog {

const char* const kTables = R"sql(
CREATE TABLE segment (
  segment INTEGER PRIMARY KEY,
  run TEXT NOT NULL,
  started_utc TEXT NOT NULL,
  presum_version TEXT NOT NULL,
  closed INTEGER NOT NULL DEFAULT 0,
  salt TEXT NOT NULL,
  preflight_exit_code INTEGER,
  damaged INTEGER NOT NULL DEFAULT 0,
  foreign_packets INTEGER NOT NULL DEFAULT 0,
  duplicate INTEGER NOT NULL DEFAULT 0,
  late INTEGER NOT NULL DEFAULT 0,
  incomplete TEXT NOT NULL DEFAULT '',
  incomplete_after INTEGER
);
CREATE TABLE worker (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  replica INTEGER NOT NULL, replicas INTEGER NOT NULL, rank INTEGER NOT NULL, host TEXT NOT NULL,
  sent INTEGER, dropped INTEGER,
  PRIMARY KEY (segment, module, shard, replica)
) WITHOUT ROWID;
CREATE TABLE fact (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, rank INTEGER NOT NULL,
  key TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY (segment, module, rank, key)
) WITHOUT ROWID;
CREATE TABLE group_name (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  id INTEGER NOT NULL, name TEXT NOT NULL, elements INTEGER NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (segment, module, shard, id)
) WITHOUT ROWID;
CREATE TABLE step (
  id INTEGER PRIMARY KEY,
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  step INTEGER NOT NULL,
  workers_expected INTEGER NOT NULL, workers INTEGER NOT NULL,
  loss_mean REAL, loss_std REAL, loss_range REAL,
  grad_norm_mean REAL, grad_norm_std REAL, grad_norm_cv REAL,
  cosine_mean REAL, cosine_low REAL, cosine_high REAL, cosine_source INTEGER NOT NULL,
  consistency REAL, reduced_norm REAL, reduced_disagrees INTEGER NOT NULL,
  signal REAL, noise REAL, noise_scale REAL, effective_workers REAL,
  tokens_cv REAL, distinct_gradients INTEGER NOT NULL, sketch_size INTEGER NOT NULL,
  cosines BLOB,
  mean_norm REAL, mean_norm_error REAL,
  UNIQUE (segment, module, shard, step)
);
CREATE TABLE worker_step (
  step_id INTEGER NOT NULL REFERENCES step(id), replica INTEGER NOT NULL, rank INTEGER NOT NULL,
  loss REAL, loss_nonfinite INTEGER NOT NULL, weight REAL, tokens INTEGER NOT NULL,
  micro_batches INTEGER NOT NULL,
  grad_norm REAL, grad_max REAL, nonfinite INTEGER NOT NULL, cosine_to_others REAL,
  reduced_norm REAL, fingerprint INTEGER NOT NULL, reduced_fingerprint INTEGER NOT NULL,
  optimizer_step INTEGER NOT NULL, dropped INTEGER NOT NULL, skipped_parameters INTEGER NOT NULL,
  micro BLOB,
  rows INTEGER, thinned INTEGER, samples BLOB, indices BLOB, states BLOB,
  PRIMARY KEY (step_id, replica)
) WITHOUT ROWID;
CREATE TABLE group_step (
  step_id INTEGER NOT NULL REFERENCES step(id), group_id INTEGER NOT NULL,
  norm_mean REAL, norm_std REAL, nonfinite INTEGER NOT NULL, norms BLOB NOT NULL,
  maxima BLOB NOT NULL,
  fingerprints BLOB,
  PRIMARY KEY (step_id, group_id)
) WITHOUT ROWID;
CREATE TABLE missing_worker (
  step_id INTEGER NOT NULL REFERENCES step(id), replica INTEGER NOT NULL,
  PRIMARY KEY (step_id, replica)
) WITHOUT ROWID;
CREATE TABLE note (
  id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, rank INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE TABLE fingerprint (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  replica INTEGER NOT NULL, kind INTEGER NOT NULL, step INTEGER NOT NULL, value INTEGER NOT NULL,
  PRIMARY KEY (segment, module, shard, replica, kind, step)
) WITHOUT ROWID;
CREATE TABLE final_state (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  replica INTEGER NOT NULL, optimizer_steps INTEGER NOT NULL, states BLOB NOT NULL,
  PRIMARY KEY (segment, module, shard, replica)
) WITHOUT ROWID;
CREATE TABLE finding (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL, id INTEGER NOT NULL,
  check_id TEXT NOT NULL, also TEXT NOT NULL, severity INTEGER NOT NULL,
  ranks TEXT NOT NULL, hosts TEXT NOT NULL,
  first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, confidence REAL NOT NULL,
  title TEXT NOT NULL, evidence TEXT NOT NULL, remedy TEXT NOT NULL, resembles TEXT NOT NULL,
  PRIMARY KEY (segment, module, shard, id)
) WITHOUT ROWID;
CREATE TABLE check_state (
  segment INTEGER NOT NULL, module INTEGER NOT NULL, shard INTEGER NOT NULL,
  position INTEGER NOT NULL, check_id TEXT NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL,
  PRIMARY KEY (segment, module, shard, position)
) WITHOUT ROWID;
CREATE TABLE detector_state (
  module INTEGER NOT NULL, shard INTEGER NOT NULL, segment INTEGER NOT NULL, state BLOB NOT NULL,
  PRIMARY KEY (module, shard)
) WITHOUT ROWID;
)sql";

const char* const kViews = R"sql(
CREATE VIEW steps AS
  SELECT step, segment, module, shard, workers_expected, workers, loss_mean, loss_std, loss_range,
    grad_norm_mean, grad_norm_std, grad_norm_cv, cosine_mean, cosine_low, cosine_high,
    CASE cosine_source WHEN 1 THEN 'sketch' WHEN 2 THEN 'total-norm' WHEN 3 THEN 'row-sums'
      WHEN 4 THEN 'exact' WHEN 5 THEN 'gram' ELSE 'none' END AS cosine_source,
    consistency, reduced_norm, reduced_disagrees, signal, noise, noise_scale, effective_workers,
    tokens_cv, distinct_gradients, sketch_size, mean_norm, mean_norm_error
  FROM step ORDER BY segment, module, shard, step;
CREATE VIEW workers AS
  SELECT s.step, s.segment, s.module, s.shard, w.rank, w.replica, k.host, w.loss, w.weight,
    w.tokens, w.micro_batches, w.grad_norm, w.grad_max, w.nonfinite, w.loss_nonfinite,
    w.cosine_to_others, w.reduced_norm, w.optimizer_step, w.dropped, w.skipped_parameters,
    printf('%016x', w.fingerprint) AS fingerprint,
    CASE WHEN w.reduced_norm IS NULL AND w.reduced_fingerprint = 0 THEN NULL
      ELSE printf('%016x', w.reduced_fingerprint) END AS reduced_fingerprint
  FROM step s JOIN worker_step w ON w.step_id = s.id
  LEFT JOIN worker k ON k.segment = s.segment AND k.module = s.module AND k.shard = s.shard
    AND k.replica = w.replica
  ORDER BY s.segment, s.module, s.shard, s.step, w.replica;
CREATE VIEW group_values AS
  SELECT s.id AS step_id, s.step, s.segment, s.module, s.shard, n.name AS "group", n.elements,
    g.norm_mean, g.norm_std, g.nonfinite, g.norms, g.maxima
  FROM step s JOIN group_step g ON g.step_id = s.id
  LEFT JOIN group_name n ON n.segment = s.segment AND n.module = s.module AND n.shard = s.shard
    AND n.id = g.group_id
  ORDER BY s.segment, s.module, s.shard, s.step, n.name;
CREATE VIEW groups AS
  SELECT step, segment, module, shard, "group", elements, norm_mean, norm_std, nonfinite
  FROM group_values;
CREATE VIEW missing AS
  SELECT s.step, s.segment, s.module, s.shard, m.replica
  FROM step s JOIN missing_worker m ON m.step_id = s.id
  ORDER BY s.segment, s.module, s.shard, s.step, m.replica;
CREATE VIEW findings AS
  SELECT segment, module, shard, check_id, also,
    CASE severity WHEN 2 THEN 'critical' WHEN 1 THEN 'warning' ELSE 'info' END AS severity,
    ranks, hosts, first_step, last_step, confidence, title, evidence, remedy, resembles
  FROM finding ORDER BY segment, module, shard, finding.severity DESC, first_step, id;
)sql";

}  // namespace presum::runlog
