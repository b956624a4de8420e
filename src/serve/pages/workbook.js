// The workbook: every quantity of `hearth calc` with its formula, solved for whichever field is left empty, and exercises
// on it. The server computes (/api/calc); the address holds the quantity and its fields.
'use strict';

const PAUSE_MS = 80; // between the last key and the question
const CLOSE_ENOUGH = 0.01; // of the answer: what two or three digits by hand leave
let quantities, quantity, exercise, asked = 0, timer = 0;

// ---- the list -------------------------------------------------------------------------------------------------------

function showList() {
  const word = byId('search').value.trim().toLowerCase(), rows = [];
  let subject = '';
  for (const q of quantities) {
    if (word && ![q.quantity, q.subject, q.summary].some(text => text.toLowerCase().includes(word))) continue;
    if (q.subject !== subject) rows.push(make('h3', {}, subject = q.subject));
    rows.push(make('a', {href: '/workbook?quantity=' + q.quantity, 'data-quantity': q.quantity, 'aria-current': q === quantity && 'true'}, q.summary, make('small', {}, q.quantity)));
  }
  const list = byId('list');
  list.replaceChildren(...(rows.length ? rows : [make('p', {class: 'soft'}, 'nothing is called so')]));
  const here = list.querySelector('[aria-current]'), at = here ? here.offsetTop - list.offsetTop : 0;
  if (here && (at < list.scrollTop || at > list.scrollTop + list.clientHeight - 40)) list.scrollTop = at - 60;
}

// ---- one quantity ---------------------------------------------------------------------------------------------------

// Names of inputs in colour.
function formulaParts(text) {
  const names = new Set(quantity.inputs.map(input => input.name));
  return text.split(/(\{\w+\}|\b\w+\b)/).map(part => {
    const name = part.replace(/^\{(.*)\}$/, '$1');
    return names.has(name) ? make('var', {}, name) : part;
  });
}

function field(name, meaning, unit, hint) {
  const input = make('input', {name, placeholder: hint, spellcheck: 'false'});
  return make('label', {}, make('span', {}, make('b', {}, name), ' ' + meaning + (unit ? ' [' + unit + ']' : '')), input);
}

function inputField(input) {
  if (!input.choices) return field(input.name, input.meaning, input.unit, input.default || input.limits);
  const select = make('select', {name: input.name}, ...input.choices.map(c => make('option', {value: c}, c)));
  select.value = input.default || input.choices[0];
  return make('label', {}, make('span', {}, make('b', {}, input.name), ' ' + input.meaning), select);
}

const inputs = () => [...byId('inputs').elements];

function openQuantity(name, values) {
  quantity = quantities.find(q => q.quantity === name) || quantities[0];
  byId('sheet').hidden = false;
  byId('summary').textContent = quantity.summary;
  byId('name').textContent = quantity.quantity;
  byId('formula').replaceChildren(...formulaParts(quantity.formula));
  byId('convention').textContent = 'Convention: ' + quantity.convention + '.';
  byId('note').textContent = quantity.note ? 'Mind: ' + quantity.note + '.' : '';
  const fields = quantity.inputs.map(inputField);
  if (!quantity.text) { // a shape has no way back
    const result = field('value', quantity.quantity, quantity.unit, 'computed');
    result.classList.add('result');
    fields.push(result);
  }
  byId('inputs').replaceChildren(...fields);
  fill(values || {});
  showList();
}

function fill(values) {
  for (const input of inputs())
    if (values[input.name] !== undefined) input.value = values[input.name];
    else if (input.tagName !== 'SELECT') input.value = '';
  changed();
}

function query() {
  const parameters = new URLSearchParams({quantity: quantity.quantity});
  for (const input of inputs()) if (input.value.trim()) parameters.set(input.name, input.value.trim());
  return parameters;
}

// Fields that stay empty and have nothing to fall back to.
function open() {
  return inputs().filter(input => !input.value.trim() && input.name !== 'value' && !quantity.inputs.find(i => i.name === input.name).default);
}

const figure = (value, unit) => (typeof value === 'number' ? Number(value.toPrecision(10)).toLocaleString('en-US', {maximumSignificantDigits: 10}) : value) + (unit ? ' ' + unit : '');

function showResult(got, parameters) {
  const value = parameters.get('value'), words = [...parameters].filter(([name]) => name !== 'quantity' && name !== 'value').map(pair => pair.join('='));
  byId('result').hidden = false;
  byId('figure').textContent = got.solved ? got.solved + ' = ' + figure(got.found, got.found_unit) : figure(got.value, got.unit);
  byId('found-note').textContent = got.found_note ? got.found_note + '.' : '';
  byId('numbers').textContent = got.formula.split(' = ').slice(1).join(' = ') + ' = ' + figure(got.value, got.unit);
  byId('command').textContent = 'hearth calc ' + quantity.quantity + (value ? '=' + value : '') + ' ' + words.join(' ');
  byId('note').textContent = got.note ? 'Mind: ' + got.note + '.' : '';
  for (const input of inputs()) {
    const found = input.name === (got.solved || 'value');
    input.closest('label').classList.toggle('found', found);
    if (found) input.placeholder = figure(got.solved ? got.found : got.value, '');
  }
}

