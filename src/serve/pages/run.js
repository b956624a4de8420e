// One run: its curves as they grow, and the parts of its report around them.
'use strict';

const name = new URLSearchParams(location.search).get('run') || '';
const POINTS_MOST = 2400; // of a curve; beyond it every second of the older half goes
const axis = axisButtons(byId('axes'), drawAll);
const charts = new Map();
let series = new Map(), clock = [0, 0], offset = 0, logAt = 0, source = null, drawing = 0, gone = false;

document.title = name + ' · hearth';
byId('name').textContent = name;
byId('report').href = '/report?' + runsQuery([name]);

// ---- curves ----

function chartFor(one) {
  const main = one.key in CURVES && !one.eval;
  const parent = byId(main && ['loss', 'tok_s'].includes(one.key) ? 'first' : main ? 'curves' : 'others');
  if (!charts.has(one.tag)) charts.set(one.tag, new LineChart(parent, curveOptions(one)));
  return charts.get(one.tag);
}

function curveLines(one) {
  const x = one[axis()], options = curveOptions(one);
  if (!options.smooth || one.y.length < 20) return [{name: one.key === 'loss' ? 'training' : one.key, colour: 0, style: 'line', x, y: one.y}];
  return [{name: one.key === 'loss' ? 'training' : one.key, colour: 0, style: 'faint', x, y: one.y},
    {name: 'smoothed', colour: 0, style: 'line', x, y: smoothed(one.y)}];
}

function drawAll() {
  drawing = 0;
  const validation = series.get('val/loss');
  for (const one of series.values()) {
    if (one === validation) continue;
    const lines = curveLines(one);
    if (one.key === 'loss' && validation)
      lines.push({name: 'validation', colour: 1, style: 'dots', x: validation[axis()], y: validation.y});
    chartFor(one).draw(lines, axis());
  }
  if (validation) chartFor(validation).draw([{name: 'validation', colour: 1, style: 'dots', x: validation[axis()], y: validation.y}], axis());
  byId('more').hidden = !byId('others').children.length;
  const loss = series.get('train/loss'), rate = series.get('speed/tok_s');
  if (loss && loss.y.length) {
    const last = loss.y.length - 1;
    byId('now').textContent = 'step ' + grouped(loss.step[last]) + ' · ' + count(loss.tokens[last]) + ' tokens · loss ' + loss.y[last].toFixed(4) +
      (rate && rate.y.length ? ' · ' + grouped(rate.y[rate.y.length - 1]) + ' tok/s' : '');
  }
}

function drawSoon() {
  if (!drawing && !document.hidden) drawing = requestAnimationFrame(drawAll);
}

function thin(one) {
  if (one.y.length <= POINTS_MOST) return;
  const half = POINTS_MOST / 2;
  for (const part of ['step', 'tokens', 'time', 'y'])
    one[part] = one[part].filter((_, i) => i >= half || i % 2 === 0);
}

// `elapsed` starts again with every process of a run.
function clockAt(elapsed) {
  if (Number.isFinite(elapsed) && elapsed >= 0) {
    if (elapsed < clock[1]) clock[0] += clock[1];
    clock[1] = elapsed;
  }
  return clock[0] + clock[1];
}

let fields = new Map(); // of the table of metrics, by kind of line: those seen so far

function addLine(line) {
  const evaluation = 'val_loss' in line, time = clockAt(evaluation ? NaN : line.elapsed);
  for (const one of fields.get(evaluation) || []) {
    const y = line[one.key];
    if (!Number.isFinite(y)) continue;
    one.step.push(line.step); one.tokens.push(line.tokens); one.time.push(time); one.y.push(y);
    thin(one);
  }
}

// A figure that appears for the first time (the first validation, say) has no curve yet: the whole is read again.
function isNew(line) {
  const known = fields.get('val_loss' in line) || [];
  return 'val_loss' in line ? !known.length : !known.some(one => one.key === 'loss');
}

async function readSeries() {
  const answer = await ask('/api/series?' + runsQuery([name]));
  series = new Map(answer.series.map(one => [one.tag, one]));
  fields = new Map([false, true].map(evaluation => [evaluation, answer.series.filter(one => one.eval === evaluation)]));
  clock = answer.clock;
  offset = answer.offset;
  drawAll();
}

// ---- parts of the report ----

function showState(state) {
  byId('state').textContent = state;
  byId('state').className = 'state ' + state;
}

function showLog(text) {
  const log = byId('log'), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  log.replaceChildren(...text.split('\n').slice(-500).filter(line => line).map(line => {
    const level = /^\S+ (warn|error) /.exec(line);
    return make('span', {class: level ? level[1] : null}, line + '\n');
  }));
  if (!text) log.textContent = 'nothing was logged';
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// The server escapes what is in the files of a run; opened details stay open.
function showPart(id, html) {
  const part = byId(id), open = [...part.querySelectorAll('details')].map(one => one.open);
  part.innerHTML = html;
  part.querySelectorAll('details').forEach((one, i) => { one.open = Boolean(open[i]); });
}

let logText = '', lastParts = '';

async function readParts() {
  const answer = await ask('/api/run?' + runsQuery([name])), parts = JSON.stringify(answer);
  if (parts === lastParts) return;
  lastParts = parts;
  showState(answer.state);
  problem(answer.state === 'failed' ? answer.message : null);
  for (const id of ['subtitle', 'before', 'behind']) showPart(id, answer[id]);
  if (answer.log_at >= logAt) {
    logText = answer.log;
    logAt = answer.log_at;
    showLog(logText);
  }
}

// ---- what comes ----

function listen() {
  if (source || gone || document.hidden) return;
  source = new EventSource('/api/events?' + runsQuery([name]) + '&from=' + offset);
  source.addEventListener('lines', event => {
    if (Number(event.lastEventId) <= offset) return;
    offset = Number(event.lastEventId);
    const lines = JSON.parse(event.data);
    if (lines.some(isNew)) return again();
    lines.forEach(addLine);
    drawSoon();
  });
  source.addEventListener('reset', again);
  source.addEventListener('state', event => {
    showState(JSON.parse(event.data).state);
    refresh();
  });
  source.addEventListener('alarm', refresh);
  source.addEventListener('log', event => {
    const {at, text} = JSON.parse(event.data);
    if (at <= logAt) return;
    logAt = at;
    logText = (logText + text).slice(-65536);
    showLog(logText);
  });
  source.addEventListener('gone', () => {
    gone = true;
    hush();
    problem('This run is no longer there.');
  });
}

function hush() {
  if (source) source.close();
  source = null;
}

let waiting = 0;

// Reads the whole again, but not more than about once a second.
function again() {
  hush();
  if (!waiting) waiting = setTimeout(start, 1200);
}

async function start() {
  waiting = 0;
  try {
    await readSeries();
    problem(null);
    listen();
  } catch (error) {
    problem(error.message);
    if (error.status !== 404) waiting = setTimeout(start, 4000);
  }
}

function refresh() {
  readParts().catch(error => { if (!gone) problem(error.message); });
}

document.addEventListener('visibilitychange', () => { document.hidden ? hush() : again(); });
start();
repeat(10, refresh);
