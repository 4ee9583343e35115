// SPDX-License-Identifier: Apache-2.0
// The page of `presum serve`: draws a run again when there is more of it, and keeps what its reader
// chose.

const LOOK_MS = 1000;
const STILL_MS = 1500;  // after the reader did something
const TYPING_MS = 10000;
const ANSWER_MS = 60000;

let stillAt = -Infinity;  // from when on a redraw disturbs nobody
let pressed = false;

function watchReader() {
  const act = (event) => {
    const types = event.type === 'input' && event.target.type === 'number';
    stillAt = performance.now() + (types ? TYPING_MS : STILL_MS);
  };
  for (const kind of ['pointermove', 'pointerdown', 'wheel', 'touchmove', 'keydown', 'input']) {
    addEventListener(kind, act, {passive: true, capture: true});
  }
  addEventListener('pointerdown', ({button}) => { pressed = button === 0; }, true);
  const release = () => { pressed = false; };
  for (const kind of ['pointerup', 'pointercancel', 'contextmenu', 'change']) addEventListener(kind, release, true);
  addEventListener('blur', release);  // of the window; that of an element does not reach it
}

function busy() {
  return pressed || getSelection().type === 'Range' || performance.now() < stillAt;
}

function pause(milliseconds) {
  return new Promise((resolve) => { setTimeout(resolve, milliseconds); });
}

// Where an element is, and for a control what it is called.
function placeOf(element) {
  const within = element.closest('[data-key]')?.dataset.key ?? element.parentElement.closest('[id]').id;
  const name = element.getAttribute('aria-label') ?? (element.matches('button') ? element.textContent : '');
  return [element.tagName, element.id, within, name].join('|');
}

// Elements by names that find them again after a redraw.
function byName(main, selector) {
  const found = new Map();
  const seen = new Map();
  for (const element of main.querySelectorAll(selector)) {
    const place = placeOf(element);
    seen.set(place, (seen.get(place) ?? 0) + 1);
    found.set(`${place}|${seen.get(place)}`, element);
  }
  return found;
}

const FOCUSED = 'button, input, select, summary, canvas, [tabindex]';

// The first section that is in sight, and where.
function anchorOf(main) {
  const section = [...main.querySelectorAll('[id]')].find((element) => element.getBoundingClientRect().bottom > 0);
  return scrollY > 0 && section ? {id: section.id, top: section.getBoundingClientRect().top} : null;
}

// The zoom, or null while all steps are shown.
function zoomOf(part, {window}) {
  return window && (window[0] > part.x[0] || window[1] < part.coverage.last_step) ? window : null;
}

const orderOf = (button) => button.parentElement.getAttribute('aria-sort') ?? 'none';

function choicesOf(main, {part, drawn: {group, view}, chose}) {
  return {
    part,
    chose,
    zoom: zoomOf(part, group),
    lines: view.choseLines ? view.drawn.map((w) => w.replica) : null,
    layer: view.groups?.drawn?.name,
    matrix: view.matrix?.chosen,
    buttons: [...byName(main, '.choices button')].filter(([, button]) => button.getAttribute('aria-pressed') === 'true').map(([name]) => name),
    folds: [...byName(main, 'details')].map(([name, details]) => [name, details.open]),
    scrolls: [...byName(main, '.scroll')].map(([name, box]) => [name, box.scrollLeft, box.scrollTop]),
    sorts: [...byName(main, 'th button')].map(([name, button]) => [name, orderOf(button)]),
    focused: [...byName(main, FOCUSED)].find(([, element]) => element === document.activeElement)?.[0],
    anchor: anchorOf(main),
  };
}

function pressAgain(main, kept) {
  const buttons = byName(main, '.choices button');
  for (const name of kept.buttons) {
    if (buttons.get(name)?.getAttribute('aria-pressed') === 'false') buttons.get(name).click();
  }
  const headings = byName(main, 'th button');
  for (const [name, order] of kept.sorts) {
    for (let i = 0; i < {none: 0, descending: 1, ascending: 2}[order]; ++i) headings.get(name)?.click();
  }
}

