// SPDX-License-Identifier: Apache-2.0
// Findings as cards and as bars over the steps, and the results of all checks.

const CARDS_OPEN = 4;  // further findings are folded
const MARKED = 8;  // further findings are not marked in the charts
const VALUE_SHOWN = 160;  // characters; longer evidence is folded

function samePart(a, b) {
  return a.segment === b.segment && a.model_index === b.model_index && a.dp_group === b.dp_group;
}

// Whether a finding belongs to this part or also shows in it.
function isOf(finding, part) {
  const shows = (f) => f.model_index === part.model_index && f.dp_group === part.dp_group;
  return finding.segment === part.segment && (shows(finding) || finding.elsewhere.some(shows));
}

function stepsText(finding) {
  const {first_step: first, last_step: last} = finding;
  return first === last ? `step ${first}` : `steps ${first}–${last}`;
}

function partText(run, of) {
  const bits = [];
  if (run.segments.length > 1) bits.push(`segment ${of.segment}`);
  if (run.parts.some((p) => p.model_index > 0)) bits.push(`model ${of.model_index}`);
  if (run.parts.some((p) => p.dp_group > 0)) bits.push(`data-parallel group ${of.dp_group}`);
  return bits.join(', ');
}

function percent(share) {
  return share === null ? '–' : `${Math.floor(Math.min(1, Math.max(0, share)) * 100)}%`;
}

function whereText(run, finding) {
  const ranks = ranksText(finding.ranks) + (finding.hosts.length ? ` on ${hostsText(finding.hosts)}` : '');
  const others = finding.elsewhere.map((other) => partText(run, {...other, segment: finding.segment}));
  return [ranks, partText(run, finding), others.length ? `also ${others.join('; ')}` : '', `confidence ${percent(finding.confidence)}`].filter(Boolean).join(' · ');
}

// Folds a long text: shows its beginning, and all of it when opened.
function folded(text) {
  if (text.length <= VALUE_SHOWN) return prose(text);
  return el('details', {class: 'long'}, el('summary', {}, el('span', {}, `${plain(text.slice(0, VALUE_SHOWN - 20))}…`)), prose(text));
}

function valueText(value) {
  if (Array.isArray(value)) return value.map(valueText).join(', ');
  if (value !== null && typeof value === 'object') return Object.entries(value).map(([name, of]) => `${name} ${valueText(of)}`).join('; ');
  return typeof value !== 'number' ? String(value) : Number.isInteger(value) ? value.toLocaleString('en') : number(value);
}

function evidenceList({values}) {
  return el('dl', {class: 'evidence'}, ...Object.entries(values).map(([name, value]) =>
    el('div', {}, el('dt', {}, name.replaceAll('_', ' ')), el('dd', {}, folded(valueText(value))))));
}

// The evidence of a finding's own check, and other evidence of the same cause.
function evidenceOf(finding) {
  const [own, ...others] = finding.evidence;
  if (!own || (others.length === 0 && Object.keys(own.values).length === 0)) return null;
  return el('details', {class: 'raw'}, el('summary', {}, 'The evidence as recorded'), evidenceList(own),
    ...others.flatMap((other) => [el('p', {}, prose(other.sentence), ' ', el('code', {}, other.check)), evidenceList(other)]));
}

// What `presum explain` says of a check.
function explanationOf(check) {
  const known = catalog[check];
  if (!known) return null;
  const line = (label, text) => el('p', {}, el('b', {}, `${label}: `), text);
  return el('details', {class: 'raw'}, el('summary', {}, 'About this check'), line('It looks at', prose(known.looks_at)), line('It cannot see', prose(known.blind)),
    el('p', {}, el('b', {}, 'The mistake in code:')), el('pre', {}, known.code));
}

// The ranks that a finding points at, as many as are drawn at once. Empty if the finding is about
// all of many ranks, or about the only rank.
function workersOf(part, finding) {
  const all = finding.ranks.length >= part.workers.length;
  if (all && (part.workers.length < 2 || part.workers.length > WORKERS_COMPARED)) return [];
  return part.workers.filter((w) => finding.ranks.includes(w.rank)).slice(0, WORKERS_COMPARED);
}

// The ranks that findings point at, the worst finding's first; as many as are drawn at once.
function workersNamed(part, findings) {
  return [...new Set(findings.flatMap((finding) => workersOf(part, finding)))].slice(0, WORKERS_COMPARED);
}

function showButton(run, finding, show) {
  const part = run.parts.find((p) => samePart(p, finding));
  if (!part) return null;
  const workers = workersOf(part, finding);
  return el('button', {type: 'button', class: 'no-print', onclick: () => show(finding)},
    `Show ${stepsText(finding)}${workers.length ? ` and ${workersName(workers)}` : ''}`);
}

function findingCard(run, finding, show) {
  const line = (label, text, shown = prose) => (text ? el('p', {}, el('b', {}, `${label}: `), shown(text)) : null);
  return el('article', {class: `finding ${finding.severity}`, 'data-check': finding.check, 'data-key': `${finding.check} ${finding.ranks} ${finding.first_step}`},
    el('header', {}, el('span', {class: `badge ${finding.severity}`}, finding.severity), el('h3', {}, prose(finding.sentence))),
    el('p', {class: 'note'}, el('code', {}, finding.check), ` · ${whereText(run, finding)}`),
    finding.consequence ? el('p', {}, prose(finding.consequence)) : null, line('Evidence', finding.evidence_text, folded), line('Suspects', finding.suspects),
    line('What to do', finding.remedy), line('Also seen, from the same cause', finding.also.join(', ')), line('Resembles', finding.resembles),
    evidenceOf(finding), explanationOf(finding.check), showButton(run, finding, show));
}

