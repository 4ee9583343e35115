// SPDX-License-Identifier: Apache-2.0
// Time series (dygraphs). Charts of one group share their steps: they zoom and track the pointer
// together.

// The figures have legends of their own; this one would set styles that the policy of `presum serve`
// forbids.
Dygraph.PLUGINS = Dygraph.PLUGINS.filter((plugin) => plugin !== Dygraph.Plugins.Legend);

class ChartGroup {
  constructor() {
    this.charts = [];
    this.followers = [];  // called with the [first, last] step, or null for all
    this.busy = false;
  }

  show(window) {
    this.window = window;
    this.busy = true;
    for (const chart of this.charts) chart.updateOptions({dateWindow: window, valueRange: chart.fixedRange});
    this.busy = false;
    for (const follow of this.followers) follow(window);
  }

  moved(chart) {
    if (this.busy) return;
    const window = chart.xAxisRange();
    if (this.window && window[0] === this.window[0] && window[1] === this.window[1]) return;
    this.window = window;
    this.busy = true;
    for (const other of this.charts) if (other !== chart) other.updateOptions({dateWindow: window});
    this.busy = false;
    for (const follow of this.followers) follow(window);
  }

  point(chart, row) {
    for (const other of this.charts) {
      if (other === chart) continue;
      if (row === null) other.clearSelection();
      else other.setSelection(row);
      other.showRow(row);
    }
  }

  remove(chart) {
    this.charts = this.charts.filter((other) => other !== chart);
    chart.destroy();
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
  }
}

// Dragging zooms with a mouse; on a touch screen a drag scrolls the page and a tap reads a value.
function interaction(fixed) {
  if (fixed) return {};
  const {mousedown, mousemove, mouseup, dblclick} = Dygraph.defaultInteractionModel;
  return {mousedown, mousemove, mouseup, dblclick};
}

function legendOf(entries) {
  return el('span', {class: 'legend'}, ...entries.map(({color, label, band, dashed}) => {
    const key = el('i', {class: band ? 'key band' : dashed ? 'key dashed' : 'key'});
    key.style.setProperty('--key', `var(--${color})`);
    return el('span', {}, key, label);
  }));
}

// Ranks that are missing in every step are named elsewhere; shading every step would show nothing.
function missingBeyond(part) {
  const recorded = part.missing.filter((_, i) => part.workers.some((w) => w.heat.grad_norm[i] !== MARK_NONE));
  const always = recorded.reduce((a, b) => Math.min(a, b), Infinity);
  return part.missing.map((missing) => Math.max(0, missing - always));
}

// Shades the steps in which a rank is missing.
function shadeMissing(part, canvas, area, chart) {
  canvas.fillStyle = color('missing');
  missingBeyond(part).forEach((missing, i) => {
    if (missing === 0) return;
    const start = part.heat_x[i];
    const next = part.heat_x[i + 1] ?? start + 1;
    const half = part.decimated ? 0 : (next - start) / 2;
    const left = Math.floor(chart.toDomXCoord(start - half));  // whole pixels avoid seams
    canvas.fillRect(left, area.y, Math.max(1.5, Math.ceil(chart.toDomXCoord(next - half)) - left), area.h);
  });
}

// What remains of an interval without the intervals in `taken`.
function without(interval, taken) {
  return taken.reduce((left, [from, to]) => left.flatMap(([a, b]) =>
    [[a, Math.min(b, from)], [Math.max(a, to), b]].filter(([x, y]) => x < y)), [interval]);
}

// Tints the steps of findings, each step in the color of its worst finding, and draws a line where
// a finding begins.
function markFindings(part, canvas, area, chart) {
  const fill = (from, to, alpha) => {
    canvas.globalAlpha = alpha;
    canvas.fillRect(from, area.y, to - from, area.h);
    canvas.globalAlpha = 1;
  };
  const taken = [];
  const begun = new Set();
  for (const {severity, first_step: first, last_step: last} of part.findings.slice(0, MARKED)) {
    canvas.fillStyle = color(severity);
    const own = [first - 0.5, last + 0.5];
    for (const piece of without(own, taken)) fill(...piece.map((step) => chart.toDomXCoord(step)), 0.07);
    const left = chart.toDomXCoord(own[0]);
    if (!begun.has(first)) fill(left - 0.75, left + 0.75, 0.7);
    taken.push(own);
    begun.add(first);
  }
}

