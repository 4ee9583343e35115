// SPDX-License-Identifier: Apache-2.0
// The W x W cosine matrix of one step, with a slider over the steps that the page holds.

function pairCosine(matrix, i, j) {
  if (i === j) return 1;
  const [a, b] = i < j ? [i, j] : [j, i];
  const w = matrix.replicas.length;
  const value = matrix.cosines[a * w - (a * (a + 1)) / 2 + (b - a - 1)];
  return value === null ? null : value / 1000;
}

function pairsOf(matrix) {
  const out = [];
  for (let i = 0; i < matrix.replicas.length; ++i) {
    for (let j = i + 1; j < matrix.replicas.length; ++j) {
      const value = pairCosine(matrix, i, j);
      if (value !== null) out.push({i, j, value});
    }
  }
  return out.sort((a, b) => a.value - b.value);
}

class CosineMatrix {
  constructor(parent, part) {
    this.matrices = part.matrices;
    this.workers = part.workers;
    this.begins = new Map([...part.findings].reverse().map((finding) => [finding.first_step, finding.check]));
    const sizes = this.matrices.flatMap((m) => m.cosines).filter((c) => c !== null).map(Math.abs);
    const most = sizes.reduce((a, b) => Math.max(a, b), 0) / 1000;
    this.limit = most > 0.5 ? 1 : Math.max(0.05, Math.ceil(most * 20) / 20);
    this.canvas = el('canvas', {role: 'img'});
    this.slider = el('input', {type: 'range', min: 0, max: this.matrices.length - 1, class: 'matrix-step', 'aria-label': 'step of the cosine matrix'});
    this.label = el('output', {class: 'matrix-label'});
    this.readout = el('output', {class: 'readout matrix-readout', 'aria-live': 'polite'});
    parent.append(el('div', {class: 'matrix'}, el('div', {class: 'matrix-plot'}, this.canvas), el('div', {class: 'matrix-side'},
      el('label', {class: 'slider'}, this.label, this.slider), this.readout,
      scaleBar(number(-this.limit), '0', number(this.limit), 'diverging'),
      el('p', {class: 'note'}, `${count(this.matrices.length, 'step')} of ${part.coverage.steps.toLocaleString('en')} on the slider; the first, the last, those where findings begin and those that stand out are always among them.`))));
    this.slider.addEventListener('input', () => {
      this.chosen = this.matrices[this.slider.value].step;
      this.show(Number(this.slider.value));
    });
    this.canvas.addEventListener('mousemove', (event) => this.point(event));
    this.canvas.addEventListener('mouseleave', () => this.summarize());
    onRedraw(this.canvas, () => this.draw());
    this.showStep(part.findings.length > 0 ? part.findings[0].first_step : Infinity);
  }

  // Shows the step or, if it has no matrix, the next one that has; the last one if none follows.
  showStep(step) {
    const next = this.matrices.findIndex((matrix) => matrix.step >= step);
    this.show(next < 0 ? this.matrices.length - 1 : next);
  }

  name(i) {
    return this.workers[this.matrix.replicas[i]]?.rank ?? this.matrix.replicas[i];
  }

  show(at) {
    this.matrix = this.matrices[at];
    this.slider.value = at;
    const check = this.begins.get(this.matrix.step);
    this.label.textContent = `Step ${this.matrix.step}${check ? `, where ${check} begins` : ''}`;
    this.slider.setAttribute('aria-valuetext', `step ${this.matrix.step}`);
    this.summarize();
    this.draw();
  }

  summarize() {
    const pairs = pairsOf(this.matrix);
    if (pairs.length === 0) {
      this.readout.textContent = 'No pair has a direction at this step.';
      return;
    }
    const pair = (p) => `ranks ${this.name(p.i)} and ${this.name(p.j)} (${p.value.toFixed(3)})`.replace('-', '−');
    const [least, most] = [pairs[0], pairs[pairs.length - 1]];
    this.readout.textContent = most.value - least.value < 0.0005 ? `${pairs.length === 1 ? 'The pair' : 'Every pair'}: ${least.value.toFixed(3).replace('-', '−')}.` :
      `Least alike: ${pair(least)}. Most alike: ${pair(most)}.`;
    this.canvas.setAttribute('aria-label', `Cosines between ranks at step ${this.matrix.step}. ${this.readout.textContent}`);
  }

  geometry() {
    const w = this.matrix.replicas.length;
    const room = Math.min(430, this.canvas.parentElement.clientWidth || 430);
    const cell = (room - 26) / w;
    return {w, cell, size: cell * w + 26};
  }

  draw() {
    const {w, cell, size} = this.geometry();
    const ratio = devicePixelRatio || 1;
    this.canvas.width = size * ratio;
    this.canvas.height = size * ratio;
    this.canvas.style.width = `${size}px`;
    this.canvas.style.height = `${size}px`;
    const g = this.canvas.getContext('2d');
    g.scale(ratio, ratio);
    g.textAlign = 'center';
    g.textBaseline = 'middle';
    for (let i = 0; i < w; ++i) {
      for (let j = 0; j < w; ++j) this.drawCell(g, i, j, cell);
    }
    g.font = '11px system-ui, sans-serif';
    g.fillStyle = color('quiet');
    for (let i = 0; i < w; i += Math.ceil(24 / cell)) {
      g.fillText(this.name(i), 12, 26 + (i + 0.5) * cell);
      g.fillText(this.name(i), 26 + (i + 0.5) * cell, 14);
    }
  }

  drawCell(g, i, j, cell) {
    const value = pairCosine(this.matrix, i, j);
    const seam = cell > 8 ? 1 : 0;
    const [left, top] = [26 + j * cell, 26 + i * cell];
    const fill = i === j || value === null ? color('missing') : diverging(value / this.limit);
    g.fillStyle = fill;
    g.fillRect(left, top, cell - seam, cell - seam);
    if (cell < 36 || value === null || i === j) return;
    g.font = '11px system-ui, sans-serif';
    g.fillStyle = inkOn(fill);
    g.fillText((Math.abs(value) >= 0.9995 ? value.toFixed(0) : value.toFixed(2)).replace('-', '−'), left + cell / 2, top + cell / 2);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const {w, cell} = this.geometry();
    const i = Math.floor((event.clientY - box.top - 26) / cell);
    const j = Math.floor((event.clientX - box.left - 26) / cell);
    if (i < 0 || j < 0 || i >= w || j >= w || i === j) return this.summarize();
    const value = pairCosine(this.matrix, i, j);
    this.readout.textContent = `Ranks ${this.name(i)} and ${this.name(j)}: ${value === null ? 'no direction' : number(value)}`;
    return undefined;
  }
}
