// SPDX-License-Identifier: Apache-2.0
// What a run's hard facts and its coverage mean, in words.

// In the order in which the first one makes the verdict.
const KINDS = {
  'nonfinite-gradient': {
    title: 'Non-finite gradient', level: 'critical',
    remedy: "Look at that worker's batch at the first step, its loss and its device.",
    says: (who, when) => `${who} sent a gradient with NaN or Inf ${when}; the sum hands it to every worker.`,
  },
  'nonfinite-loss': {
    title: 'Non-finite loss', level: 'critical',
    remedy: "Look at that worker's batch at the first step.",
    says: (who, when) => `${who} had a loss of NaN or Inf ${when}.`,
  },
  'identical-gradients': {
    title: 'Identical gradients', level: 'warning',
    remedy: 'These workers read the same data: give each its own shard (DistributedSampler with its rank).',
    says: (who, when, run, fact) => `${who} hold identical gradients ${when}${workDone(run, fact)}.`,
  },
  'zero-gradient': {
    title: 'Zero gradient', level: 'warning',
    remedy: 'Are all its labels masked, or is its loss detached?',
    says: (who, when) => `${who} contributed a gradient of zero ${when}.`,
  },
  'missing-worker': {
    title: 'Missing worker', level: 'warning',
    remedy: "Did it die, or could its packets not be sent? The run's notes may say.",
    says: (who, when, run, fact) => `${who} ${fact.ranks.length === 1 ? 'is' : 'are'} missing ${when}.`,
  },
};

function partsOf(run, fact) {
  return run.parts.filter((p) => p.segment === fact.segment && p.module === fact.module);
}

function stepsOf(run, fact) {
  return Math.max(...partsOf(run, fact).map((p) => p.coverage.steps), fact.steps);
}

function when(run, fact) {
  const total = stepsOf(run, fact);
  if (fact.mixed) return `in up to ${fact.steps.toLocaleString('en')} of ${count(total, 'step')}, first at ${fact.first_step}`;
  if (fact.steps === total) return total === 1 ? 'in its only step' : `in all ${total.toLocaleString('en')} steps`;
  if (fact.steps === 1) return `at step ${fact.first_step}`;
  return `in ${fact.steps.toLocaleString('en')} of ${count(total, 'step')}, first at ${fact.first_step}`;
}

function workDone(run, fact) {
  const coverage = partsOf(run, fact)[0].coverage;
  const steady = coverage.distinct_min === coverage.distinct_max && fact.steps === coverage.steps;
  if (!steady) return '';
  return `: ${inWords(coverage.workers_seen)} workers do the work of ${inWords(coverage.distinct_max)}`;
}

// Facts of one kind as one, for the verdict; a run lists them apart below it.
function merged(facts) {
  if (facts.length === 1) return facts[0];
  const ranks = [...new Set(facts.flatMap((f) => f.ranks))].sort((a, b) => a - b);
  return {...facts[0], mixed: true, ranks, first_step: Math.min(...facts.map((f) => f.first_step)),
    steps: Math.max(...facts.map((f) => f.steps))};
}

function noFact(run) {
  const losses = run.parts.some((p) => p.coverage.loss_steps > 0) ? 'loss and gradient' : 'gradient';
  return `No hard fact against this run: every ${losses} is finite, none is zero, no two workers ` +
    'hold the same gradient and no worker is missing.';
}

// {level, text} of a run: its verdict, and the kind of fact that it rests on.
function verdict(run) {
  if (run.parts.length === 0) {
    return {level: 'empty', text: 'No step was recorded, so there is nothing to judge. ' +
      'Was a backward pass run after presum was attached?'};
  }
  const kind = Object.keys(KINDS).find((k) => run.hard_facts.some((f) => f.kind === k));
  if (kind) {
    const fact = merged(run.hard_facts.filter((f) => f.kind === kind));
    return {level: KINDS[kind].level, kind,
      text: KINDS[kind].says(capital(ranksText(fact.ranks)), when(run, fact), run, fact)};
  }
  if (run.parts.every((p) => p.coverage.workers_expected === 1)) {
    return {level: 'ok', text: 'One worker: there is no other to compare it with. Its losses and gradients are finite.'};
  }
  return {level: 'ok', text: noFact(run)};
}

// What was recorded, as short phrases.
function coverage(run, part) {
  const c = part.coverage;
  const out = [
    `${count(c.steps, 'step')} (${c.first_step}–${c.last_step})`,
    `${c.workers_seen} of ${count(c.workers_expected, 'worker')}`,
  ];
  if (c.incomplete_steps > 0) out.push(`${count(c.incomplete_steps, 'step')} with a worker missing`);
  if (run.segments.length > 1) out.push(`${run.segments.length} segments (the run was restarted)`);
  const segment = run.segments.find((s) => s.segment === part.segment);
  if (segment) out.push(`started ${segment.started.replace('T', ' ').replace('Z', ' UTC')}`);
  if (segment && !segment.closed) out.push('not closed: still running, or it died');
  return out;
}

function notMeasured(part) {
  const c = part.coverage;
  const out = [];
  if (c.loss_steps === 0) out.push('losses (none was reported)');
  else if (c.loss_steps < c.steps) out.push(`losses in ${count(c.steps - c.loss_steps, 'step')}`);
  if (c.workers_expected < 2) out.push('differences between workers (there is one)');
  else if (c.cosine_steps === 0) out.push('direction (no sketch)');
  else if (c.cosine_steps < c.steps) out.push(`direction in ${count(c.steps - c.cosine_steps, 'step')}`);
  if (c.reduced_steps === 0) out.push('the reduced gradient');
  if (c.workers_expected > 1) out.push('whether the spread is more than noise');
  return out;
}

const SETTINGS = {
  1: {title: 'S1-1 strict', expects: 'The paper expects low dispersion, high consistency'},
  2: {title: 'S1-2 one deviates', expects: 'The paper expects moderate dispersion and consistency'},
  3: {title: 'S1-3 independent', expects: 'The paper expects high dispersion, low consistency'},
};

function s1Of(run) {
  const match = /^(sharded|replicated)-S1-([123])$/.exec(run.name);
  return match && {mode: match[1], setting: Number(match[2])};
}
