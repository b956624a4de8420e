// The planner: what is filled in goes to /api/plan, which counts as `hearth plan` does, and stays in the page's address.
'use strict';

const PAUSE_MS = 60; // between the last change and the question
const fields = byId('fields');
let lists, asked = 0, timer = 0;

// ---- fields and the address -----------------------------------------------------------------------------------------

const named = () => [...fields.elements].filter(field => field.name);
const valueOf = field => field.type === 'checkbox' ? (field.checked ? 'true' : '') : field.value.trim();
const isBare = () => !fields.elements.model.value; // a number of parameters in place of a model
const preset = () => lists.presets.find(p => p.name === fields.elements.model.value);
const number = text => Number(String(text).replace(/_/g, ''));

function query() {
  const parameters = new URLSearchParams();
  for (const field of named())
    if (valueOf(field) && !field.closest(isBare() ? '.of-model' : '.of-number')) parameters.set(field.name, valueOf(field));
  return parameters;
}

function choose(field, value) {
  if (field.type === 'checkbox') field.checked = value === 'true';
  if (field.tagName === 'SELECT' && ![...field.options].some(option => option.value === value))
    field.append(make('option', {value}, value)); // a number that is no power of two
  if (field.type !== 'checkbox') field.value = value;
}

function fillFromAddress() {
  const parameters = new URLSearchParams(location.search);
  if (!parameters.get('params') && !parameters.get('model')) setDefaults();
  else fields.elements.model.value = '';
  if (!parameters.get('params')) fields.elements.params.value = '8B'; // should a model not be wanted any more
  for (const field of named()) {
    const value = parameters.get(field.name);
    if (value !== null) choose(field, value);
    const fold = field.closest('details');
    if (value && fold) fold.open = true;
  }
}

// Sliders move in powers of two, in tenths of decades of tokens, or in steps of time that people say.
const scales = {
  power: {value: at => String(2 ** at), at: text => Math.log2(number(text))},
  tokens: { // 10M to 100T, two digits
    value: at => count(Number((1e7 * 10 ** (7 * at / 300)).toPrecision(2))).replace(/\.?0+(?=[A-Z])/, ''),
    at: text => 300 / 7 * Math.log10(tokensOf(text) / 1e7)},
  hours: {value: at => at === 0 ? '' : String(Number((10 ** (at / 25)).toPrecision(2))), at: text => text ? 25 * Math.log10(number(text)) : 0},
};

function tokensOf(text) {
  const found = /^([\d._]+(?:e\d+)?)([KMBGT]?|x)$/i.exec((text || '20x').trim());
  if (!found) return NaN;
  const per = {K: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12}[found[2].toUpperCase()];
  return number(found[1]) * (per || (found[2].toLowerCase() === 'x' ? isBare() ? tokensOf(fields.elements.params.value || '8B') : preset().parameters : 1));
}

function moveSliders() {
  for (const slider of fields.querySelectorAll('input[type=range]')) {
    const field = slider.closest('label').querySelector('input[name]');
    const at = scales[slider.dataset.scale].at(field.value || field.placeholder);
    slider.value = Number.isFinite(at) ? Math.round(at) : slider.min;
  }
}

function options(select, rows, text, none) {
  if (none !== undefined) select.append(make('option', {value: ''}, none));
  for (const row of rows) select.append(make('option', {value: row.name}, text(row)));
}