// REQUIRES: the part that was shown is shown again.
function chooseAgain({part, drawn: {group, view}}, kept) {
  if (kept.lines) {
    view.choseLines = true;
    view.drawLines(part.workers.filter((w) => kept.lines.includes(w.replica)));
  }
  const layer = view.groups?.layers.find((g) => g.name === kept.layer);
  if (layer) view.groups.drawLines(layer);
  if (kept.matrix !== undefined && view.matrix) {
    view.matrix.chosen = kept.matrix;
    view.matrix.showStep(kept.matrix);
  }
  if (kept.zoom) group.show(kept.zoom);
}

// After all else, which may change what is where.
function returnTo(main, kept) {
  const details = byName(main, 'details');
  for (const [name, open] of kept.folds) if (details.has(name)) details.get(name).open = open;
  const boxes = byName(main, '.scroll');
  for (const [name, left, top] of kept.scrolls) boxes.get(name)?.scrollTo(left, top);
  if (kept.focused) byName(main, FOCUSED).get(kept.focused)?.focus({preventScroll: true});
  const anchor = kept.anchor && document.getElementById(kept.anchor.id);
  if (anchor) scrollBy(0, anchor.getBoundingClientRect().top - kept.anchor.top);
}

// The longest part of the last segment, unless the reader chose one.
function latestPart(chosen) {
  return (run) => {
    const last = Math.max(...run.parts.map((part) => part.segment));
    return run.parts.find((part) => chosen && samePart(part, chosen)) ?? mainPart({parts: run.parts.filter((part) => part.segment === last)});
  };
}

function redrawn(main, data, view) {
  const kept = view?.drawn ? choicesOf(main, view) : null;
  main.style.minHeight = `${main.offsetHeight}px`;  // scrolling has the same range meanwhile
  view?.destroy();
  prepare(data);
  const next = new RunView(main, data.runs[0], true, latestPart(kept?.chose ? kept.part : null));
  forgetRemoved();
  if (kept && next.drawn) {
    pressAgain(main, kept);
    if (samePart(next.part, kept.part)) {
      next.chose = kept.chose;
      chooseAgain(next, kept);
    }
    returnTo(main, kept);
  }
  main.style.minHeight = '';
  return next;
}

function liveText({runs: [run]}, written) {
  const step = run.parts.reduce((last, part) => Math.max(last, part.coverage.last_step), -1);
  const state = run.segments.at(-1)?.closed ? 'ended' : 'written';
  return `${step < 0 ? 'no step yet' : `step ${step.toLocaleString('en')}`}, ${state} ${written.toLocaleString()}`;
}

// {data, tag, written}, {} if there is nothing new, or {problem}.
async function newData(have) {
  try {
    const answer = await fetch(`data?have=${have}`, {signal: AbortSignal.timeout(ANSWER_MS)});
    if (answer.status === 204) return {};
    if (!answer.ok) return {problem: await answer.text()};
    return {data: await answer.json(), tag: answer.headers.get('Presum-Tag'), written: new Date(answer.headers.get('Last-Modified'))};
  } catch {
    return {problem: 'presum serve does not answer'};
  }
}

// A link to the list of runs, and no token in the address.
function startLive() {
  watchReader();
  const brand = document.querySelector('.brand b');
  brand.replaceWith(el('a', {href: '/', title: 'all runs that are served'}, brand.cloneNode(true)));
  if (location.hash) history.replaceState(null, '', location.pathname);
}

async function follow(main) {
  const status = document.getElementById('live');
  let view = null;
  let have = '';
  let said = '';
  status.textContent = 'reading the run';
  startLive();
  for (;; await pause(LOOK_MS)) {
    if (view && document.hidden) continue;
    const {data, tag, written, problem} = await newData(have);
    while (data && view && busy()) await pause(LOOK_MS / 4);
    if (data) {
      have = tag;
      said = 'the page could not be drawn: reload it';
      try {
        view = redrawn(main, data, view);
        said = liveText(data, written);
      } catch (error) {
        console.error(error);
      }
    }
    status.textContent = problem ?? said;
  }
}
