// SPDX-License-Identifier: Apache-2.0
// A run's verdict and coverage in words.

const SEVERITIES = ['info', 'warning', 'critical'];

// -1 for a run without a finding.
function worstSeverity(run) {
  return run.judgment.findings.reduce((worst, f) => Math.max(worst, SEVERITIES.indexOf(f.severity)), -1);
}

function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function consistentText({count: findings, checks}) {
  const inState = (state) => checks.filter((c) => c.state === state).length;
  const impossible = inState('not-possible');
  return `Consistent${findings ? `, ${count(findings, 'finding')}` : ''}: ${count(inState('passed'), 'check')} passed, ${inState('not-triggered')} had nothing to look at yet, ` +
    `${impossible} ${impossible === 1 ? 'was' : 'were'} not possible here.`;
}

function inconsistentText({count: findings, findings: [worst]}) {
  const more = findings === 1 ? '' : ` ${capital(inWords(findings - 1))} more finding${findings === 2 ? '' : 's'} below.`;
  return `Inconsistent: ${sentence(worst.sentence)}${more}`;
}

// The verdict on a run, as {level, text}.
function verdict(run) {
  const judgment = run.judgment;
  if (judgment.verdict === 'inconsistent') {
    return {level: judgment.findings[0].severity, text: inconsistentText(judgment)};
  }
  if (judgment.verdict === 'consistent') return {level: 'ok', text: consistentText(judgment)};
  const reason = judgment.reason ? `: ${judgment.reason}` : '';
  return {level: 'empty', text: sentence(capital(judgment.verdict.replace('-', ' ')) + reason)};
}

const PREFLIGHT = ['consistent', 'inconsistent', 'could not judge'];

function preflightText(code) {
  return `preflight: ended with exit code ${code}${PREFLIGHT[code] ? ` (${PREFLIGHT[code]})` : ''}`;
}

// What was recorded, as short phrases.
function coverage(run, part) {
  const c = part.coverage;
  const out = [
    `${count(c.steps, 'step')} (${c.first_step}–${c.last_step})`,
    `${c.workers_seen} of ${count(c.workers_expected, 'rank')}`,
  ];
  if (c.incomplete_steps > 0) out.push(`${count(c.incomplete_steps, 'step')} with a rank missing`);
  if (run.segments.length > 1) out.push(`segment ${part.segment} of ${run.segments.length}`);
  const how = run.continuations.find((c) => samePart(c, part));
  if (how) out.push(how.outcome);
  const segment = run.segments.find((s) => s.segment === part.segment);
  if (segment) out.push(`started ${segment.started.replace('T', ' ').replace('Z', ' UTC')}`);
  if (segment && segment.incomplete) out.push(segment.incomplete);
  else if (segment && !segment.closed) out.push('not closed (still running, or died): judged on the steps written');
  if (segment && segment.preflight_exit_code !== null) out.push(preflightText(segment.preflight_exit_code));
  if (segment && packetsText(segment.packets)) out.push(packetsText(segment.packets));
  return out;
}

// Packets that could not be used.
function packetsText(packets) {
  const kinds = [[packets.late, 'arrived late'], [packets.duplicate, 'came twice'],
    [packets.damaged, 'damaged'], [packets.foreign, 'of another run']];
  return kinds.filter(([n]) => n > 0).map(([n, what]) => `${count(n, 'packet')} ${what}`).join(', ');
}

function notMeasured(part) {
  const c = part.coverage;
  const out = [];
  if (c.loss_steps === 0) out.push('losses (none was reported)');
  else if (c.loss_steps < c.steps) out.push(`losses in ${count(c.steps - c.loss_steps, 'step')}`);
  if (c.workers_expected < 2) out.push('differences between ranks (there is one)');
  else if (c.cosine_steps === 0) out.push('direction (no sketch)');
  else if (c.cosine_steps < c.steps) out.push(`direction in ${count(c.steps - c.cosine_steps, 'step')}`);
  if (c.reduced_steps === 0) out.push('the reduced gradient');
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
