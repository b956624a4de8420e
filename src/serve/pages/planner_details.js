// The planner's answer in full: every figure of the plan's JSON has a place on the page, and says which one it is
// (data-field), so that none is forgotten.
'use strict';

const percent = (n, places = 1) => (100 * n).toFixed(places) + ' %';
const stored = n => n >= 1e12 ? digits(n / 1e12, 4) + ' TB' : digits(n / 1e9, 4) + ' GB';
const seconds = s => s >= 1 ? digits(s) + ' s' : digits(1e3 * s) + ' ms';

// The figure at a place of the plan ("budget|tokens", "nodes|0|name") in words; null where the plan has none.
function figuresOf(plan) {
  return (path, words = String) => {
    const value = path.split('|').reduce((part, key) => part === undefined || part === null ? undefined : part[key], plan);
    if (value === undefined) return null;
    return make('span', {'data-field': path, 'data-value': JSON.stringify(value)}, value === null ? 'without end' : words(value));
  };
}

// ---- cards ----------------------------------------------------------------------------------------------------------

// A line of a card, of one figure or a list of them; none where there is no figure.
function fact(name, value, ...more) {
  const values = [].concat(value), said = more.filter(part => part !== null);
  return values[0] && make('div', {class: 'fact'}, make('span', {}, name), make('b', {}, ...values), ...(said.length ? [make('small', {}, ...said)] : []));
}

function card(title, ...facts) {
  return make('section', {class: 'card'}, make('h3', {}, title), ...facts.filter(Boolean));
}

function speedCard(plan, f) {
  const bare = !plan.mesh, fp8 = f('fp8|gain', gain => (gain >= 0 ? '+' : '') + percent(gain));
  return card('Speed',
    fact('bottleneck', f('advice|bottleneck')),
    fact('MFU, attention in full', f('mfu', percent), f('flops_per_token', n => digits(n / 1e9) + ' GFLOP per token')),
    fact('with causal attention', f('mfu_causal', percent), f('flops_per_token_causal', n => digits(n / 1e9) + ' GFLOP per token, '), f('flops_per_token_6n', n => digits(n / 1e9) + ' as 6N')),
    fact('hardware, with recompute', f('hfu', percent)),
    fact('MFU as 6N', bare ? f('budget|mfu', percent) : null, f('mfu_assumed', on => on ? 'assumed: the middle of what is typical' : 'as given')),
    fact('typical MFU, as 6N', [f('typical_mfu|mfu_low', n => percent(n, 0)), ' to ', f('typical_mfu|mfu_high', n => percent(n, 0))], f('typical_mfu|title'), ' (', f('typical_mfu|class'), '): ', f('typical_mfu|source')),
    fact('time at its ends', [f('typical_seconds|0', s => times(s)[0]), ' to ', f('typical_seconds|1', s => times(s)[0])]),
    fact('peak of a device', f('peak_flops', n => digits(n / 1e12, 4) + ' TFLOP/s'), f('peak_dtype', name => 'dense ' + name + '; '), f('measured_rates', on => on ? 'rates measured here' : 'rates of the catalogue'),
      bare ? f('precision', name => 'of a run in ' + name) : null),
    fact('tokens/s modelled', f('tokens_per_second', grouped), plan.calibration === 1 ? f('calibration', () => 'no earlier runs to correct it by') : f('calibration', n => 'step time x ' + digits(n) + ' by earlier runs')),
    fact('with FP8', fp8, f('fp8|tokens_per_second', n => count(n) + ' tok/s, '), f('fp8|memory_fraction', n => 'memory ' + percent(n, 0) + ': '), f('fp8|what'), fp8 && ' ', fp8 && applyButton(plan.fp8.what)),
    fact('with FP8', f('fp8_seconds', s => times(s)[0]), f('fp8_source')));
}

function lengthCard(plan, f) {
  return card('Length',
    fact('time', f('budget|hours', n => digits(n, 4) + ' hours'), f('budget|days', n => digits(n, 4) + ' days, '), f('budget|months', n => digits(n) + ' months of 30 days, '), f('budget|seconds', n => digits(n, 4) + ' s')),
    fact('device-hours', f('budget|gpu_hours', grouped)),
    fact('Chinchilla', f('budget|chinchilla_ratio', n => digits(n) + ' x'), f('budget|chinchilla_tokens', n => count(n) + ' tokens are 20 per parameter')),
    fact('compute', f('budget|petaflop_days', n => digits(n, 4) + ' petaFLOP-days'), '6 x active parameters x tokens'),
    fact('steps', f('budget|steps', grouped), f('batch_tokens', n => count(n) + ' tokens each; critical batch '), f('budget|critical_batch_tokens', n => count(n) + ' at the end')),
    fact('parameters', f('parameters', grouped), f('active_parameters', n => n < plan.parameters ? grouped(n) + ' active' : 'all active'), f('embedding_parameters', n => ', ' + grouped(n) + ' in embeddings')));
}

