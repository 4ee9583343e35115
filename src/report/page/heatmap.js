// SPDX-License-Identifier: Apache-2.0
// Rows by steps on a canvas, with pointer and keyboard control.

const MARK_NONE = 30000;
const MARK_UNDEFINED = 30001;
const MARK_NONFINITE = 30002;

function mix(a, b, t) {
  const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const [from, to] = [parse(a), parse(b)];
  return `rgb(${from.map((v, i) => Math.round(v + (to[i] - v) * t)).join(',')})`;
}

// Black or white, whichever is easier to read on "rgb(r,g,b)".
function inkOn(fill) {
  const [r, g, b] = fill.match(/\d+/g).map((v) => (Number(v) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? '#000000' : '#ffffff';
}

// Maps -1 .. 1 to colors from low through middle to high.
function diverging(t) {
  const size = Math.min(1, Math.abs(t));
  return mix(color('heat-mid'), color(t < 0 ? 'heat-low' : 'heat-high'), size ** 0.8);
}

// Maps 0 .. 1 to colors: dark to bright in the dark theme, bright to dark in the light theme.
function sequential(t) {
  const stops = ['seq-0', 'seq-1', 'seq-2', 'seq-3'].map(color);
  const at = Math.min(2.999, Math.max(0, t) * 3);
  return mix(stops[Math.floor(at)], stops[Math.floor(at) + 1], at % 1);
}

// Stripes, which cannot be mistaken for a color of a scale.
function hatch(canvas) {
  const tile = el('canvas', {width: 6, height: 6});
  const g = tile.getContext('2d');
  g.fillStyle = color('card');
  g.fillRect(0, 0, 6, 6);
  g.strokeStyle = color('grey');
  g.beginPath();
  for (const shift of [-6, 0, 6]) {
    g.moveTo(shift, 6);
    g.lineTo(shift + 6, 0);
  }
  g.stroke();
  return canvas.createPattern(tile, 'repeat');
}

// Reduces values per chart row to one value per bucket: the larger of its rows.
function largestInBuckets(part, values) {
  const rows = part.decimated ? 2 : 1;
  return part.heat_x.map((_, i) => extent(values.slice(i * rows, (i + 1) * rows))?.[1] ?? null);
}

class HeatMap {
  // `rows`: names. `paint(row, column)`: a CSS color or null. `say(row, column)`: text of a cell.
  // `open(row)`: a click or Enter on a row.
  constructor(parent, {label, rows, part, gutter, paint, say, open}) {
    Object.assign(this, {rows, xs: part.heat_x, decimated: part.decimated, paint, say, open, gutter: gutter || 34});
    this.from = 0;
    this.to = this.xs.length;
    this.cursor = null;
    this.canvas = el('canvas', {tabindex: 0, role: 'application', 'aria-roledescription': 'heat map',
      'aria-label': `${label}. Arrow keys move, Enter opens the row.`});
    this.readout = el('output', {class: 'readout', 'aria-live': 'polite'});
    parent.append(this.canvas, this.readout);
    this.canvas.addEventListener('mousemove', (event) => this.move(this.at(event)));
    this.canvas.addEventListener('mouseleave', () => this.move(null));
    this.canvas.addEventListener('click', (event) => this.choose(this.at(event)));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    onRedraw(this.canvas, () => this.draw());
    this.draw();
  }

  setWindow(window) {
    this.from = window ? this.xs.findIndex((x) => x >= window[0]) : 0;
    if (this.from < 0) this.from = this.xs.length - 1;
    const past = window ? this.xs.findIndex((x) => x > window[1]) : -1;
    this.to = Math.max(this.from + 1, past < 0 ? this.xs.length : past);
    this.draw();
  }

  stepText(column) {
    const start = this.xs[column];
    const next = this.xs[column + 1];
    return this.decimated && next ? `steps ${start}–${next - 1}` : `step ${start}`;
  }

  geometry() {
    const width = this.canvas.parentElement.clientWidth;
    const rowHeight = Math.max(5, Math.min(24, Math.floor(440 / this.rows.length)));
    return {width, rowHeight, height: rowHeight * this.rows.length,
      cell: (width - this.gutter) / (this.to - this.from)};
  }

  draw() {
    const {width, rowHeight, height, cell} = this.geometry();
    if (width <= 0) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = (height + 20) * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height + 20}px`;
    const g = this.canvas.getContext('2d');
    g.scale(ratio, ratio);
    g.font = '11px system-ui, sans-serif';
    const seam = rowHeight > 7 ? 1 : 0;
    for (let row = 0; row < this.rows.length; ++row) {
      for (let column = this.from; column < this.to; ++column) {
        const fill = this.paint(row, column);
        if (!fill) continue;
        g.fillStyle = fill === 'hatch' ? hatch(g) : fill;
        const left = this.gutter + (column - this.from) * cell;
        g.fillRect(left, row * rowHeight, Math.max(1, cell - (cell > 5 ? 1 : -0.5)), rowHeight - seam);
      }
    }
    this.drawLabels(g, rowHeight, height, width, cell);
    this.drawCursor(g, rowHeight, cell);
  }

  drawLabels(g, rowHeight, height, width, cell) {
    g.fillStyle = color('quiet');
    g.textBaseline = 'middle';
    g.textAlign = 'right';
    const every = Math.ceil(13 / rowHeight);
    for (let row = 0; row < this.rows.length; row += every) {
      g.fillText(this.rows[row], this.gutter - 6, row * rowHeight + rowHeight / 2, this.gutter - 8);
    }
    g.textAlign = 'center';
    const ticks = Math.max(2, Math.min(10, Math.floor((width - this.gutter) / 80)));
    const stride = Math.max(1, Math.ceil((this.to - this.from) / ticks));
    for (let column = this.from; column < this.to; column += stride) {
      const center = this.gutter + (column - this.from + (this.decimated ? 0 : 0.5)) * cell;
      g.fillText(this.xs[column], Math.min(Math.max(center, this.gutter + 4), width - 18), height + 12);
    }
  }

  drawCursor(g, rowHeight, cell) {
    if (!this.cursor) return;
    const {row, column} = this.cursor;
    g.strokeStyle = color('ink');
    g.lineWidth = 2;
    g.strokeRect(this.gutter + (column - this.from) * cell, row * rowHeight, Math.max(3, cell), rowHeight);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const {rowHeight, cell} = this.geometry();
    const row = Math.floor((event.clientY - box.top) / rowHeight);
    const column = this.from + Math.max(0, Math.floor((event.clientX - box.left - this.gutter) / cell));
    return row >= 0 && row < this.rows.length && column < this.to ? {row, column} : null;
  }

  move(cursor) {
    this.cursor = cursor;
    this.readout.textContent = cursor ?
      `${this.say(cursor.row, cursor.column)} (${this.stepText(cursor.column)})` : '';
    this.draw();
  }

  choose(cursor) {
    if (!cursor) return;
    this.open(cursor.row);
  }

  key(event) {
    const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    const now = this.cursor || {row: 0, column: this.from};
    if (steps) {
      const row = Math.min(this.rows.length - 1, Math.max(0, now.row + steps[0]));
      const column = Math.min(this.to - 1, Math.max(this.from, now.column + steps[1]));
      this.move(this.cursor ? {row, column} : now);
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.choose(now);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function scaleBar(low, middle, high, kind) {
  return el('div', {class: 'scale'}, el('span', {}, low), el('i', {class: `ramp ${kind}`}),
    middle ? el('span', {class: 'scale-middle'}, middle) : null, el('span', {}, high));
}
