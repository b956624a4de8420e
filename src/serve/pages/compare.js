// Several runs in the same axes, and the tables of what differs.
'use strict';

const names = new URLSearchParams(location.search).getAll('run');
const axis = axisButtons(byId('axes'), draw);
const charts = new Map();
const runs = new Map();

document.title = names.join(', ') + ' · hearth';
byId('report').href = '/report?' + runsQuery(names);

function draw() {
  for (const [tag, options] of [['train/loss', {title: 'Training loss, smoothed', cut: true, unit: 'plain'}],
    ['val/loss', {title: 'Validation loss', unit: 'plain'}],
    ['speed/tok_s', {title: 'Tokens a second, smoothed', unit: 'count', fromZero: true}],
    ['speed/mfu', {title: 'MFU, smoothed', unit: 'percent', fromZero: true}],
    ['train/lr', {title: 'Learning rate', unit: 'plain', fromZero: true}],
    ['train/grad_norm', {title: 'Gradient norm, smoothed', unit: 'plain', logarithmic: true}],
    ['memory/bytes', {title: 'Memory in use', unit: 'bytes', fromZero: true}]]) {
    if (!charts.has(tag)) charts.set(tag, new LineChart(byId('curves'), options));
    charts.get(tag).draw(names.filter(name => runs.get(name)?.has(tag)).map(name => {
      const one = runs.get(name).get(tag);
      return {name, colour: names.indexOf(name) % CHART.colours, style: one.eval ? 'dots' : 'line', x: one[axis()],
        y: options.title.endsWith('smoothed') ? smoothed(one.y) : one.y};
    }), axis());
  }
}

let lastTables = '';

async function readTables() {
  const answer = await ask('/api/compare?' + runsQuery(names)), text = JSON.stringify(answer);
  if (text === lastTables) return;
  lastTables = text;
  byId('ladder').innerHTML = answer.ladder; // the server escapes what is in the files of runs
  byId('tables').innerHTML = answer.tables;
}

// Streams of events would be one connection for each run, of which a browser has six: curves are asked for instead.
repeat(4, async () => {
  try {
    if (names.length < 2) throw new Error('Choose two runs or more from the list of runs.');
    await readTables();
    for (const name of names) {
      const {series} = await ask('/api/series?' + runsQuery([name]));
      runs.set(name, new Map(series.map(one => [one.tag, one])));
    }
    draw();
    problem(null);
  } catch (error) {
    problem(error.message);
  }
});