function crashCard(f) {
  return card('Crashes',
    fact('expected over the run', f('checkpoint|crashes', n => n < 10 ? n.toFixed(2) : grouped(n)), f('checkpoint|mtbf_seconds', s => 'one in ' + times(s)[0] + ' of the whole job')),
    fact('calendar time with them', f('checkpoint|calendar_seconds', s => times(s)[0]), f('checkpoint|calendar_usd', usd)),
    fact('they cost', f('checkpoint|crashes_usd', usd), f('checkpoint|crash_usd', n => usd(n) + ' each: half an interval and the way back')),
    fact('a checkpoint every', f('checkpoint|interval_seconds', duration), f('checkpoint|waste', n => percent(n, 2) + ' of the time goes to writes and to what is done again')),
    fact('a checkpoint', f('checkpoint|bytes', stored), f('checkpoint|write_seconds', s => duration(s) + ' to write')));
}

function storageCard(f) {
  return card('Storage',
    fact('dataset', f('storage|dataset_bytes', stored), 'one pass'),
    fact('with checkpoints', f('storage|bytes', stored), f('storage|checkpoints', n => digits(n) + ' kept')),
    fact('a month', f('storage|usd_per_month', usd), f('storage|usd_per_GB_month', n => '$' + n + ' per GB-month'), f('storage|price_source', text => text ? ': ' + text : '')),
    fact('over the run', f('storage|usd', usd), 'for its calendar time'));
}

function pipelineCard(plan, f) {
  return plan.pipeline && card('Pipeline',
    fact('bubble of equal stages', f('pipeline|bubble_of_wall', percent), f('pipeline|bubble_of_ideal', n => percent(n) + ' of ideal time')),
    fact('activations of stage 0', f('pipeline|stash_bytes_stage_0', bytes), f('pipeline|in_flight_stage_0', n => digits(n) + ' micro-batches in flight')),
    fact('memory by stage', f('pipeline|stage_bytes|0', bytes), ...plan.pipeline.stage_bytes.slice(1).flatMap((_, i) => [f('pipeline|stage_bytes|' + (i + 1), bytes), ' '])));
}

function expertCard(plan, f) {
  return plan.memory_bytes && plan.memory_bytes.expert_rows && card('Experts of a rank',
    fact('room for rows', f('memory_bytes|expert_rows|room', grouped), f('memory_bytes|expert_rows|mean', n => grouped(n) + ' by balanced routing, '), f('memory_bytes|expert_rows|most', n => grouped(n) + ' at most')));
}

// ---- tables ---------------------------------------------------------------------------------------------------------

// [heading, cell of a row's path], one row for each path; columns of numbers stand right.
function table(columns, paths) {
  const cells = (tag, of) => columns.map(([heading, cell, kind]) => make(tag, {class: kind || 'number'}, of(heading, cell) || ''));
  return make('div', {class: 'scroll'}, make('table', {}, make('thead', {}, make('tr', {}, ...cells('th', heading => heading))),
    make('tbody', {}, ...paths.map(path => make('tr', {}, ...cells('td', (_, cell) => cell(path)))))));
}

function nodeMarks(plan, f, path) {
  const node = path.split('|').reduce((part, key) => part[key], plan), marks = make('span', {});
  for (const [field, text] of [['cheapest', 'cheapest'], ['fastest', 'fastest']])
    if (plan[field] === node.name) marks.append(make('b', {class: 'badge'}, f(field, () => text)), ' ');
  marks.append(f(path + '|this_plan', on => on ? 'this plan ' : ''), f(path + '|fits', on => on ? '' : 'does not fit or cannot run'),
    f(path + '|change', how => how ? 'with ' + how : '') || '');
  return marks;
}

function showNodes(plan) {
  const f = figuresOf(plan), told = name => {
    const node = plan.nodes.find(n => n.name === name);
    return name + ' (' + times(node.seconds)[0] + ', ' + usd(node.cost_usd) + ')';
  };
  byId('nodes').hidden = !plan.nodes;
  if (!plan.nodes) return;
  byId('nodes-said').textContent = !plan.cheapest ? 'No node of the catalogue can run it.' : 'With as many devices, the cheapest is ' +
    (plan.cheapest === plan.fastest ? told(plan.cheapest) + ', which is also the fastest.' : told(plan.cheapest) + ', the fastest ' + told(plan.fastest) + '.');
  byId('nodes-table').replaceChildren(table([
    ['node', path => make('span', {}, f(path + '|name'), make('small', {}, f(path + '|device'))), 'text'],
    ['cost', path => f(path + '|cost_usd', usd)], ['time', path => f(path + '|seconds', s => times(s)[0])],
    ['tok/s', path => f(path + '|tokens_per_second', count)], ['MFU', path => f(path + '|mfu', percent)],
    ['kWh', path => f(path + '|energy_kwh', grouped)], ['', path => nodeMarks(plan, f, path), 'text'],
  ], plan.nodes.map((_, i) => 'nodes|' + i)));
}

