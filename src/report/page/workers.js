// SPDX-License-Identifier: Apache-2.0
// Each rank compared with the others: heat map, lines of one rank, table.

const METRICS = {
  loss: {title: 'loss', low: 'lower', high: 'higher'},
  grad_norm: {title: 'gradient norm', low: 'smaller', high: 'larger'},
  cosine: {title: 'direction', low: 'less aligned', high: 'more aligned'},
  token_weight: {title: 'weight of a token', low: 'lighter', high: 'heavier'},
};
// The lines drawn for an opened rank, if known.
const LINES = {...METRICS, own_time: {title: 'own time, ms'}};
const DEVIATION_SHOWN = 6;
const LINE_COLOURS = ['critical', 'ink', 'orange', 'blue'];
const WORKERS_COMPARED = LINE_COLOURS.length;

function paintDeviation(value) {
  if (value === MARK_NONE) return 'hatch';
  if (value === MARK_UNDEFINED) return null;
  if (value === MARK_NONFINITE) return color('broken');
  return diverging(value / 10 / DEVIATION_SHOWN);
}

function sayDeviation(worker, metric, value) {
  const who = capital(workerName(worker));
  if (value === MARK_NONE) return `${who} is missing`;
  if (value === MARK_UNDEFINED) return `${who}: no ${METRICS[metric].title}`;
  if (value === MARK_NONFINITE) return `${who}: ${METRICS[metric].title} is NaN or Inf`;
  const size = Math.abs(value / 10).toFixed(1);
  if (value === 0) return `${who}: as the others`;
  return `${who}: ${METRICS[metric].title} ${size} spreads ${value > 0 ? METRICS[metric].high : METRICS[metric].low} than the others`;
}

// The smallest, median and largest value of the other ranks, row by row.
function othersOf(others, metric) {
  const out = {low: [], mid: [], high: []};
  const rows = others[0]?.lines[metric].length ?? 0;  // 0 if all are chosen
  for (let i = 0; i < rows; ++i) {
    const values = others.map((w) => w.lines[metric][i]).filter((v) => v !== null);
    values.sort((a, b) => a - b);
    const half = values.length >> 1;
    out.low.push(values[0] ?? null);
    out.high.push(values[values.length - 1] ?? null);
    out.mid.push(values.length === 0 ? null : values.length % 2 ? values[half] : (values[half - 1] + values[half]) / 2);
  }
  return out;
}

function rowNames(workers) {
  return workers.map((w) => (w.rank === null ? `(${w.replica})` : String(w.rank)));
}

class WorkersView {
  constructor(parent, run, part, group) {
    Object.assign(this, {run, part, group, metric: this.firstMetric(part)});
    this.open = this.open.bind(this);
    const section = el('section', {class: 'card', id: 'workers'}, el('h2', {}, part.workers.length > 1 ? 'Which rank differs' : 'The rank'),
      part.workers.length < 2 ? null : el('p', {class: 'note'}, 'Each cell: how many typical spreads a rank is away from the median of the others. ' +
        'A row that stays colored is a rank that differs; a colored column is a step that was hard for many. Click a row for that rank’s lines.'));
    parent.append(section);
    if (part.workers.length > 1) this.addHeat(section);
    this.panel = el('div', {class: 'panel', tabindex: -1});
    this.panel.hidden = true;
    section.append(this.panel, this.table());
    this.drawLines(workersNamed(part, part.findings));
  }

  firstMetric(part) {
    const worst = {loss: 0, grad_norm: 0, cosine: 0};
    for (const w of part.workers) {
      for (const m of Object.keys(worst)) worst[m] = Math.max(worst[m], Math.abs(w.furthest[m] ?? 0));
    }
    if (part.coverage.loss_steps > 0 && worst.loss >= worst.grad_norm / 2) return 'loss';
    return 'grad_norm';
  }

  addHeat(section) {
    const known = ([metric]) => this.part.workers.some((w) => w.mean[metric] !== null);
    const buttons = Object.entries(METRICS).filter(known).map(([metric, {title}]) => el('button', {type: 'button', 'data-metric': metric,
      'aria-pressed': String(metric === this.metric), onclick: () => this.choose(metric)}, capital(title)));
    this.buttons = buttons;
    const box = el('div', {class: 'heat'});
    section.append(el('div', {class: 'choices', role: 'group', 'aria-label': 'metric of the heat map'}, ...buttons), box);
    const {workers} = this.part;
    const cell = (row, column) => workers[row].heat[this.metric][column];
    this.heat = new HeatMap(box, {label: 'Deviation of each rank by step', part: this.part,
      rows: rowNames(workers),
      paint: (row, column) => (this.empty(column) ? null : paintDeviation(cell(row, column))),
      say: (row, column) => sayDeviation(workers[row], this.metric, cell(row, column)),
      open: (row) => this.open(workers[row])});
    this.group.followers.push((window) => this.heat.setWindow(window));
    this.scale = el('div', {class: 'keys'});
    section.append(this.scale);
    this.drawScale();
  }

