// SPDX-License-Identifier: Apache-2.0
// Everything about one run.

const LEVELS = {critical: '✕', warning: '!', info: 'i', ok: '✓', empty: '–'};

function verdictLine(run, tag) {
  const {level, text} = verdict(run);
  return el(tag, {class: `verdict ${level}`}, el('i', {class: 'mark', 'aria-hidden': 'true'}, LEVELS[level]), el('span', {}, prose(text)));
}

function coverageList(run, part) {
  const missing = notMeasured(part);
  const disagrees = part.coverage.reduced_disagrees_steps;
  return el('ul', {class: 'coverage', 'aria-label': 'coverage'}, ...coverage(run, part).map((text) => el('li', {}, text)),
    disagrees ? el('li', {class: 'alert'}, `the reduced gradient is not the mean of the ranks’ in ${count(disagrees, 'step')}`) : null,
    missing.length ? el('li', {class: 'lacks'}, `not measured: ${missing.join(', ')}`) : null);
}

function partName(part, run) {
  return `${partText(run, part) || 'part'}: ${count(part.coverage.steps, 'step')}`;
}

function partPicker(run, chosen, choose) {
  if (run.parts.length < 2) return null;
  const select = el('select', {id: 'part', onchange: (event) => choose(run.parts[Number(event.target.value)])},
    ...run.parts.map((p, i) => el('option', {value: i}, partName(p, run))));
  select.value = String(run.parts.indexOf(chosen));
  return el('label', {class: 'part-picker'}, 'Show ', select);
}

const STORY_LINES = 2;  // the most ranks with a separate line

function storySeries(part) {
  const {loss_mean: mean, loss_min: low, loss_max: high} = part.series;
  if (part.workers.length < 2) return [{label: 'loss', color: 'blue', values: mean}];
  return [{label: 'the ranks, lowest to highest', color: 'orange', band: true, low, high},
    {label: 'averaged loss, as dashboards show it', color: 'blue', values: mean}];
}

function normSeries(part) {
  return [{label: 'spread of the gradient norms', color: 'blue', values: part.series.grad_norm_std}];
}

// Lines of the ranks that the worst findings set apart from the others.
function namedSeries(part, metric) {
  const apart = part.findings.filter((finding) => finding.ranks.length < part.workers.length);
  return workersNamed(part, apart).slice(0, STORY_LINES).map((worker, i) => ({label: workerName(worker), color: LINE_COLOURS[i], values: worker.lines[metric]}));
}

function addStory(parent, part, group, show) {
  const timeline = part.findings.length > 0 ? findingBars(part, show) : null;
  if (part.coverage.loss_steps === 0) {
    addChart(parent, {title: 'Mean gradient norm', note: 'No loss was reported, so there is no loss to show.',
      x: part.x, series: [{label: 'mean over ranks', color: 'blue', values: part.series.grad_norm_mean}, ...namedSeries(part, 'grad_norm')],
      part, group, height: 260, timeline});
    return;
  }
  addChart(parent, {title: 'Loss', note: part.workers.length > 1 ?
    'The blue line is what a dashboard shows. The band is what the ranks saw before the average hid it.' : 'One rank: its loss.',
  x: part.x, series: [...storySeries(part), ...namedSeries(part, 'loss')], part, group, height: 260, timeline});
}

function addDispersion(parent, part, group) {
  const grid = el('div', {class: 'grid three', id: 'metrics'});
  parent.append(grid);
  if (part.coverage.loss_steps > 0) {
    addChart(grid, {title: 'Loss dispersion', note: 'Standard deviation of the ranks’ losses. 0: they all see the same data.',
      x: part.x, series: [{label: 'spread of the losses', color: 'blue', values: part.series.loss_std}], part, group, limited: part.series.loss_std});
  }
  addChart(grid, {title: 'Gradient-norm dispersion', note: 'Standard deviation of the ranks’ gradient norms.',
    x: part.x, series: normSeries(part), part, group, limited: part.series.grad_norm_std});
  if (part.coverage.cosine_steps === 0) return;
  const {cosine_low: low, cosine_mean: mid, cosine_high: high} = part.series;
  addChart(grid, {title: 'Direction consistency', note: 'Mean cosine over pairs of ranks, with its 95% interval. 1: all point the same way; near 0: independent data.',
    x: part.x, series: [{label: 'mean cosine', color: 'blue', low, mid, high}], part, group, limited: mid});
}

