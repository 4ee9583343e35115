// SPDX-License-Identifier: Apache-2.0
// Layers: the norm of each group and its spread over the ranks.

class GroupsView {
  constructor(parent, part, group) {
    const several = part.workers.length > 1;
    Object.assign(this, {part, group, shown: several ? 'cv' : 'norms'});
    this.layers = [...part.groups].sort((a, b) => compare(a.name, b.name));
    const section = el('section', {class: 'card', id: 'groups'}, el('h2', {}, several ? 'Which layers differ' : 'Layers'),
      el('p', {class: 'note'}, several ? 'Spread: standard deviation of the layer’s gradient norm over the ranks, divided by its mean; 0 where all agree. Click a row for its lines.' : 'Norm of each layer’s gradient. Click a row for its lines.'));
    parent.append(section);
    this.buttons = [['cv', 'Spread between ranks'], ['norms', 'Gradient norm']].map(([shown, label]) => el('button', {
      type: 'button', 'data-shown': shown, 'aria-pressed': String(shown === this.shown), onclick: () => this.choose(shown)}, label));
    const box = el('div', {class: 'heat'});
    this.scale = el('div', {class: 'keys'});
    this.panel = el('div', {class: 'panel', tabindex: -1});
    this.panel.hidden = true;
    section.append(el('div', {class: 'choices', role: 'group', 'aria-label': 'value of the layer map'}, ...this.buttons), box, this.scale, this.panel);
    if (!several) this.buttons[0].hidden = true;
    this.prepare();
    const narrow = box.clientWidth < 500;
    this.heat = new HeatMap(box, {label: 'Layers by step', part, gutter: narrow ? 92 : 168, rows: this.layers.map((g) => g.name),
      paint: (row, column) => this.paint(row, column),
      say: (row, column) => `${this.layers[row].name}: ${this.shown === 'cv' ? 'spread' : 'norm'} ${number(this.cells[this.shown][row][column])}`,
      open: (row) => this.open(this.layers[row])});
    group.followers.push((window) => this.heat.setWindow(window));
    section.append(this.table());
    this.drawScale();
  }

  prepare() {
    this.cells = {norms: [], cv: []};
    for (const g of this.layers) {
      const [norms, stds] = [g.norms, g.stds].map((values) => largestInBuckets(this.part, values));
      this.cells.norms.push(norms);
      this.cells.cv.push(norms.map((n, i) => (n === null || stds[i] === null || n <= 0 ? null : stds[i] / n)));
    }
    // The spread is meaningless for a gradient that is only rounding error, such as that of a bias
    // before a normalization.
    for (const [column] of this.part.heat_x.entries()) {
      const largest = Math.max(...this.cells.norms.map((norms) => norms[column] ?? 0));
      this.layers.forEach((_, row) => {
        if (this.cells.norms[row][column] <= 1e-6 * largest) this.cells.cv[row][column] = null;
      });
    }
    this.limits = {cv: [0, extent(this.cells.cv.flat())?.[1] || 1], norms: this.logLimits()};
  }

  logLimits() {
    const positive = extent(this.cells.norms.flat().filter((v) => v !== null && v > 0));
    if (!positive) return [1e-3, 1];
    return positive[0] === positive[1] ? [positive[0] / 10, positive[1]] : positive;
  }

  paint(row, column) {
    const value = this.cells[this.shown][row][column];
    if (value === null) return null;
    const [low, high] = this.limits[this.shown];
    if (this.shown === 'cv') return sequential(value / high);
    return value <= 0 ? color('missing') : sequential(Math.log(value / low) / Math.log(high / low));
  }

  drawScale() {
    const [low, high] = this.limits[this.shown];
    this.scale.replaceChildren(scaleBar(number(low), this.shown === 'norms' ? 'log scale' : null, number(high), 'sequential'));
  }

  choose(shown) {
    this.shown = shown;
    this.buttons.forEach((b) => b.setAttribute('aria-pressed', String(b.dataset.shown === shown)));
    this.drawScale();
    this.heat.draw();
  }

  close() {
    if (this.chart) this.group.remove(this.chart);
    this.chart = null;
    this.drawn = null;
    this.panel.hidden = true;
    this.panel.replaceChildren();
  }

  open(g) {
    this.drawLines(g);
    this.panel.focus({preventScroll: true});
    this.panel.scrollIntoView({block: 'nearest'});
  }

  drawLines(g) {
    this.close();
    this.drawn = g;
    this.panel.hidden = false;
    this.panel.append(el('div', {class: 'panel-head'}, el('h3', {}, g.name), el('button', {type: 'button', onclick: () => this.close()}, 'Close')));
    const edge = (sign) => g.norms.map((n, i) => (n === null || g.stds[i] === null ? null : n + sign * g.stds[i]));
    const {chart} = addChart(this.panel, {title: 'Gradient norm of this layer', note: 'Mean over the ranks, and one standard deviation to either side.',
      x: this.part.x, series: [{label: 'mean', color: 'blue', low: edge(-1), mid: g.norms, high: edge(1)}], part: this.part, group: this.group, height: 190});
    this.chart = chart;
  }

  table() {
    const columns = [
      {label: 'Layer', left: true, value: (g) => g.name, text: (g) => g.name},
      {label: 'Parameters', value: (g) => g.elements, text: (g) => g.elements.toLocaleString('en')},
      {label: 'Mean norm', value: (g) => g.norm, text: (g) => number(g.norm)},
      {label: 'Mean spread', value: (g) => g.cv, text: (g) => number(g.cv)},
      {label: 'NaN or Inf', value: (g) => g.nonfinite, text: (g) => String(g.nonfinite)},
    ];
    return sortableTable('Layers', columns, this.layers, (g) => this.open(g));
  }
}