  // A bucket without any rank is between recorded steps.
  empty(column) {
    return this.part.missing[column] === 0 && this.part.workers.every((w) => w.heat.grad_norm[column] === MARK_NONE);
  }

  drawScale() {
    const {low, high} = METRICS[this.metric];
    const key = (name, label) => el('span', {class: 'swatch'}, el('i', {class: name}), label);
    this.scale.replaceChildren(scaleBar(`${DEVIATION_SHOWN} spreads ${low}`, 'as the others', `${DEVIATION_SHOWN} spreads ${high}`, 'diverging'),
      key('hatched', 'missing'), key('broken', 'NaN or Inf'));
  }

  choose(metric) {
    this.metric = metric;
    this.buttons.forEach((b) => b.setAttribute('aria-pressed', String(b.dataset.metric === metric)));
    this.drawScale();
    this.heat.draw();
  }

  closed() {
    this.choseLines = true;
    this.drawLines([]);
  }

  close() {
    for (const chart of this.charts || []) this.group.remove(chart);
    this.charts = [];
    this.panel.hidden = true;
    this.panel.replaceChildren();
  }

  open(worker) {
    this.compare([worker]);
  }

  compare(workers) {
    this.choseLines = true;
    this.drawLines(workers);
    this.panel.focus({preventScroll: true});
    this.panel.scrollIntoView({block: 'nearest'});
  }

  drawLines(workers) {
    this.close();
    this.drawn = workers;
    if (workers.length === 0) return;
    this.panel.hidden = false;
    this.panel.append(el('div', {class: 'panel-head'}, el('h3', {}, this.heading(workers)),
      el('button', {type: 'button', onclick: () => this.closed()}, 'Close')));
    const grid = el('div', {class: 'grid three'});
    this.panel.append(grid);
    for (const [metric, {title}] of Object.entries(LINES)) this.addLines(grid, workers, metric, title);
  }

  others(workers) {
    return this.part.workers.filter((w) => !workers.includes(w));
  }

  heading(workers) {
    const others = this.others(workers);
    const against = others.length === 0 ? '' : ` against ${others.length === 1 ? workerName(others[0]) : 'the others'}`;
    return capital(workersName(workers)) + against;
  }

  addLines(grid, workers, metric, title) {
    const known = workers.filter((w) => w.lines[metric].some((v) => v !== null));
    if (known.length === 0) return;
    const lines = known.map((w) => ({label: workerName(w), color: LINE_COLOURS[workers.indexOf(w)], values: w.lines[metric]}));
    const rest = this.others(workers);
    const others = rest.length === 1 ? {label: workerName(rest[0]), color: 'grey', values: rest[0].lines[metric]} :
      {label: 'others', color: 'grey', band: true, stroke: 1, ...othersOf(rest, metric)};
    const {chart} = addChart(grid, {title: capital(metric === 'cosine' ? 'cosine to the others' : title), x: this.part.x,
      series: rest.length > 0 ? [others, ...lines] : lines, part: this.part, group: this.group, height: 170});
    this.charts.push(chart);
  }

  table() {
    const host = (w) => this.run.hosts[String(w.rank)] ?? '–';
    const total = this.part.coverage.steps;
    const columns = [
      {label: 'Rank', left: true, value: (w) => w.rank ?? w.replica, text: workerName},
      {label: 'Host', left: true, value: host, text: host},
      {label: 'Steps', value: (w) => w.steps, text: (w) => (w.steps === total ? `${total}` : `${w.steps} of ${total}`)},
      ...Object.entries({loss: 'Loss', grad_norm: 'Gradient norm', cosine: 'Cosine', token_weight: 'Weight of a token'}).flatMap(([m, label]) => [
        {label, title: `mean over its steps`, value: (w) => w.mean[m], text: (w) => number(w.mean[m])},
        {label: 'furthest, spreads', title: `largest deviation of its ${METRICS[m].title} from the others, in typical spreads`,
          value: (w) => Math.abs(w.furthest[m] ?? 0), text: (w) => (w.furthest[m] === null ? '–' : w.furthest[m].toFixed(1).replace('-', '−'))}]),
      {label: 'NaN steps', value: (w) => w.nonfinite_steps, text: (w) => String(w.nonfinite_steps)},
      {label: 'Packets dropped', title: 'that it could not send', value: (w) => w.dropped, text: (w) => String(w.dropped)},
    ];
    return sortableTable('Workers', columns, this.part.workers, this.open);
  }
}