// Conventional control limits: the exponentially weighted mean of the values before each one, plus
// and minus three standard deviations; null for the first ten values.
function controlLimits(values) {
  const [weight, warmUp, sigmas] = [0.1, 10, 3];
  let [seen, mean, variance] = [0, 0, 0];
  return values.map((value) => {
    const limits = seen < warmUp ? null : [-1, 1].map((side) => mean + side * sigmas * Math.sqrt(variance));
    if (value === null) return limits;
    const gap = seen++ === 0 ? 0 : value - mean;
    mean = seen === 1 ? value : mean + weight * gap;
    variance = (1 - weight) * (variance + weight * gap * gap);
    return limits;
  });
}

function drawLimits(limits, x, canvas, chart) {
  canvas.strokeStyle = color('grey');
  canvas.lineWidth = 1;
  canvas.setLineDash([4, 4]);
  for (const side of [0, 1]) {
    canvas.beginPath();
    limits.forEach((pair, i) => { if (pair) canvas.lineTo(...chart.toDomCoords(x[i], pair[side])); });
    canvas.stroke();
  }
  canvas.setLineDash([]);
}

// The first and last step of each stretch of rows for which `holds` is true.
function stretches(x, holds) {
  const out = [];
  x.forEach((step, i) => {
    if (!holds(i)) return;
    if (i > 0 && holds(i - 1)) out[out.length - 1][1] = step;
    else out.push([step, step]);
  });
  return out;
}

// Draws a bar with an arrow at an edge of the plot. `inward`: 1 at the top, -1 at the bottom.
function drawEdgeMark(canvas, area, [left, right], inward) {
  const edge = inward > 0 ? area.y : area.y + area.h;
  const middle = Math.min(area.x + area.w - 5, Math.max(area.x + 5, (left + right) / 2));
  canvas.fillStyle = color('ink');
  canvas.fillRect(left, Math.min(edge, edge + 2 * inward), right - left, 2);
  canvas.beginPath();
  canvas.moveTo(middle, edge);
  canvas.lineTo(middle - 5, edge + 8 * inward);
  canvas.lineTo(middle + 5, edge + 8 * inward);
  canvas.fill();
}

// Marks the steps whose values are outside the scale that several charts share.
function markBeyond(part, series, [low, high], canvas, area, chart) {
  const inside = (step) => Math.min(area.x + area.w, Math.max(area.x, chart.toDomXCoord(step)));
  const any = (is) => (i) => series.some((s) => [s.values, s.low, s.mid, s.high].some((of) => of && of[i] !== null && is(of[i])));
  for (const [inward, is] of [[1, (value) => value > high], [-1, (value) => value < low]]) {
    for (const [from, to] of stretches(part.x, any(is))) {
      drawEdgeMark(canvas, area, [inside(from - 0.5), inside(to + 0.5)], inward);
    }
  }
}

function underlay({part, series, limited, range}) {
  const limits = limited && controlLimits(limited);
  return (canvas, area, chart) => {
    shadeMissing(part, canvas, area, chart);
    if (limits) drawLimits(limits, part.x, canvas, chart);
    markFindings(part, canvas, area, chart);
    if (range) markBeyond(part, series, range, canvas, area, chart);
  };
}

// Chromium prints a canvas from its recorded commands and loses what dygraphs clips. Writing the
// pixels back avoids that.
function settleForPrint(plot) {
  if (!printing) return;
  for (const canvas of plot.querySelectorAll('canvas')) {
    const g = canvas.getContext('2d');
    g.putImageData(g.getImageData(0, 0, canvas.width, canvas.height), 0, 0);
  }
}

