// SPDX-License-Identifier: Apache-2.0
// Several runs side by side on a common scale.

const VIEWS = {
  loss: {title: 'Loss', needs: ['loss_min', 'loss_max'], series: storySeries,
    note: 'Line: the averaged loss that a dashboard shows. Band: the ranks’ losses, lowest to highest.'},
  loss_std: {title: 'Loss dispersion', needs: ['loss_std'], note: 'Standard deviation of the ranks’ losses.',
    series: (part) => [{label: 'spread of the losses', color: 'blue', values: part.series.loss_std}]},
  grad_norm_std: {title: 'Norm dispersion', needs: ['grad_norm_std'], note: 'Standard deviation of the ranks’ gradient norms.', series: normSeries},
  cosine: {title: 'Direction', needs: ['cosine_low', 'cosine_high'], note: 'Mean cosine over pairs of ranks, with its interval. 1: all point the same way.',
    series: (part) => [{label: 'mean cosine', color: 'blue', low: part.series.cosine_low, mid: part.series.cosine_mean, high: part.series.cosine_high}]},
};

function mainPart(run) {
  return run.parts.reduce((a, b) => (b.coverage.steps > (a?.coverage.steps ?? -1) ? b : a), null);
}

// The lowest and highest value that a view shows for a run; null if there are none.
function extentOf(part, view) {
  return extent(view.needs.flatMap((name) => part.series[name]));
}

// The common extent of the runs that are near the middle half of all runs: an outlier would flatten
// the others. With fewer than four runs, none counts as an outlier.
function commonExtent(extents) {
  const whole = extent(extents.flat());
  if (extents.length < 4) return whole;
  const quartile = (end, share) => extents.map((e) => e[end]).sort((a, b) => a - b)[Math.round(share * (extents.length - 1))];
  const [low, high] = [quartile(0, 0.25), quartile(1, 0.75)];
  const reach = high - low;
  return reach > 0 ? extent(extents.filter(([a, b]) => a >= low - reach && b <= high + reach).flat()) : whole;
}

function commonRange(parts, view) {
  const range = commonExtent(parts.map((part) => extentOf(part, view)).filter(Boolean));
  if (!range) return null;
  const pad = (range[1] - range[0]) * 0.05 || 0.5;
  return [range[0] === 0 ? 0 : range[0] - pad, range[1] + pad];
}

// "▲ up to 57.1" for a run that exceeds the common scale; "" for others.
function beyondText(part, view, range) {
  const own = extentOf(part, view);
  if (!own) return '';
  return [own[1] > range[1] ? `▲ up to ${number(own[1])}` : '', own[0] < range[0] ? `▼ down to ${number(own[0])}` : ''].filter(Boolean).join(', ');
}

// The sentence above the S1 runs, from their measurements.
function s1Sentence(runs) {
  const spread = (mode) => [1, 2, 3].map((setting) => runs.find((r) => s1Of(r)?.mode === mode && s1Of(r).setting === setting))
    .map((run) => (run && mainPart(run) ? mainPart(run).summary.loss_std : null)).filter((v) => v !== null);
  const [sharded, replicated] = [spread('sharded'), spread('replicated')];
  const listed = (values) => values.map((v) => number(Number(v.toPrecision(2)))).join(', ').replace(/, ([^,]*)$/, ' and $1');
  const out = [];
  if (sharded.length === 3) {
    const hides = Math.max(...sharded) < 1.5 * Math.min(...sharded);
    out.push(hides ? `Sharded data hides the seeds: the loss dispersion is ${listed(sharded)} whatever the setting.` :
      `Sharded data: loss dispersion ${listed(sharded)} over the three settings.`);
  }
  if (replicated.length === 3) {
    out.push(`Replicated data shows them (${listed(replicated)})` + (replicated[0] === 0 ?
      ', but there “strict” means that the ranks do the work of one.' : '.'));
  }
  return out.join(' ');
}

// "one of three runs is", "both runs are".
function howMany(some, all) {
  if (some === all) return all === 1 ? 'the run is' : `${all === 2 ? 'both' : `all ${inWords(all)}`} runs are`;
  if (some === 0) return all === 2 ? 'neither run is' : `none of the ${inWords(all)} runs is`;
  return `${inWords(some)} of the ${inWords(all)} runs ${some === 1 ? 'is' : 'are'}`;
}

function generalSentence(runs) {
  const named = (verdict) => runs.filter((r) => r.judgment.verdict === verdict).map((r) => r.name);
  const [bad, unknown] = [named('inconsistent'), named('insufficient-evidence')];
  const out = [`${capital(howMany(bad.length, runs.length))} inconsistent${bad.length ? `: ${bad.join(', ')}` : ''}.`];
  if (unknown.length > 0) out.push(`There is not enough evidence to judge ${unknown.join(', ')}.`);
  return out.join(' ');
}

// Rows of tiles; S1 runs have one row per mode, ordered by setting.
function tileRows(runs) {
  const s1 = runs.filter(s1Of);
  const rest = runs.filter((r) => !s1Of(r));
  const rows = ['replicated', 'sharded'].map((mode) => ({mode, runs: s1.filter((r) => s1Of(r).mode === mode)
    .sort((a, b) => s1Of(a).setting - s1Of(b).setting)}));
  return [{mode: null, runs: rest}, ...rows].filter((row) => row.runs.length > 0);
}

const MODE_TEXT = {
  replicated: 'Replicated data: every rank reads the whole set in the order of its own seed',
  sharded: 'Sharded data: each rank reads its own part, as DistributedSampler does',
};