function buildFields() {
  const f = fields.elements;
  options(f.model, lists.presets, p => p.name + '  (' + count(p.parameters) +
    (p.active_parameters < p.parameters ? ', ' + count(p.active_parameters) + ' active' : '') + ')');
  f.model.prepend(make('option', {value: ''}, 'only its number of parameters'));
  options(f.gpu, lists.gpus, g => g.title + (g.cpu ? '' : '  (' + bytes(g.memory) + ')') + (g.measured ? '  measured here' : ''), 'the node\'s, or the usual one');
  options(f.node, lists.nodes, n => n.title + '  (' + n.gpus + ')', 'none');
  options(f.software, lists.software, s => s.title, 'hearth');
  options(f.precision, lists.precisions.map(name => ({name})), p => p.name);
  options(f.recompute, lists.recomputes.map(name => ({name})), r => r.name);
  f.precision.value = 'bf16';
  f.recompute.value = 'none';
  for (const select of fields.querySelectorAll('[data-powers]')) {
    select.append(make('option', {value: ''}, '1'));
    for (let n = 2; n <= Number(select.dataset.powers); n *= 2) select.append(make('option', {value: n}, String(n)));
  }
}

function setDefaults() {
  const f = fields.elements;
  f.model.value = 'llama-3.2-1b';
  f.params.value = '8B';
  const measured = lists.gpus.find(g => g.measured && !g.cpu);
  f.gpu.value = measured ? measured.name : 'h100-sxm';
  f.gpus.value = '8';
  f.seq.value = '4096';
  f['micro-batch'].value = '4';
  f.precision.value = 'bf16';
  f.recompute.value = 'none';
}

// What the preset or the device says where nothing is filled in.
function placeholders() {
  const p = preset(), f = fields.elements, node = lists.nodes.find(n => n.name === f.node.value);
  byId('planner').classList.toggle('bare', isBare());
  if (p) {
    for (const field of fields.querySelectorAll('[name^="model."]')) field.placeholder = p[field.name.slice(6)];
    for (const label of fields.querySelectorAll('.moe')) label.hidden = !p.experts;
  }
  const gpu = lists.gpus.find(g => g.name === (node ? node.gpu : f.gpu.value));
  f.price.placeholder = gpu ? gpu.usd_per_hour : '';
  f['gpus-per-node'].placeholder = node ? node.gpus : 8;
}

// ---- the answer -----------------------------------------------------------------------------------------------------

const digits = (n, most = 3) => Number(n.toPrecision(most)).toLocaleString('en-US', {maximumFractionDigits: 12});
const usd = n => '$' + (n >= 1e6 ? digits(n / 1e6) + 'M' : n >= 100 ? grouped(n) : n.toFixed(2));

// The largest of hours, days and months (of 30 days) that is one or more, and the others.
function times(seconds) {
  const hours = seconds / 3600, all = [['months', hours / 720], ['days', hours / 24], ['hours', hours]];
  if (hours < 1) return [digits(seconds / 60) + ' minutes', digits(hours) + ' hours'];
  const main = all.find(([, n]) => n >= 1);
  const shown = ([name, n]) => digits(n, n >= 100 ? 4 : 3) + ' ' + (digits(n, 3) === '1' ? name.slice(0, -1) : name);
  return [shown(main), all.filter(part => part !== main && part[1] >= 0.01).map(shown).join(', ')];
}

function tile(name, value, more) {
  return make('div', {}, make('span', {}, name), make('b', {}, value), make('small', {}, more || ''));
}

