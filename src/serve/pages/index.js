// The list of runs.
'use strict';

const chosen = new Set();

function showChosen() {
  const names = [...chosen];
  byId('compare').disabled = names.length < 2;
  byId('report').hidden = !names.length;
  byId('report').href = '/report?' + runsQuery(names);
  byId('chosen').textContent = names.length ? names.join(', ') : 'choose two runs or more to compare them';
}

function dash(value, text) {
  return value === null || value === undefined ? '–' : text(value);
}

function runRow(run) {
  const box = make('input', {type: 'checkbox', 'aria-label': 'choose ' + run.name});
  box.checked = chosen.has(run.name);
  box.addEventListener('change', () => {
    box.checked ? chosen.add(run.name) : chosen.delete(run.name);
    showChosen();
  });
  const right = (text, wide) => make('td', {class: wide ? 'r wide' : 'r'}, text);
  return make('tr', {title: run.message},
    make('td', {}, box),
    make('td', {}, make('a', {href: '/run?' + runsQuery([run.name])}, run.name)),
    make('td', {}, make('span', {class: 'state ' + run.state}, run.state)),
    right(grouped(run.step), true), right(count(run.tokens), true),
    right(dash(run.loss, loss => loss.toFixed(4))), right(dash(run.val_loss, loss => loss.toFixed(4)), true),
    right(dash(run.tok_s, grouped)), right(dash(run.mfu, mfu => (100 * mfu).toFixed(1) + ' %'), true),
    right(duration(Math.max(0, Date.now() / 1000 - run.time)) + ' ago', true), right(bytes(run.size_bytes), true),
    right(run.alarms ? String(run.alarms) : '–', true));
}

byId('compare').addEventListener('click', () => { location.href = '/compare?' + runsQuery([...chosen]); });
showChosen();
repeat(3, async () => {
  try {
    const {folder, looked_for, runs} = await ask('/api/runs');
    const names = new Set(runs.map(run => run.name));
    for (const name of chosen) if (!names.has(name)) chosen.delete(name);
    byId('folder').textContent = runs.length ? 'of ' + folder + ', the newest first' : 'There are no runs in ' + folder + ' yet. Looked for are ' + looked_for + '. `hearth train CONFIG` makes one.';
    byId('runs').replaceChildren(...runs.map(runRow));
    showChosen();
    problem(null);
  } catch (error) {
    problem(error.message);
  }
});
