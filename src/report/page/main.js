// SPDX-License-Identifier: Apache-2.0

function runPicker(runs, choose) {
  const tabs = runs.map((run, i) => el('button', {type: 'button', role: 'tab', id: `tab-${i}`, 'aria-controls': 'run',
    onclick: () => choose(run)}, run.name));
  const bar = el('div', {class: 'tabs', role: 'tablist', 'aria-label': 'run'}, ...tabs);
  bar.addEventListener('keydown', (event) => {
    const move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!move) return;
    const next = (tabs.indexOf(document.activeElement) + move + tabs.length) % tabs.length;
    tabs[next].focus();
    tabs[next].click();
  });
  const mark = (run) => runs.forEach((other, i) => {
    tabs[i].setAttribute('aria-selected', String(other === run));
    tabs[i].tabIndex = other === run ? 0 : -1;
  });
  return {bar, mark};
}

function drawSeveral(main, runs) {
  const body = el('div', {id: 'run', role: 'tabpanel'});
  let view = null;
  const choose = (run, jump) => {
    mark(run);
    view?.destroy();
    view = new RunView(body, run, false);
    if (jump) bar.scrollIntoView();
  };
  const {bar, mark} = runPicker(runs, choose);
  const overview = el('div', {id: 'overview'});
  main.append(overview, bar, body);
  new Overview(overview, runs, choose);
  const first = runs.every(s1Of) ? runs : runs.filter((run) => !s1Of(run));
  choose(first.reduce((a, b) => (worstSeverity(b) > worstSeverity(a) ? b : a)));
}

let catalog = {};  // what each check examines, by name

// Makes the data ready to draw.
function prepare(data) {
  catalog = data.catalog;
  for (const run of data.runs) {
    for (const part of run.parts) {
      part.findings = run.judgment.findings.filter((f) => isOf(f, part));
      part.workers.forEach((w, i) => { w.lines.own_time = part.time?.workers[i].own ?? []; });
    }
  }
  document.title = `${data.runs.map((r) => r.name).join(', ')} – presum`;
  document.getElementById('foot').textContent = `presum ${data.presum}`;
}

function draw(data) {
  const main = document.getElementById('report');
  prepare(data);
  if (data.comparison) drawComparison(main, data.comparison);
  if (data.runs.length > 1) drawSeveral(main, data.runs);
  else new RunView(main, data.runs[0], true);
}

startTheme();
const embedded = JSON.parse(document.getElementById('presum-data').textContent);
if (embedded) draw(embedded);
else follow(document.getElementById('report'));
