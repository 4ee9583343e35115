// SPDX-License-Identifier: Apache-2.0
// When the job was stalled, and where each rank was.

function stallText(run, {segment, step, seconds, end}) {
  const where = run.segments.length > 1 ? `segment ${segment}, step ${step}` : `step ${step}`;
  const after = {'went-on': 'then it continued',
    open: 'and it had not gone on when this was written'}[end];
  return `${where}: ${duration(seconds)}, ${after}`;
}

// `marked`: the ranks that the others waited for.
function placeRows({ranks, where, site, stack}, marked) {
  const row = (...cells) => el('tr', {class: marked ? 'odd' : null}, ...cells);
  const place = row(el('th', {scope: 'row'}, ranksText(ranks)),
    el('td', {class: 'left'}, where, marked ? el('strong', {}, ' – keeps the others waiting') : null), el('td', {class: 'left'}, site));
  if (!stack) return [place];
  return [place, row(el('td', {class: 'left', colspan: 3}, el('details', {}, el('summary', {}, `Stack of ${ranksText(ranks)}`), el('pre', {}, stack))))];
}

function placesTable({harmless, places, ranks_left: left}) {
  if (places.length === 0) return null;
  const someWait = !harmless && places.some((place) => !place.awaited);
  const headings = ['Ranks', 'Place', 'Line of the program'].map((label) => el('th', {scope: 'col'}, label));
  return el('details', {class: 'raw'}, el('summary', {}, 'Where each rank stood'),
    scrollBox('Places', false, el('table', {class: 'facts'}, el('thead', {}, el('tr', {}, ...headings)),
      el('tbody', {}, ...places.flatMap((place) => placeRows(place, someWait && place.awaited))))),
    left > 0 ? el('p', {class: 'note'}, `and ${count(left, 'rank')} elsewhere`) : null);
}

function stallEntry(run, stall) {
  if (stall.harmless) {
    return el('div', {class: 'stall note'}, el('p', {}, `Harmless, at ${stallText(run, stall)}. ${sentence(stall.sentence)}`), placesTable(stall));
  }
  return el('article', {class: 'finding stall warning'}, el('h3', {}, stall.sentence), el('p', {class: 'note'}, capital(stallText(run, stall))), placesTable(stall));
}

function stallsSection(run) {
  const {list, count: total} = run.stalls;
  if (total === 0) return null;
  return el('section', {class: 'card', id: 'stalls'}, el('h2', {}, 'Stalls'), ...list.map((stall) => stallEntry(run, stall)),
    total > list.length ? el('p', {class: 'note'}, `and ${total - list.length} more in the run: presum export --table stalls lists them all`) : null);
}
