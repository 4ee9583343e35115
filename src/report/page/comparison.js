// SPDX-License-Identifier: Apache-2.0
// Where two runs begin to differ, from the output of `presum compare --format json`.

function stageName(stage) {
  return stage.replaceAll('-', ' ');
}

function whoDiffers(difference) {
  if (difference.ranks.length === 0) return '';
  return difference.all_ranks && difference.ranks.length > 1 ? 'all ranks: ' : `${ranksText(difference.ranks)}: `;
}

function whenDiffers(stage, difference) {
  return stage === 'final-parameters' ? `after the last step, ${difference.step}` : `step ${difference.step}`;
}

function lastSeen(stage, difference) {
  const before = difference.step - (stage === 'final-parameters' ? 0 : 1);
  return difference.last_seen === null || difference.last_seen >= before ? '' : ` (last seen equal at step ${difference.last_seen})`;
}

function firstOf(model) {
  return model.stages.find((s) => s.stage === model.first_stage).first;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function comparisonSentence(comparison) {
  if (comparison.outcome === 'not-comparable') return `Not comparable: ${comparison.reason}.`;
  const place = (m) => m.stages.findIndex((s) => s.stage === m.first_stage);
  const differing = comparison.models.filter((m) => m.first_stage).sort((a, b) => a.first_step - b.first_step || place(a) - place(b));
  if (differing.length === 0) return sentence(comparison.agreement);
  const model = differing[0];
  const first = firstOf(model);
  const until = model.last_identical === null ? '' : `Identical at the common steps up to ${model.last_identical}. `;
  const bracket = model.bracket ? ` (${model.bracket})` : '';
  return `${until}First difference${bracket ? ' seen' : ''}: ${whenDiffers(model.first_stage, first)}, ${stageName(model.first_stage)}, ${whoDiffers(first)}${first.what}${bracket}.`;
}

function stageRow(model, stage) {
  const {first} = stage;
  const text = first ? `${whenDiffers(stage.stage, first)}${lastSeen(stage.stage, first)}: ${whoDiffers(first)}${first.what}` : stage.compared === 0 ? 'not compared' : 'equal';
  return el('tr', {'data-stage': stage.stage, class: model.first_stage === stage.stage ? 'chosen' : null}, el('th', {scope: 'row', class: 'left'}, stageName(stage.stage)),
    el('td', {}, String(stage.compared)), el('td', {}, String(stage.differing)), el('td', {class: 'left wide'}, text));
}

function textList(title, lines) {
  return lines.length ? el('details', {open: ''}, el('summary', {}, title), el('ul', {}, ...lines.map((line) => el('li', {}, line)))) : null;
}

function firstDetails(model) {
  if (!model.first_stage) return null;
  const lines = firstOf(model).evidence.map((e) => `${e.ranks.length ? `${ranksText(e.ranks)}: ` : ''}${e.text}`);
  if (model.unseen.length) lines.push(`not compared at that step: ${model.unseen.map(stageName).join(', ')}`);
  return el('div', {}, textList('Evidence', lines), model.between ? el('p', {}, el('b', {}, 'Between: '), model.between) : null);
}

function modelSection(comparison, model) {
  const head = ['Stage', 'Steps compared', 'Differing', 'First difference'].map((text, i) => el('th', {scope: 'col', class: i % 3 === 0 ? 'left' : null}, text));
  return el('section', {class: 'card'}, el('h2', {}, comparison.models.length > 1 ? `Model ${model.model_index}, data-parallel group ${model.dp_group}` : 'Stage by stage'), firstDetails(model),
    scrollBox('Stages', false, el('table', {}, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...model.stages.map((s) => stageRow(model, s))))),
    textList('Also to know', model.remarks), textList('Not compared', model.not_compared));
}

const FACT_TITLES = {configuration: 'Settings that differ', environment: 'Environments differ (a possible cause)', recording: 'Recorded in another way'};

function factLists(comparison) {
  const lists = Object.entries(FACT_TITLES).map(([weight, title]) => textList(title, comparison.facts.filter((f) => f.weight === weight)
    .map((f) => `${f.key}: ${f.a || 'unset'} in A, ${f.b || 'unset'} in B${f.all_ranks || f.ranks.length === 0 ? '' : ` (${ranksText(f.ranks)})`}`)));
  return [...lists, textList('In one run only', comparison.not_compared)].filter(Boolean);
}

function drawComparison(main, comparison) {
  const beside = factLists(comparison);
  main.append(el('section', {id: 'comparison', 'aria-label': 'comparison'},
    el('h1', {}, `${comparison.a} (A) and ${comparison.b} (B)`), el('p', {class: 'verdict plain'}, comparisonSentence(comparison)),
    ...comparison.models.map((model) => modelSection(comparison, model)),
    beside.length ? el('section', {class: 'card'}, el('h2', {}, 'Beside the steps'), ...beside) : null));
}