class Overview {
  constructor(parent, runs, choose) {
    Object.assign(this, {runs, choose, shown: 'loss', tiles: []});
    const s1 = runs.every(s1Of);
    this.buttons = Object.entries(VIEWS).map(([shown, {title}]) => el('button', {type: 'button', 'data-shown': shown,
      'aria-pressed': String(shown === 'loss'), onclick: () => this.show(shown)}, title));
    this.note = el('p', {class: 'note'});
    this.grid = el('div', {class: 'tile-rows'});
    parent.append(el('h1', {}, s1 ? 'S1: what seeds do to eight ranks'.replace('eight', inWords(mainPart(runs[0])?.coverage.workers_expected ?? 8)) : `${capital(inWords(runs.length))} runs side by side`),
      el('p', {class: 'verdict plain'}, [generalSentence(runs), s1Sentence(runs)].filter(Boolean).join(' ')),
      el('div', {class: 'choices', role: 'group', 'aria-label': 'what the small charts show'}, ...this.buttons), this.note, this.grid, this.table());
    this.addTiles();
    this.show('loss');
  }

  addTiles() {
    for (const row of tileRows(this.runs)) {
      const box = el('div', {class: 'tiles'});
      this.grid.append(el('section', {class: 'tile-row'}, row.mode ? el('h2', {}, MODE_TEXT[row.mode]) : null, box));
      for (const run of row.runs) this.addTile(box, run);
    }
  }

  addTile(box, run) {
    const s1 = s1Of(run);
    const part = mainPart(run);
    const {level, text} = verdict(run);
    const worst = run.judgment.findings[0];
    const plot = el('div', {class: 'tile-plot'});
    const beyond = el('p', {class: 'beyond'});
    const value = (label, name) => el('span', {}, `${label} `, el('b', {}, number(part.summary[name])));
    const tile = el('article', {class: 'tile card', 'data-run': run.name}, el('header', {},
      el('i', {class: `mark ${level}`, title: plain(text)}, LEVELS[level]),
      el('button', {type: 'button', class: 'link', onclick: () => this.choose(run, true)}, s1 ? SETTINGS[s1.setting].title : run.name),
      worst ? el('span', {class: `tag ${worst.severity}`, title: plain(worst.title)}, worst.check) : null),
    s1 ? el('p', {class: 'note'}, SETTINGS[s1.setting].expects) : null, plot, beyond,
    el('p', {class: 'tile-numbers'}, ...(part ? [value('loss std', 'loss_std'), value('norm std', 'grad_norm_std'), value('cosine', 'cosine_mean')] : ['no step was recorded'])));
    box.append(tile);
    if (part) this.tiles.push({run, plot, part, beyond});
  }

  show(shown) {
    this.shown = shown;
    this.buttons.forEach((b) => b.setAttribute('aria-pressed', String(b.dataset.shown === shown)));
    const view = VIEWS[shown];
    const range = commonRange(this.tiles.map((tile) => tile.part), view);
    const beyond = this.tiles.filter((tile) => this.showBeyond(tile, view, range)).length;
    this.note.textContent = `${view.note} One scale for all${beyond === 0 ? '' :
      `, chosen for most of them: ${inWords(beyond)} ${beyond === 1 ? 'run leaves' : 'runs leave'} it, marked ▲ or ▼`}.`;
    const known = (part) => view.needs.some((name) => part.series[name].some((v) => v !== null));
    for (const tile of this.tiles) {
      if (tile.chart) tile.chart.destroy();
      tile.chart = null;
      tile.plot.replaceChildren(known(tile.part) ? '' : el('p', {class: 'note'}, `${view.title}: not measured`));
      if (known(tile.part)) tile.chart = addChart(tile.plot, {x: tile.part.x, series: view.series(tile.part), part: tile.part, height: 118, range, fixed: true, digits: 38}).chart;
    }
  }

  // If a run exceeds the scale, its tile says by how much, and where all of it is shown.
  showBeyond({run, part, beyond}, view, range) {
    const text = beyondText(part, view, range);
    beyond.replaceChildren(...(text ? [`${text}, beyond this scale. `,
      el('button', {type: 'button', class: 'link no-print', onclick: () => this.choose(run, true)}, 'See it whole')] : []));
    return text !== '';
  }

  table() {
    const of = (name) => (run) => mainPart(run)?.summary[name] ?? null;
    const verdictOf = (run) => (run.judgment.verdict === 'inconsistent' ? run.judgment.findings[0].check : run.judgment.verdict.replace('-', ' '));
    const column = (label, name, title) => ({label, title, value: of(name), text: (run) => number(of(name)(run))});
    return el('section', {class: 'card'}, el('h2', {}, 'The runs in numbers'), sortableTable('Runs', [
      {label: 'Run', left: true, value: (r) => r.name, text: (r) => r.name},
      {label: 'Steps', value: (r) => mainPart(r)?.coverage.steps ?? 0, text: (r) => String(mainPart(r)?.coverage.steps ?? 0)},
      {label: 'Verdict', left: true, title: 'the worst finding’s check, or what the run was judged to be', value: verdictOf, text: (run) => `${LEVELS[verdict(run).level]} ${verdictOf(run)}`},
      column('Loss', 'loss', 'mean over ranks, last 20 steps'), column('Loss std', 'loss_std'), column('Loss range', 'loss_range'),
      column('Norm std', 'grad_norm_std'), column('Norm cv', 'grad_norm_cv'), column('Cosine', 'cosine_mean'),
      column('Effective ranks', 'effective_workers'), column('Noise scale, rank batches', 'noise_scale'),
    ], this.runs, (run) => this.choose(run, true)));
  }
}