function showTraffic(plan, f) {
  const axes = Object.keys(plan.communication || {});
  byId('traffic').hidden = !axes.length;
  byId('traffic-table').replaceChildren(table([
    ['between', path => path.split('|')[1], 'text'], ['ranks', path => f(path + '|ranks')], ['nodes', path => f(path + '|between_nodes', on => on ? 'several' : 'one')],
    ['sent', path => f(path + '|bytes', bytes)], ['on the links', path => f(path + '|seconds', seconds)], ['not hidden', path => f(path + '|exposed_seconds', seconds)],
  ], axes.map(name => 'communication|' + name)));
}

function showVocabularies(plan, f) {
  byId('vocabularies').hidden = !plan.vocabulary;
  byId('vocabularies-table').replaceChildren(table([
    ['vocabulary', path => f(path + '|vocab', grouped)], ['parameters', path => f(path + '|parameters', count)], ['active', path => f(path + '|active_parameters', count)],
    ['GFLOP/token', path => f(path + '|flops_per_token', n => digits(n / 1e9))], ['tok/s', path => f(path + '|tokens_per_second', count)],
    ['memory', path => f(path + '|memory_bytes', bytes)], ['time', path => f(path + '|seconds', s => times(s)[0])],
  ], (plan.vocabulary || []).map((_, i) => 'vocabulary|' + i)));
}

function showOps(plan, f) {
  byId('ops').hidden = !plan.ops;
  byId('ops-table').replaceChildren(table([
    ['op', path => f(path + '|name'), 'text'], ['pass', path => f(path + '|pass'), 'text'], ['part', path => f(path + '|part'), 'text'],
    ['time', path => f(path + '|seconds', seconds)], ['TFLOP', path => f(path + '|flops', n => digits(n / 1e12))], ['memory', path => f(path + '|bytes', bytes)], ['kernels', path => f(path + '|kernels')],
  ], (plan.ops || []).map((_, i) => 'ops|' + i)));
}

// ---- what to change -------------------------------------------------------------------------------------------------

function changeLine(plan, f, path, number) {
  const what = path.split('|').reduce((part, key) => part[key], plan).what;
  return make('div', {class: 'change'}, number ? make('i', {}, number + '.') : '', make('b', {}, f(path + '|gain', gain => (gain >= 0 ? '+' : '') + percent(gain))),
    make('span', {}, f(path + '|what'), ' ', make('small', {class: 'soft'}, f(path + '|tokens_per_second', n => count(n) + ' tok/s, ' + times(plan.budget.tokens / n)[0] + ', '),
      f(path + '|memory_fraction', n => 'memory ' + percent(n, 0)))), applyButton(what));
}

function showChanges(plan, f) {
  const {checklist, changes} = plan.advice;
  byId('first').hidden = !checklist.length;
  byId('changes').replaceChildren(...checklist.map((_, i) => changeLine(plan, f, 'advice|checklist|' + i, i + 1)));
  const last = checklist[checklist.length - 1];
  byId('together').textContent = checklist.length > 1 ? 'Each gain comes on top of the lines above it; together ' + digits(last.tokens_per_second / plan.tokens_per_second) + ' x.' : '';
  byId('alone').hidden = changes.every(change => checklist.some(other => other.what === change.what && other.gain === change.gain));
  byId('single').replaceChildren(...changes.map((_, i) => changeLine(plan, f, 'advice|changes|' + i)));
}

// ---- all of it ------------------------------------------------------------------------------------------------------

function showSetting(plan, f) {
  const mesh = Object.keys(plan.mesh || {}).map(axis => f('mesh|' + axis, n => (axis === 'zero' ? 'ZeRO ' : axis + ' ') + n));
  const parts = plan.mesh ? [...mesh, make('span', {}, f('micro_batch', n => n + ' x '), f('seq', n => n + ' tokens'), f('grad_accum', n => n > 1 ? ' accumulated ' + n + ' x' : ' without accumulation')), f('precision'), f('recompute', mode => 'recompute ' + mode), f('software', name => 'by ' + name)] : [];
  byId('setting').replaceChildren(...parts.flatMap((part, i) => i ? [', ', part] : [part]));
  const here = f('trains_here', on => on ? 'This build of hearth trains on this mesh with these devices.' : 'This build of hearth does not train on this mesh with these devices; hearth plan says what it lacks.');
  byId('build').replaceChildren(here || '');
}

function showDetails(plan) {
  const f = figuresOf(plan);
  showSetting(plan, f);
  byId('cards').replaceChildren(...[lengthCard(plan, f), speedCard(plan, f), crashCard(f), storageCard(f), pipelineCard(plan, f), expertCard(plan, f)].filter(Boolean));
  showTraffic(plan, f);
  showVocabularies(plan, f);
  showOps(plan, f);
  if (plan.advice) showChanges(plan, f);
}