function showTiles(plan, f) {
  const b = plan.budget, crashes = plan.checkpoint.crashes;
  byId('tiles').replaceChildren(
    tile('speed', f('budget|tokens_per_second', n => count(n) + ' tok/s'), count(b.tokens_per_second / plan.devices) + ' per device'),
    tile('MFU', plan.mesh ? f('budget|mfu', percent) : percent(b.mfu), plan.mfu_assumed ? 'assumed' : plan.typical_mfu ? 'typical as 6N: ' + percent(plan.typical_mfu.mfu_low, 0) + ' to ' + percent(plan.typical_mfu.mfu_high, 0) : ''),
    tile('cost', f('budget|cost_usd', n => n > 0 ? usd(n) : 'no price'), grouped(b.gpu_hours) + ' device-hours'),
    tile('energy', f('budget|energy_kwh', n => n > 0 ? (n >= 1e4 ? digits(n / 1e3) + ' MWh' : digits(n) + ' kWh') : 'unknown'), f('budget|electricity_usd', n => n > 0 ? usd(n) + ' of electricity' : '')),
    tile('tokens', f('budget|tokens', count), digits(b.tokens / plan.parameters) + ' per parameter'),
    ...(plan.step_seconds ? [tile('step', f('step_seconds', seconds), count(plan.batch_tokens) + ' tokens, ' + count(b.steps) + ' steps')] : []),
    tile('model', count(plan.parameters), plan.active_parameters < plan.parameters ? count(plan.active_parameters) + ' active' : 'parameters'),
    ...(crashes === null || crashes >= 1 ? [tile(crashes === null ? 'with crashes' : 'with ' + digits(crashes, 2) + ' crashes', crashes === null ? 'never' : times(plan.checkpoint.calendar_seconds)[0], crashes === null ? 'they take more than they leave' : usd(plan.checkpoint.crashes_usd) + ' lost to them')] : []),
    ...(plan.hours ? [tile(make('span', {}, 'in ', f('hours|hours', n => digits(n, 4)), ' hours'), f('hours|tokens', count), make('span', {}, 'tokens, ', f('hours|chinchilla_share', n => digits(20 * n) + ' per parameter')))] : []));
}

// Parts of a whole; `of` makes the figure of a part.
function stack(bar, legend, parts, whole, text, of) {
  byId(bar).querySelector('.parts').replaceChildren(...parts.map(([name, size], i) => {
    const piece = make('i', {class: 'k' + i % 9, title: name + ': ' + text(size)});
    piece.style.width = 100 * size / whole + '%';
    return piece;
  }));
  byId(legend).replaceChildren(...parts.map(([name, size], i) =>
    make('span', {}, make('i', {class: 'k' + i % 9}), name + ' ', make('b', {}, of(name, text) || text(size)))));
}

function mark(kind, share, text) {
  const line = make('div', {class: 'mark ' + kind + (share < 0.3 ? ' early' : '')}, make('span', {}, text));
  line.style.left = 100 * share + '%';
  return line;
}

// Of a number of parameters the states alone are known, cut over all devices.
function memoryOf(plan, device) {
  if (plan.memory_bytes) return plan.memory_bytes;
  return {'states of mixed-precision Adam, over all devices': plan.state_bytes_sharded, total: plan.state_bytes_sharded, fraction: plan.state_bytes_sharded / device};
}

function showMemory(answer) {
  const m = memoryOf(answer.plan, answer.machine.memory), device = answer.machine.memory, whole = Math.max(device, m.total);
  const not = ['total', 'fraction', 'exact', 'expert_rows'];
  let parts = Object.entries(m).filter(([name, size]) => !not.includes(name) && size > 0).sort((a, b) => b[1] - a[1]);
  if (!parts.length) parts = [['as fitted to logs', m.total]];
  const f = figuresOf(answer.plan);
  stack('memory-bar', 'memory-legend', parts, whole, bytes, (name, text) => f('memory_bytes|' + name, text) || (answer.plan.memory_bytes ? null : f('state_bytes_sharded', text)));
  const bar = byId('memory-bar');
  bar.classList.toggle('over', m.total > device);
  for (const old of bar.querySelectorAll('.mark')) old.remove();
  if (m.total > device) bar.append(mark('', device / whole, bytes(device)));
  else if (answer.memory_limit < 1) bar.append(mark('limit', answer.memory_limit * device / whole, Math.round(100 * answer.memory_limit) + ' %'));
  byId('memory').replaceChildren(f('memory_bytes|total', bytes) || bytes(m.total), ' of ' + bytes(device) + ' (', f('memory_bytes|fraction', percent) || percent(m.fraction), ')',
    ...(answer.plan.state_bytes ? ['; all states ', f('state_bytes', bytes)] : []));
}

