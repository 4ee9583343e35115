// SPDX-License-Identifier: Apache-2.0
// Elements and text. Strings from a run become text nodes only, never markup.

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Shows `code` within a text as code. A lone backtick stays.
function prose(text) {
  const pieces = text.split('`');
  const out = document.createDocumentFragment();
  if (pieces.length % 2 === 0) out.append(text);
  else out.append(...pieces.map((piece, i) => (i % 2 === 0 ? piece : el('code', {}, piece))));
  return out;
}

// The same for places that allow only plain text, such as tooltips.
function plain(text) {
  return text.replaceAll('`', '');
}

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value === 0 || Math.abs(value) < 1e-9) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace('-', '−');
  const text = value.toPrecision(4);
  return (text.includes('.') ? text.replace(/\.?0+$/, '') : text).replace('-', '−');
}

function count(value, noun) {
  return `${value.toLocaleString('en')} ${noun}${value === 1 ? '' : 's'}`;
}

const SMALL = ['no', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten',
  'eleven', 'twelve'];

function inWords(value) {
  return SMALL[value] || String(value);
}

// Ascending numbers as ranges: [0,1,2,5] is "0–2, 5". Pads with zeros to `width`.
function ranges(numbers, width = 1) {
  const name = (value) => String(value).padStart(width, '0');
  const out = [];
  for (let i = 0; i < numbers.length;) {
    let end = i;
    while (end + 1 < numbers.length && numbers[end + 1] === numbers[end] + 1) ++end;
    out.push(end === i ? name(numbers[i]) : `${name(numbers[i])}–${name(numbers[end])}`);
    i = end + 1;
  }
  return out.join(', ') || '–';
}

// Host names; names that differ only in their last number are joined: "node[0–3, 8]".
function hostsText(names) {
  const series = new Map();
  for (const name of names) {
    const [, prefix, digits] = /^(.*?)(\d{0,9})$/s.exec(name);
    const key = `${prefix}\n${digits.length}`;
    if (!series.has(key)) series.set(key, {prefix, width: digits.length, numbers: []});
    series.get(key).numbers.push(Number(digits));
  }
  const texts = [...series.values()].map(({prefix, width, numbers}) => {
    if (width === 0) return prefix;
    const text = ranges(numbers.sort((a, b) => a - b), width);
    return numbers.length === 1 ? prefix + text : `${prefix}[${text}]`;
  });
  return texts.length > 8 ? `${texts.slice(0, 8).join(', ')} and ${texts.length - 8} more` : texts.join(', ');
}

function ranksText(numbers) {
  return `${numbers.length === 1 ? 'rank' : 'ranks'} ${ranges(numbers)}`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function workerName(worker) {
  return worker.rank === null ? `replica ${worker.replica} (never seen)` : `rank ${worker.rank}`;
}

function workersName(workers) {
  return workers.length === 1 ? workerName(workers[0]) : ranksText(workers.map((w) => w.rank).sort((a, b) => a - b));
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? null : [low, high];
}