// Adds a figure to `parent`. `series`: {label, color, values | low, mid, high, band, stroke}, each
// with one value per x. `note`: the explanation in plain words. `limited`: the values to draw
// control limits for. `timeline`: see findingBars.
function addChart(parent, {title, note, x, series, part, group, height, range, fixed, digits, limited, timeline}) {
  const plot = el('div', {class: 'plot'});
  const readout = el('output', {class: 'readout', 'aria-hidden': 'true'});
  const figure = el('figure', {class: 'chart'},
    el('figcaption', {}, title ? el('h3', {}, title) : null, note ? el('p', {class: 'note'}, note) : null,
      legendOf(limited ? [...series, {label: 'conventional limits', color: 'grey', dashed: true}] : series)), timeline?.box, plot, readout);
  parent.append(figure);
  plot.style.height = `${height || 200}px`;
  const width = {};
  series.forEach((s) => { if (s.band) width[s.label] = {strokeWidth: s.stroke ?? 0, highlightCircleSize: 0}; });
  const bars = (s, i) => {
    if (!s.low) return [s.values[i], s.values[i], s.values[i]];
    return s.low[i] === null || s.high[i] === null ? [null, null, null] :
      [s.low[i], s.mid ? s.mid[i] : (s.low[i] + s.high[i]) / 2, s.high[i]];
  };
  const rows = x.map((step, i) => [step, ...series.map((s) => bars(s, i))]);
  const say = (s, i) => s.low && s.band ? `${s.label} ${number(s.low[i])} to ${number(s.high[i])}` :
    `${s.label} ${number(s.low ? s.mid[i] : s.values[i])}` +
      (s.low ? ` (${number(s.low[i])} to ${number(s.high[i])})` : '');
  const look = () => ({
    colors: series.map((s) => color(s.color)), axisLineColor: color('line'),
    gridLineColor: color('grid'),
  });
  const few = x.length <= 60;
  const margin = x.length > 1 ? 0 : 1;
  const chart = new Dygraph(plot, rows, {
    ...look(), labels: ['step', ...series.map((s) => s.label)], customBars: true, series: width,
    legend: 'never', strokeWidth: 2, fillAlpha: 0.28, valueRange: range || null,
    xRangePad: few ? 6 : 0, yRangePad: 6, includeZero: false, drawGapEdgePoints: true, pointSize: 2.5,
    axes: {
      x: {axisLabelFormatter: (v) => Number.isInteger(v) ? `${v}` : '', axisLabelWidth: 60, pixelsPerLabel: 50},
      y: {axisLabelFormatter: (v) => number(Number(v.toPrecision(6))), axisLabelWidth: digits || 52, pixelsPerLabel: fixed ? 22 : 30},
    },
    dateWindow: margin ? [x[0] - 1, x[0] + 1] : null,
    interactionModel: interaction(fixed), underlayCallback: underlay({part, series, limited, range}),
    highlightCallback: (event, step, points, row) => {
      chart.showRow(row);
      if (group) group.point(chart, row);
    },
    unhighlightCallback: () => {
      chart.showRow(null);
      if (group) group.point(chart, null);
    },
    drawCallback: (drawn, initial) => {
      if (timeline) timeline.place(drawn);
      if (group && !initial) group.moved(drawn);
    },
  });
  chart.fixedRange = range || null;
  chart.showRow = (row) => {
    readout.textContent = row === null ? '' :
      `step ${x[row]} · ${series.map((s) => say(s, row)).join(' · ')}`;
  };
  if (group) group.charts.push(chart);
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', `${title || 'chart'}: ${series.map((s) => s.label).join(', ')}`);
  onRedraw(figure, () => {
    chart.resize();
    chart.updateOptions(look());
    settleForPrint(plot);
  });
  return {figure, chart};
}

// Zooms to the entered steps, for keyboards and touch screens.
function zoomBar(part, group) {
  const first = part.x[0];
  const last = part.coverage.last_step;
  const from = el('input', {type: 'number', value: first, min: first, max: last, 'aria-label': 'first step shown'});
  const to = el('input', {type: 'number', value: last, min: first, max: last, 'aria-label': 'last step shown'});
  const show = () => {
    if (from.value !== '' && to.value !== '' && Number(from.value) < Number(to.value)) {
      group.show([Number(from.value), Number(to.value)]);
    }
  };
  const all = () => {
    from.value = first;
    to.value = last;
    group.show(null);
  };
  from.addEventListener('change', show);
  to.addEventListener('change', show);
  group.followers.push((window) => {
    from.value = window ? Math.max(first, Math.ceil(window[0])) : first;
    to.value = window ? Math.min(last, Math.floor(window[1])) : last;
  });
  return el('div', {class: 'zoom no-print'}, el('label', {}, 'Steps ', from), el('label', {}, ' to ', to),
    el('button', {type: 'button', onclick: all}, 'All steps'),
    el('span', {class: 'quiet wide-only'}, 'Drag in a chart to zoom, double-click to undo; every chart follows.'));
}
