// SPDX-License-Identifier: Apache-2.0

const ROWS_SHOWN = 16;  // longer tables scroll

// A scrolling box, with a hint above it if its content does not fit.
function scrollBox(label, tall, ...content) {
  const box = el('div', {class: tall ? 'scroll tall' : 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, ...content);
  const hint = el('p', {class: 'scroll-hint no-print'});
  const measure = () => {
    const right = box.scrollWidth - box.clientWidth > 1;
    const down = box.scrollHeight - box.clientHeight > 1;
    hint.textContent = right && down ? 'More to the right → and below ↓: scroll in both directions' : right ? 'More to the right →: scroll sideways' :
      down ? 'More below ↓: scroll down' : '';
    box.classList.toggle('more-right', box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
    box.classList.toggle('more-below', box.scrollHeight - box.clientHeight - box.scrollTop > 1);
  };
  box.addEventListener('scroll', measure);
  const watch = new ResizeObserver(measure);
  watch.observe(box);
  for (const child of content) watch.observe(child);
  return el('div', {}, hint, box);
}

// `columns`: {label, value(row), text(row), title, left}. Clicking a heading sorts by that column.
function sortableTable(caption, columns, rows, open) {
  const body = el('tbody');
  const headings = columns.map((column) => {
    const button = el('button', {type: 'button', title: column.title}, column.label);
    return el('th', {scope: 'col', class: column.left ? 'left' : null, 'aria-sort': 'none'}, button);
  });
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => el('tr', {}, ...columns.map((column, i) => {
    const text = column.text(row);
    const inner = i === 0 && open ? el('button', {type: 'button', class: 'link', onclick: () => open(row)}, text) : text;
    return el('td', {class: column.left ? 'left' : null}, inner);
  }))));
  headings.forEach((heading, i) => heading.firstChild.addEventListener('click', () => {
    const up = heading.getAttribute('aria-sort') === 'descending';
    headings.forEach((other) => other.setAttribute('aria-sort', 'none'));
    heading.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    fill([...rows].sort((a, b) => (up ? 1 : -1) * compare(columns[i].value(a), columns[i].value(b))));
  }));
  fill(rows);
  return scrollBox(caption, rows.length > ROWS_SHOWN,
    el('table', {}, el('caption', {class: 'hidden'}, caption), el('thead', {}, el('tr', {}, ...headings)), body));
}

// Unknown values come last in descending order.
function compare(a, b) {
  if (typeof a === 'string') return a.localeCompare(b, undefined, {numeric: true});
  return (a ?? -Infinity) - (b ?? -Infinity);
}

// Keys whose values differ from rank to rank in every healthy run.
const DIFFERS_BY_NATURE = new Set(['pid', 'device', 'rank', 'local_rank', 'host', 'hostname']);

// Keys whose values also differ but are shown for each rank.
const OF_EACH_RANK = new Set(['overhead_ms', 'step_ms']);

const FACT_VALUES = 12;  // further values are only counted

// The text of a sampler contains its rank.
function withoutRank(text) {
  return text.replace(/\brank=\d+/g, 'rank=…');
}

function isOdd(fact) {
  if (DIFFERS_BY_NATURE.has(fact.key) || OF_EACH_RANK.has(fact.key)) return false;
  return new Set(fact.values.map((v) => withoutRank(v.value))).size > 1;
}

function factValues(fact) {
  const {values} = fact;
  if (values.length === 1) return values[0].value;
  if (DIFFERS_BY_NATURE.has(fact.key)) return el('span', {class: 'quiet'}, 'differs from rank to rank, as it should');
  if (!isOdd(fact) && !OF_EACH_RANK.has(fact.key)) return withoutRank(values[0].value);
  return el('ul', {}, ...values.slice(0, FACT_VALUES).map((v) => el('li', {}, `${ranksText(v.ranks)}: ${v.value}`)),
    values.length > FACT_VALUES ? el('li', {class: 'quiet'}, `and ${values.length - FACT_VALUES} more`) : null);
}

function factRow(fact, segments) {
  const odd = isOdd(fact);
  return el('tr', {class: odd ? 'odd' : null},
    el('th', {scope: 'row'}, fact.key, segments > 1 ? el('span', {class: 'quiet'}, ` segment ${fact.segment}`) : null),
    el('td', {class: 'left'}, odd ? el('strong', {}, 'differs ') : null, factValues(fact)));
}

function factsSection(run) {
  if (run.facts.length === 0) return null;
  const odd = run.facts.filter(isOdd);
  const first = (f) => (odd.includes(f) ? 0 : f.values.length > 1 ? 2 : 1);
  const sorted = [...run.facts].sort((a, b) => first(a) - first(b));
  return el('section', {class: 'card'}, el('h2', {}, 'What the ranks say about themselves'),
    el('p', {class: 'note'}, odd.length === 0 ? 'Every setting that should be the same on all ranks is the same.' :
      `${capital(inWords(odd.length))} of these should be the same on all ranks and ${odd.length === 1 ? 'is' : 'are'} not.`),
    scrollBox('Settings', false, el('table', {class: 'facts'}, el('tbody', {}, ...sorted.map((f) => factRow(f, run.segments.length))))));
}

function notesSection(run) {
  if (run.notes.length === 0) return null;
  return el('section', {class: 'card'}, el('h2', {}, 'Notes of the run'),
    el('p', {class: 'note'}, 'What went wrong with the measuring itself.'),
    el('ul', {class: 'notes'}, ...run.notes.map((n) => el('li', {}, el('b', {}, `rank ${n.rank}`), ` ${n.text}`))));
}