function summaryLine(part) {
  const s = part.summary;
  const item = (label, value, title) => el('div', {title}, el('dt', {}, label), el('dd', {}, number(value)));
  return el('dl', {class: 'numbers'}, item('loss, last 20 steps', s.loss, 'mean over ranks'),
    item('loss dispersion', s.loss_std, 'mean over steps of the standard deviation over ranks'),
    item('norm dispersion', s.grad_norm_std, 'mean over steps of the standard deviation over ranks'),
    item('mean cosine', s.cosine_mean, 'direction consistency, mean over steps'),
    item('effective ranks', s.effective_workers, '1: all gradients equal; all of them: orthogonal'));
}

// Returns the views in which a finding is shown.
function drawPart(parent, run, part, show) {
  const group = new ChartGroup();
  const story = el('section', {class: 'card', id: 'story'}, summaryLine(part));
  parent.append(story);
  addStory(story, part, group, show);
  story.append(zoomBar(part, group));
  if (part.workers.length > 1) {
    const metrics = el('section', {class: 'card'}, el('h2', {}, 'How much the ranks differ'),
      el('p', {class: 'note'}, 'Dashed: conventional limits (EWMA, three standard deviations). They are drawn, not alarmed on: noise alone crosses them thousands of times in a million steps.' +
        (part.findings.length > 0 ? ' Tinted: the steps of findings.' : '')));
    parent.append(metrics);
    addDispersion(metrics, part, group);
  }
  if (missingBeyond(part).some((m) => m > 0)) {
    story.append(el('p', {class: 'note'}, el('span', {class: 'swatch'}, el('i', {class: 'missing'})), ' Shaded: steps in which a rank is missing; the lines are then over the others.'));
  }
  const view = new WorkersView(parent, run, part, group);
  if (part.matrices.length > 0) {
    const section = el('section', {class: 'card', id: 'matrix'}, el('h2', {}, 'Cosine similarity of each pair'),
      el('p', {class: 'note'}, 'Cosine between the gradients of each pair of ranks at one step. A pale row is a rank whose gradient points elsewhere; a block near 1 reads the same data.'));
    parent.append(section);
    view.matrix = new CosineMatrix(section, part);
  }
  if (part.groups.length > 0) view.groups = new GroupsView(parent, part, group);
  drawTime(parent, run, part, group, view);
  const audits = auditSection(run, part);
  if (audits) parent.append(audits);
  const checks = checksSection(run, part);
  if (checks) parent.append(checks);
  return {story, group, view};
}

class RunView {
  constructor(parent, run, alone, choice = mainPart) {
    Object.assign(this, {run, body: el('div', {class: 'part'})});
    this.show = this.show.bind(this);
    this.head = el('div', {class: 'run-head'}, el(alone ? 'h1' : 'h2', {class: 'run-name'}, run.name), verdictLine(run, 'p'));
    const first = choice(run);
    if (first) this.head.append(coverageList(run, first), partPicker(run, first, (part) => this.choose(part)) ?? '');
    const grave = run.stalls.list.some((stall) => !stall.harmless);
    const stalls = stallsSection(run);
    const after = [first ? null : checksSection(run, null), grave ? null : stalls, factsSection(run), notesSection(run)];
    parent.replaceChildren(...[this.head, findingsSection(run, this.show), grave ? stalls : null, this.body, ...after].filter(Boolean));
    if (first) this.draw(first);
  }

  choose(part) {
    this.chose = true;
    this.draw(part);
  }

  destroy() {
    this.drawn?.group.destroy();
  }

  draw(part) {
    this.part = part;
    this.destroy();
    this.body.replaceChildren();
    this.head.querySelector('.coverage').replaceWith(coverageList(this.run, part));
    this.drawn = drawPart(this.body, this.run, part, this.show);
  }

  // Zooms to a finding's steps and opens the ranks that it points at.
  show(finding) {
    const part = this.run.parts.find((p) => samePart(p, finding));
    if (part !== this.part) {
      this.head.querySelector('#part').value = String(this.run.parts.indexOf(part));
      this.choose(part);
    }
    const workers = workersOf(part, finding);
    if (workers.length > 0) this.drawn.view.compare(workers);
    this.drawn.view.matrix?.showStep(finding.first_step);
    this.drawn.group.show(windowOf(part, finding));
    this.drawn.story.scrollIntoView();
  }
}
