// SPDX-License-Identifier: Apache-2.0
// Light and dark themes. Everything drawn on a canvas uses color(), and redraws when the theme
// changes.

const redraws = new Set();
let printing = false;
let chosenTheme = null;  // null: the system's theme

function currentTheme() {
  if (printing) return 'light';
  return chosenTheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function onRedraw(element, redraw) {
  redraws.add({element, redraw});
}

function forgetRemoved() {
  for (const entry of redraws) if (!entry.element.isConnected) redraws.delete(entry);
}

function redrawAll() {
  forgetRemoved();
  for (const entry of redraws) entry.redraw();
}

function applyTheme() {
  const theme = currentTheme();
  document.documentElement.dataset.theme = theme;
  document.documentElement.classList.toggle('printing', printing);
  document.getElementById('theme-toggle').textContent = theme === 'dark' ? '☀ Light' : '☾ Dark';
  redrawAll();
}

let unfolded = [];  // findings that are folded on the screen but printed in full

function unfold(value) {
  if (value) unfolded = [...document.querySelectorAll('#findings details:not([open])')];
  for (const details of unfolded) details.open = value;
}

function setPrinting(value) {
  if (printing === value) return;
  printing = value;
  unfold(value);
  applyTheme();
}

function startTheme() {
  document.getElementById('theme-toggle').addEventListener('click', () => {
    chosenTheme = currentTheme() === 'dark' ? 'light' : 'dark';
    applyTheme();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', applyTheme);
  matchMedia('print').addEventListener('change', (event) => setPrinting(event.matches));
  addEventListener('beforeprint', () => setPrinting(true));
  addEventListener('afterprint', () => setPrinting(false));
  let waiting = 0;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(redrawAll, 100);
  });
  applyTheme();
}