function findingsSection(run, show) {
  const {findings, count: total} = run.judgment;
  if (findings.length === 0) return null;
  const cards = findings.map((f) => findingCard(run, f, show));
  const rest = cards.slice(CARDS_OPEN);
  const left = total - findings.length;
  return el('section', {class: 'card', id: 'findings', 'aria-label': 'findings'}, el('h2', {}, count(total, 'finding')), ...cards.slice(0, CARDS_OPEN),
    rest.length ? el('details', {}, el('summary', {}, `${count(rest.length, 'more finding')}`), ...rest) : null,
    left > 0 ? el('p', {class: 'note'}, `and ${left} more in the run: presum findings lists them all`) : null);
}

// The range of steps to show for a finding: its own and some around them. Null: all steps.
function windowOf(part, finding) {
  const [first, last] = [part.x[0], part.coverage.last_step];
  const around = Math.max(10, Math.ceil((finding.last_step - finding.first_step) * 0.15));
  const window = [Math.max(first, finding.first_step - around), Math.min(last, finding.last_step + around)];
  return window[0] >= window[1] || (window[0] === first && window[1] === last) ? null : window;
}

// One bar per finding, above a chart of steps. `place` aligns the bars with the chart.
function findingBars(part, show) {
  const bars = part.findings.slice(0, MARKED).map((finding) => ({finding, span: el('i', {class: finding.severity}),
    button: el('button', {type: 'button', class: finding.severity, title: plain(finding.title), onclick: () => show(finding)},
      `${finding.check}, ${ranksText(finding.ranks)}`)}));
  const box = el('div', {class: 'bars no-print', role: 'group', 'aria-label': 'findings by step'},
    ...bars.map(({span, button}) => el('div', {class: 'lane'}, span, button)));
  const place = (chart) => {
    const {x, w} = chart.getArea();
    const inside = (step) => Math.min(x + w, Math.max(x, chart.toDomXCoord(step)));
    for (const {finding, span, button} of bars) {
      const [left, right] = [inside(finding.first_step - 0.5), inside(finding.last_step + 0.5)];
      button.parentElement.hidden = left >= x + w || right <= x;
      span.style.left = `${left}px`;
      span.style.width = `${Math.max(3, right - left)}px`;
      const late = left + button.offsetWidth > x + w;
      button.style.left = late ? 'auto' : `${left}px`;
      button.style.right = late ? `calc(100% - ${left}px)` : 'auto';
    }
  };
  return {box, place};
}

// The results of the audits of the reduction, for the part that is shown.
function auditSection(run, part) {
  const audit = run.judgment.audits.find((a) => samePart(a, part));
  if (!audit) return null;
  const item = (label, value, title) => el('div', {title}, el('dt', {}, label), el('dd', {}, value));
  const off = audit.differing / audit.elements;
  const repeats = audit.repeated === 0 ? 'not repeated' : audit.repeats_differing === 0 ? 'same bits' : `other bits in ${audit.repeats_differing} of ${audit.repeated}`;
  return el('section', {class: 'card', id: 'audits'}, el('h2', {}, 'The sum, audited'),
    el('p', {class: 'note'}, `${count(audit.audits, 'audit')} by the ranks at ${count(audit.steps, 'step')} (${stepsText(audit)}), ${audit.elements.toLocaleString('en')} elements of ${audit.gradient} gradients, compared with the exact sum.`),
    el('dl', {class: 'numbers'}, item('added in', audit.accumulation, 'the narrowest format that partial sums were rounded to'),
      item('order', audit.order, 'in which the ranks’ values were added'),
      item('mean by', audit.division, 'how the sum became a mean'),
      item('not correctly rounded', `${number(100 * off)} %`, 'share of the elements that are not the exact sum, rounded once'),
      item('relative error', audit.relative_l2 === null ? '–' : audit.relative_l2.toExponential(2), 'largest of all audits: norm of the error over the norm of the exact sum'),
      audit.ulps ? item('ulps 99 %', audit.ulps.p99.toLocaleString('en'), `units in the last place off: half of the elements at most ${audit.ulps.p50}, 90 % at most ${audit.ulps.p90}, 99 % at most ${audit.ulps.p99}, the largest ${audit.ulps.max}`) : null,
      item('wrong', audit.wrong.toLocaleString('en'), 'elements further off than rounding explains'),
      item('the same sum again', repeats, 'whether the same reduction of the same gradients gave the same bits')));
}

const STATES = {found: 'found', passed: 'passed', 'not-triggered': 'not triggered', 'not-possible': 'not possible'};

function checkRow({check, state, reason}) {
  return el('tr', {}, el('th', {scope: 'row'}, el('code', {}, check)), el('td', {class: `left state ${state}`}, STATES[state]),
    el('td', {class: 'left'}, prose(catalog[check]?.looks_at ?? ''), reason ? el('span', {class: 'quiet'}, prose(catalog[check] ? ` – ${reason}` : reason)) : null));
}

// The checks of the part that is shown, or of a run without parts.
function checksSection(run, part) {
  const checks = run.judgment.checks.filter((c) => !part || samePart(c, part));
  if (checks.length === 0) return null;
  const states = Object.keys(STATES).map((state) => checks.filter((c) => c.state === state));
  const counts = states.map((of, i) => `${of.length} ${Object.values(STATES)[i]}`).filter((_, i) => states[i].length > 0);
  return el('details', {class: 'card', id: 'checks'}, el('summary', {}, el('h2', {}, `${count(checks.length, 'check')}: ${counts.join(', ')}`)),
    el('p', {class: 'note'}, 'Passed: it looked, and what should hold held. Not triggered: armed, but what it looks at did not happen. Not possible: the run does not have what it needs.'),
    scrollBox('Checks', false, el('table', {class: 'facts'}, el('tbody', {}, ...states.flat().map(checkRow)))));
}
