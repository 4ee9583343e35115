// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes: a bar and a row of the map for each rank, and the cost of waiting.

const PHASES = {data: 'data', forward: 'forward', backward: 'backward', optimizer: 'optimizer',
  rest: 'rest', reduction: 'waiting for others'};
const HOUR = 3600;

function threeDigits(value) {
  if (value === 0) return '0';
  return value < 100 ? value.toPrecision(3) : Math.round(value).toLocaleString('en');
}

// A duration with a suitable unit.
function duration(seconds) {
  if (seconds === null) return '–';
  if (seconds < 1) return `${threeDigits(1000 * seconds)} ms`;
  const [unit, name] = [[HOUR, 'h'], [60, 'min']].find(([size]) => seconds >= 2 * size) ?? [1, 's'];
  return `${threeDigits(seconds / unit)} ${name}`;
}

// A sum of the times of several ranks.
function rankTime(seconds) {
  const [unit, name] = [[HOUR, 'hours'], [60, 'minutes']].find(([size]) => seconds >= size) ?? [1, 'seconds'];
  return `${threeDigits(seconds / unit)} rank-${name}`;
}

function stepTime(mean) {
  return mean.data === null ? null : Object.keys(PHASES).reduce((sum, phase) => sum + mean[phase], 0);
}

function ownTime(mean) {
  return mean.data === null ? null : stepTime(mean) - mean.reduction;
}

// How often steps were recorded; null if all were.
function sparseText(run, part) {
  const every = run.facts.find((f) => f.segment === part.segment && f.key === 'every')?.values[0].value ?? '1';
  return every === '1' ? null : `one in ${every}`;
}

function waitingLine(run, part) {
  const {waited, total, steps} = part.time;
  const sparse = sparseText(run, part);
  const of = sparse ? `of the recorded steps, which are ${sparse}` : 'recorded';
  return el('div', {id: 'waiting'}, el('p', {}, 'Waiting for others cost ', el('b', {}, rankTime(waited)), `, ${threeDigits(100 * waited / total)}% of all time ${of}.`),
    el('p', {class: 'note'}, `Over ${count(steps, 'step')}: what each rank waited in reductions beyond the one that waited least in the same step.`));
}

function timeBar({name, mean}, longest) {
  const [own, whole] = [ownTime(mean), stepTime(mean)];
  const text = `${name}: ${Object.entries(PHASES).map(([phase, label]) => `${label} ${duration(mean[phase])}`).join(', ')}`;
  const pieces = Object.keys(PHASES).filter((phase) => mean[phase] > 0).map((phase) => {
    const piece = el('i', {class: `phase ${phase}`});
    piece.style.width = `${100 * mean[phase] / longest}%`;
    return piece;
  });
  return el('div', {class: 'time-bar', role: 'img', 'aria-label': text, title: text}, el('span', {}, name),
    el('span', {class: 'track'}, ...pieces), el('span', {class: 'quiet'}, `${duration(own)} of ${duration(whole)}`));
}

function timeBars(workers) {
  const longest = Math.max(...workers.map((w) => stepTime(w.mean)));
  const legend = Object.entries(PHASES).map(([phase, label]) => el('span', {class: 'swatch'}, el('i', {class: `phase ${phase}`}), label));
  return el('figure', {class: 'time'}, el('figcaption', {}, el('h3', {}, 'The mean step of each rank'),
    el('p', {class: 'note'}, 'To the right: its own time, of the whole step.'), el('div', {class: 'keys'}, ...legend)),
  scrollBox('Mean time of a step by rank', workers.length > ROWS_SHOWN, ...workers.map((w) => timeBar(w, longest))));
}

function timeTable(workers) {
  const column = (label, of, title) => ({label, title, value: (w) => of(w.mean), text: (w) => duration(of(w.mean))});
  return sortableTable('Times', [
    {label: 'Rank', left: true, value: (w) => w.rank, text: (w) => w.name},
    {label: 'Steps', title: 'whose times are known', value: (w) => w.steps, text: (w) => String(w.steps)},
    column('Own time', ownTime, 'mean over its steps of all but waiting for others'),
    ...Object.entries(PHASES).map(([phase, label]) => column(capital(label), (mean) => mean[phase])),
  ], workers);
}

// The ranks' own time by step. The color scale ends at the 98th percentile, so that a single
// checkpoint does not use up its range.
class TimeMap {
  constructor(parent, part, group, view) {
    Object.assign(this, {part, view});
    this.cells = part.time.workers.map((w) => largestInBuckets(part, w.own));
    const sorted = this.cells.flat().filter((v) => v !== null).sort((a, b) => a - b);
    this.low = sorted[0];
    this.high = sorted[Math.floor(0.98 * (sorted.length - 1))];
    const box = el('div', {class: 'heat'});
    parent.append(box);
    const heat = new HeatMap(box, {label: 'Own time of each rank by step', part, rows: rowNames(part.workers),
      paint: (row, column) => this.paint(row, column), say: (row, column) => this.say(row, column),
      open: (row) => view.open(part.workers[row])});
    group.followers.push((window) => heat.setWindow(window));
    const beyond = this.high < sorted[sorted.length - 1] ? ' and more' : '';
    parent.append(el('div', {class: 'keys'}, scaleBar(`${number(this.low)} ms`, null, `${number(this.high)} ms${beyond}`, 'sequential'),
      el('span', {class: 'swatch'}, el('i', {class: 'hatched'}), 'missing')));
  }

  missing(row, column) {
    return this.part.workers[row].heat.grad_norm[column] === MARK_NONE;
  }

  paint(row, column) {
    const value = this.cells[row][column];
    if (value !== null) return sequential((value - this.low) / (this.high - this.low || 1));
    return this.missing(row, column) && !this.view.empty(column) ? 'hatch' : null;
  }

  say(row, column) {
    const who = capital(workerName(this.part.workers[row]));
    const value = this.cells[row][column];
    if (value !== null) return `${who}: ${number(value)} ms of its own`;
    return this.missing(row, column) ? `${who} is missing` : `${who}: its time is not known`;
  }
}

// `view`: the ranks' view, which can open a rank. Says nothing about waiting if no reduction was
// seen.
function drawTime(parent, run, part, group, view) {
  if (!part.time) return;
  const waits = part.workers.length > 1 && part.time.workers.some((w) => w.mean.reduction > 0);
  const section = el('section', {class: 'card', id: 'time'}, el('h2', {}, 'Where the time goes'), waits ? waitingLine(run, part) : null);
  parent.append(section);
  const workers = part.workers.map((w, i) => ({rank: w.rank, name: workerName(w), ...part.time.workers[i]})).filter((w) => w.steps > 0);
  section.append(timeBars(workers), el('h3', {}, 'Own time by step'), el('p', {class: 'note'},
    'Without the time it waits for others. A row that stands out is a slow rank; a cell that stands out, a pause. Click a row for that rank’s lines.'));
  new TimeMap(section, part, group, view);
  section.append(timeTable(workers));
}