async function compute() {
  const turn = ++asked, parameters = query(), missing = open(), solving = parameters.has('value');
  history.replaceState(null, '', '/workbook?' + parameters);
  try {
    if (missing.length > (solving ? 1 : 0)) {
      byId('result').hidden = true;
      problem(inputs().some(i => i.tagName === 'INPUT' && i.value) ? 'still open: ' + missing.map(i => i.name).join(', ') + (solving ? '; one of them can be found' : '') : '');
    } else {
      const got = await ask('/api/calc?' + parameters);
      if (turn !== asked) return;
      showResult(got, parameters);
      problem('');
    }
  } catch (error) {
    if (turn !== asked) return;
    byId('result').hidden = true;
    problem(error.message);
  }
  document.body.dataset.answered = turn; // for tests: nothing is under way
}

function changed() {
  for (const label of byId('inputs').querySelectorAll('.found')) label.classList.remove('found');
  document.body.removeAttribute('data-answered');
  clearTimeout(timer);
  timer = setTimeout(compute, PAUSE_MS);
}

// ---- exercises ------------------------------------------------------------------------------------------------------

const any = list => list[Math.floor(Math.random() * list.length)];

// A question in words where there is one; else the summary with an example's inputs.
function draw(name) {
  const written = workbookExercises.filter(e => e.quantity === name && e.question);
  const q = quantities.find(row => row.quantity === name), e = written.length ? any(written) : null, values = {};
  if (e) for (const [input, list] of Object.entries(e.draw)) values[input] = any(list);
  else Object.assign(values, any(workbookExamples[name]));
  const given = q.inputs.filter(i => values[i.name] !== undefined);
  const text = e ? e.question.replace(/\{(\w+)\}/g, (_, input) => values[input])
    : 'What is the ' + q.summary + (q.unit ? ', in ' + q.unit : '') + '? Given: ' +
      given.map(i => i.meaning + ' (' + i.name + ') ' + values[i.name] + (i.unit ? ' ' + i.unit : '')).join('; ') + '.';
  return {q, values, text};
}

async function openExercise(name) {
  exercise = draw(name);
  const turn = exercise;
  byId('exercise').hidden = false;
  byId('question').textContent = exercise.text;
  byId('unit').textContent = exercise.q.unit;
  byId('guess').value = '';
  byId('judged').textContent = '';
  byId('solution').hidden = true;
  exercise.answer = ask('/api/calc?' + new URLSearchParams({quantity: name, ...exercise.values}));
  exercise.answer.catch(error => { if (turn === exercise) problem(error.message); });
}

// "1,024", "2.5e3", "160B", "40 %".
function readNumber(text) {
  const found = /^([-+\d.,_e]+?)\s*([KMBT]?)$/i.exec(text.trim().replace(/\s*%$/, ''));
  if (!found) return NaN;
  return Number(found[1].replace(/[,_]/g, '')) * ({K: 1e3, M: 1e6, B: 1e9, T: 1e12}[found[2].toUpperCase()] || 1);
}

async function judge(event) {
  event.preventDefault();
  const got = await exercise.answer, text = byId('guess').value, out = byId('judged');
  let right, said = '';
  if (typeof got.value === 'number') {
    const guess = readNumber(text);
    right = Math.abs(guess - got.value) <= CLOSE_ENOUGH * Math.abs(got.value);
    if (Number.isNaN(guess)) said = 'That is no number.';
    else if (!right && got.value !== 0) {
      const ratio = guess / got.value, factor = [2, 8, 1.024 ** 3, 1000, 1e6].find(f => Math.abs(ratio / f - 1) < 0.012 || Math.abs(ratio * f - 1) < 0.012);
      said = ratio > 0 && factor ? 'Not quite: a factor of ' + Number(factor.toPrecision(4)) + ' away.' : ratio > 1 ? 'Too large.' : 'Too small.';
    }
  } else right = text.replace(/\s/g, '').toLowerCase() === got.value.replace(/\s/g, '').toLowerCase();
  out.textContent = right ? 'Right.' : said || 'Not yet.';
  out.className = 'judged ' + (right ? 'right' : 'wrong');
}

async function showSolution() {
  const got = await exercise.answer;
  byId('solution').hidden = false;
  byId('solution-figure').textContent = figure(got.value, got.unit);
  byId('solution-formula').textContent = got.formula;
  byId('solution-note').textContent = got.convention + (got.note ? '. Mind: ' + got.note : '') + '.';
}

// ---- events ---------------------------------------------------------------------------------------------------------

byId('search').addEventListener('input', showList);
byId('list').addEventListener('click', event => {
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openQuantity(link.dataset.quantity);
  openExercise(link.dataset.quantity);
  if (innerWidth <= 1000) byId('sheet').scrollIntoView();
});
byId('inputs').addEventListener('input', changed);
byId('inputs').addEventListener('submit', event => event.preventDefault());
byId('example').addEventListener('click', () => fill(any(workbookExamples[quantity.quantity])));
byId('clear').addEventListener('click', () => fill({}));
byId('answer').addEventListener('submit', judge);
byId('solve').addEventListener('click', showSolution);
byId('another').addEventListener('click', () => openExercise(exercise.q.quantity));
byId('next').addEventListener('click', () => {
  const name = any(workbookExercises).quantity;
  openQuantity(name);
  openExercise(name);
});

(async () => {
  try {
    quantities = await ask('/api/calc/list');
  } catch (error) {
    problem(error.message);
    return;
  }
  const values = Object.fromEntries(new URLSearchParams(location.search));
  const name = values.quantity || 'train_days';
  openQuantity(name, values.quantity ? values : workbookExamples[name][0]);
  openExercise(quantity.quantity);
})();