// "tp 2 with dp 4", "ZeRO 3, micro_batch 1, recompute full", "ep 2 instead of 1": fields and values; null where it is
// about something else.
function settingsOf(what) {
  const names = {tp: 'tp', pp: 'pp', cp: 'cp', ep: 'ep', etp: 'etp', ZeRO: 'zero', micro_batch: 'micro-batch', grad_accum: 'accum', recompute: 'recompute', precision: 'precision'};
  const found = [...what.matchAll(/\b(tp|pp|cp|ep|etp|ZeRO|micro_batch|grad_accum|recompute|precision) ([a-z0-9-]+)/g)];
  return found.length ? found.map(([, name, value]) => [names[name], value]) : null;
}

function applyButton(what) {
  const settings = settingsOf(what);
  if (!settings) return '';
  const button = make('button', {type: 'button'}, 'Apply');
  button.addEventListener('click', () => {
    for (const [name, value] of settings) {
      const field = fields.elements[name], first = field.options && field.options[0];
      choose(field, first && first.value === '' && value === first.textContent ? '' : value);
    }
    changed();
  });
  return button;
}

function showVerdict(plan, machine, f) {
  const verdict = byId('verdict');
  if (plan.fits) {
    if (!plan.memory_bytes) verdict.replaceChildren(make('b', {class: 'good'}, f('fits', () => 'The states fit')), '; activations come on top, and a model says how much.');
    else verdict.replaceChildren(make('b', {class: 'good'}, f('fits', () => 'Fits')), f('memory_bytes|exact', on => on ? ', to the byte as the layout of this run says.' : ', as its memory was fitted to logs.'));
    return;
  }
  verdict.replaceChildren(make('b', {class: 'bad'}, f('fits', () => 'Does not fit')), ': ' + percent(memoryOf(plan, machine.memory).fraction, 0) + ' of a device',
    f('memory_bytes|exact', on => on ? ', counted to the byte. ' : ', as its memory was fitted to logs. ') || '. ');
  if (plan.fitting) verdict.append('This would: ', f('fitting|what'), ' (', f('fitting|tokens_per_second', n => count(n) + ' tok/s, '), f('fitting|gain', gain => (gain >= 0 ? '+' : '') + percent(gain) + ', '), f('fitting|memory_fraction', n => 'memory ' + percent(n, 0)), '). ', applyButton(plan.fitting.what));
  else verdict.append('No way to cut and batch it was found that does: more devices, shorter sequences or a smaller model.');
}

function showStep(plan, f) {
  const parts = Object.entries(plan.step_parts).sort((a, b) => b[1] - a[1]);
  stack('step-bar', 'step-legend', parts, plan.step_seconds, s => percent(s / plan.step_seconds), (name, text) => f('step_parts|' + name, text));
  byId('step').textContent = digits(1e3 * plan.step_seconds, 4) + ' ms';
  byId('bottleneck').replaceChildren(make('b', {}, 'What holds it back: '), f('advice|text'));
}

function showAssumed(plan) {
  const typical = plan.typical_mfu;
  byId('assumed').hidden = !typical;
  if (typical) byId('assumed').replaceChildren(make('b', {}, plan.mfu_assumed ? 'Assumed: ' : 'Typical: '), (plan.mfu_assumed ? 'an MFU of ' + percent(plan.budget.mfu, 0) + ', the middle of what is typical of a ' : '') + typical.title + ': ' +
    percent(typical.mfu_low, 0) + ' to ' + percent(typical.mfu_high, 0) + (plan.typical_seconds ? ', ' + times(Math.min(...plan.typical_seconds))[0] + ' to ' + times(Math.max(...plan.typical_seconds))[0] : '') + '.');
}

