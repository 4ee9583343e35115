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
  const choose = (run, jump) => {
    mark(run);
    drawRun(body, run, false);
    if (jump) bar.scrollIntoView();
  };
  const {bar, mark} = runPicker(runs, choose);
  const overview = el('div', {id: 'overview'});
  main.append(overview, bar, body);
  new Overview(overview, runs, choose);
  const worst = runs.find((r) => r.hard_facts.length > 0) || runs[0];
  choose(worst);
}

// Draws the page from its data, which `presum serve` may also send.
function draw(data) {
  const main = document.getElementById('report');
  main.replaceChildren();
  document.title = `${data.runs.map((r) => r.name).join(', ')} – presum`;
  document.getElementById('foot').textContent = `presum ${data.presum}`;
  if (data.runs.length > 1) drawSeveral(main, data.runs);
  else drawRun(main, data.runs[0], true);
}

startTheme();
draw(JSON.parse(document.getElementById('presum-data').textContent));