function show(answer, target) {
  const plan = answer.plan, f = figuresOf(plan), [main, others] = times(plan.budget.seconds);
  byId('what').replaceChildren(f('name') || count(plan.parameters) + ' parameters', ' on ', f('devices', grouped), ' x ', f('device', () => answer.machine.title), ', ' + count(plan.budget.tokens) + ' tokens:');
  byId('time').textContent = main;
  byId('times').textContent = others;
  byId('trained').replaceChildren(f('budget|chinchilla_words'));
  showTiles(plan, f);
  showMemory(answer);
  showVerdict(plan, answer.machine, f);
  if (plan.mesh) {
    byId('dp').textContent = grouped(plan.mesh.dp);
    showStep(plan, f);
  } else showAssumed(plan);
  showDetails(plan);
  const from = plan.advice ? 'advice|warnings|' : 'warnings|';
  byId('warnings').replaceChildren(...(plan.advice || plan).warnings.map((_, i) => make('li', {}, f(from + i))));
  byId('brief').replaceChildren(make('b', {}, main), make('span', {class: plan.fits ? '' : 'warn'}, (100 * memoryOf(plan, answer.machine.memory).fraction).toFixed(0) + ' % of memory'), make('span', {}, plan.budget.cost_usd > 0 ? usd(plan.budget.cost_usd) : ''));
  byId('command').textContent = answer.command;
  byId('json').href = target;
  byId('answer').hidden = false;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

async function answer() {
  const turn = ++asked, parameters = query(), all = '/api/plan?' + parameters;
  history.replaceState(null, '', '/planner?' + parameters);
  const compare = parameters.get('compare-nodes'); // takes longer: asked for when the rest is there
  parameters.delete('compare-nodes');
  try {
    const got = await ask('/api/plan?' + parameters);
    if (turn !== asked) return; // somebody asked again since
    show(got, all);
    problem('');
    byId('answer').classList.remove('stale');
    byId('nodes').classList.toggle('stale', Boolean(compare));
    if (!compare) showNodes(got.plan);
    const more = compare && await ask(all);
    if (turn !== asked) return;
    if (more) {
      showNodes(more.plan);
      byId('command').textContent = more.command;
      byId('nodes').classList.remove('stale');
    }
  } catch (error) {
    if (turn !== asked) return;
    problem(error.message);
    byId('brief').replaceChildren(make('span', {class: 'warn'}, error.message.split('\n')[0]));
    byId('answer').classList.add('stale');
  }
  document.body.dataset.answered = turn; // for tests: nothing is under way
}

function changed() {
  placeholders();
  moveSliders();
  document.body.removeAttribute('data-answered');
  clearTimeout(timer);
  timer = setTimeout(answer, PAUSE_MS);
}

fields.addEventListener('input', event => {
  const slider = event.target;
  if (slider.type === 'range') slider.closest('label').querySelector('input[name]').value = scales[slider.dataset.scale].value(Number(slider.value));
  if (slider.name === 'model') for (const field of fields.querySelectorAll('[name^="model."]')) field.value = '';
  if (slider.name === 'node' && slider.value) fields.elements.gpu.value = '';
  if (slider.name === 'gpu' && slider.value) fields.elements.node.value = '';
  changed();
});
fields.addEventListener('submit', event => event.preventDefault());
fields.addEventListener('reset', event => {
  event.preventDefault();
  for (const field of named()) choose(field, '');
  setDefaults();
  changed();
});
byId('copy').addEventListener('click', async () => {
  const text = byId('command').textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId('copy').textContent = 'Copied';
  } catch { // not allowed to: marked, so that the keyboard can
    getSelection().selectAllChildren(byId('command'));
    byId('copy').textContent = 'Marked';
  }
  setTimeout(() => { byId('copy').textContent = 'Copy'; }, 1500);
});

(async () => {
  try {
    lists = await ask('/api/plan/lists');
  } catch (error) {
    problem(error.message);
    return;
  }
  buildFields();
  if (location.search) fillFromAddress();
  else setDefaults();
  changed();
})();
