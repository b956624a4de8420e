// Line charts in the report's style (src/watch/chart.c draws the same in C): axes, lines, and the values under the mouse.
'use strict';

const CHART = {width: 560, height: 290, left: 66, right: 16, top: 10, bottom: 48, colours: 6};
const X_AXES = {
  tokens: {name: 'tokens', unit: 'count'},
  time: {name: 'wall clock', unit: 'time'},
  step: {name: 'steps', unit: 'count'},
};

function unitScale(most, unit) {
  if (unit === 'time') return most >= 3 * 86400 ? [86400, ' d'] : most >= 3 * 3600 ? [3600, ' h'] : most >= 180 ? [60, ' min'] : [1, ' s'];
  if (unit === 'bytes') return most >= GIB ? [GIB, ' GiB'] : [2 ** 20, ' MiB'];
  if (unit === 'percent') return [0.01, ' %'];
  if (unit === 'count') return most >= 1e12 ? [1e12, 'T'] : most >= 1e9 ? [1e9, 'B'] : most >= 1e6 ? [1e6, 'M'] : most >= 1e3 ? [1e3, 'K'] : [1, ''];
  return [1, ''];
}

function unitText(value, most, unit, digits) {
  const [per, name] = unitScale(most, unit);
  if (unit === 'plain' && Math.abs(most) < 1e-3 && value !== 0) return value.toExponential(1);
  return String(Number((value / per).toPrecision(digits || 4))) + (value === 0 ? '' : name);
}

function niceStep(range, parts) {
  const rough = range / parts, power = 10 ** Math.floor(Math.log10(rough)), share = rough / power;
  return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

function makeAxis(least, most, unit, logarithmic, tight) {
  const axis = {least, most, logarithmic: logarithmic && least > 0 && most > least, ticks: []};
  if (axis.logarithmic) {
    axis.least = least / 1.1;
    axis.most = most * 1.1;
    const each = Math.log10(axis.most / axis.least) > 3.5 ? [1] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(axis.least)); p <= Math.ceil(Math.log10(axis.most)); p++)
      for (const of of each) {
        const at = of * 10 ** p;
        if (at >= axis.least && at <= axis.most && axis.ticks.length < 12) axis.ticks.push(at);
      }
  } else {
    if (!(most > least)) {
      const about = least !== 0 ? 0.1 * Math.abs(least) : 1;
      axis.least = least - (least !== 0 ? about : 0);
      axis.most = most + about;
    } else if (!tight) {
      axis.most += 0.04 * (most - least);
      if (least !== 0) axis.least -= 0.04 * (most - least);
    }
    const per = unitScale(axis.most, unit)[0], step = per * niceStep((axis.most - axis.least) / per, 5);
    for (let i = Math.ceil(axis.least / step - 1e-9); i * step <= axis.most + 1e-9 * step && axis.ticks.length < 12; i++)
      axis.ticks.push(i * step);
  }
  const low = axis.logarithmic ? Math.log(axis.least) : axis.least, high = axis.logarithmic ? Math.log(axis.most) : axis.most;
  axis.share = value => Math.min(Math.max(((axis.logarithmic ? Math.log(value) : value) - low) / (high - low), -0.5), 1.5);
  return axis;
}

function svg(tag, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The mean of the points around each, of a fortieth of them on either side.
function smoothed(y) {
  const half = Math.max(1, Math.min(50, Math.floor(y.length / 40))), out = new Array(y.length);
  let sum = 0, from = 0, to = 0;
  for (let i = 0; i < y.length; i++) {
    while (to < Math.min(y.length, i + half + 1)) sum += y[to++];
    while (from < i - half) sum -= y[from++];
    out[i] = sum / (to - from);
  }
  return out;
}

// options: title, unit, fromZero, logarithmic, cut (the first steps of a loss do not press the rest flat).
// Lines of draw(): {name, colour, style: 'line' | 'faint' | 'dots', x: [], y: []}.
class LineChart {
  constructor(parent, options) {
    this.options = options;
    this.figure = make('figure', {class: 'live'});
    this.legend = make('span', {class: 'legend'});
    this.svg = svg('svg', {viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: 'img', 'aria-label': options.title});
    this.at = make('div', {class: 'at', hidden: true});
    this.figure.append(make('figcaption', {title: options.meaning}, make('b', {}, options.title), this.legend), this.svg, this.at);
    this.svg.addEventListener('pointermove', event => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.point(null));
    parent.append(this.figure);
  }

  draw(lines, xAxis) {
    const o = this.options;
    this.lines = lines;
    this.xAxis = xAxis;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity], top = -Infinity;
    for (const line of lines) {
      const late = Math.floor(line.y.length / 40);
      line.y.forEach((y, i) => {
        if (o.logarithmic && y <= 0) return;
        x0 = Math.min(x0, line.x[i]); x1 = Math.max(x1, line.x[i]);
        y0 = Math.min(y0, y); y1 = Math.max(y1, y);
        if (line.style !== 'faint' && i >= late) top = Math.max(top, y);
      });
    }
    this.figure.hidden = !(x0 <= x1);
    this.x = null;
    if (this.figure.hidden) return;
    let logarithmic = o.logarithmic;
    if (o.cut && top > y0) {
      logarithmic = y0 > 0 && top > 8 * y0;
      y1 = Math.min(y1, 1.05 * top);
    }
    if (o.fromZero && !logarithmic) y0 = Math.min(0, y0);
    this.x = makeAxis(x0, x1, X_AXES[xAxis].unit, false, true);
    this.y = makeAxis(y0, y1, o.unit, logarithmic, false);
    this.legend.replaceChildren(...(lines.length > 1 ? lines.map(line =>
      make('span', {}, make('i', {class: 'b' + line.colour + (line.style === 'faint' ? ' faint' : '')}), line.name)) : []));
    this.svg.replaceChildren(...this.axes(), ...lines.flatMap(line => this.line(line)));
  }

  px(value) {
    return CHART.left + this.x.share(value) * (CHART.width - CHART.left - CHART.right);
  }

  py(value) {
    return CHART.height - CHART.bottom - this.y.share(value) * (CHART.height - CHART.top - CHART.bottom);
  }

  axes() {
    const {left, right, bottom, width, height} = CHART, floor = height - bottom, parts = [];
    for (const tick of this.y.ticks) {
      const y = this.py(tick).toFixed(1);
      parts.push(svg('path', {class: 'grid', d: `M${left} ${y}H${width - right}`}),
        svg('text', {x: left - 7, y, dy: '.32em', class: 'end'}, unitText(tick, this.y.most, this.options.unit)));
    }
    for (const tick of this.x.ticks) {
      const x = this.px(tick).toFixed(1);
      parts.push(svg('path', {class: 'axis', d: `M${x} ${floor}v5`}),
        svg('text', {x, y: floor, dy: '1.25em', class: 'middle'}, unitText(tick, this.x.most, X_AXES[this.xAxis].unit)));
    }
    parts.push(svg('path', {class: 'axis', d: `M${left} ${floor}H${width - right}`}),
      svg('text', {x: (left + width - right) / 2, y: height - 6, class: 'middle name'}, X_AXES[this.xAxis].name));
    return parts;
  }

  line(line) {
    const shown = line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => !this.y.logarithmic || y > 0)
      .map(([x, y]) => [this.px(x), Math.max(this.py(y), CHART.top)]);
    const parts = [svg('polyline', {class: `line s${line.colour}${line.style === 'faint' ? ' faint' : ''}`,
      points: shown.map(([x, y]) => x.toFixed(1) + ',' + y.toFixed(1)).join(' ')})];
    if (line.style === 'dots' && shown.length <= 80)
      parts.push(...shown.map(([x, y]) => svg('circle', {class: 'c' + line.colour, cx: x.toFixed(1), cy: y.toFixed(1), r: 3})));
    return parts;
  }

  // The values of the points nearest to the mouse.
  point(event) {
    this.svg.querySelector('.cross')?.remove();
    this.at.hidden = true;
    if (!event || !this.x) return;
    const box = this.svg.getBoundingClientRect(), scale = CHART.width / box.width;
    const want = (event.clientX - box.left) * scale;
    let best = null;
    const nearest = this.lines.filter(line => line.x.length).map(line => {
      let k = 0;
      line.x.forEach((x, i) => { if (Math.abs(this.px(x) - want) < Math.abs(this.px(line.x[k]) - want)) k = i; });
      if (best === null || Math.abs(this.px(line.x[k]) - want) < Math.abs(this.px(best) - want)) best = line.x[k];
      return [line, line.y[k]];
    });
    if (best === null) return;
    const x = this.px(best);
    this.svg.append(svg('path', {class: 'cross', d: `M${x.toFixed(1)} ${CHART.top}V${CHART.height - CHART.bottom}`}));
    this.at.replaceChildren(make('div', {class: 'soft'}, unitText(best, this.x.most, X_AXES[this.xAxis].unit) + ' ' + X_AXES[this.xAxis].name),
      ...nearest.map(([line, y]) => make('div', {}, make('i', {class: 'b' + line.colour}), line.name + ' ', make('b', {}, unitText(y, this.y.most, this.options.unit, 5)))));
    this.at.hidden = false;
    const left = x / scale + (box.left - this.figure.getBoundingClientRect().left);
    const right = left + 14 + this.at.offsetWidth > this.figure.clientWidth;
    this.at.style.left = (right ? Math.max(4, left - 14 - this.at.offsetWidth) : left + 14) + 'px';
    this.at.style.top = (box.top - this.figure.getBoundingClientRect().top + 14) + 'px';
  }
}

// Buttons that choose what curves are drawn over; the choice is remembered by the address.
function axisButtons(parent, changed) {
  const address = new URL(location.href);
  let axis = address.searchParams.get('over') in X_AXES ? address.searchParams.get('over') : 'tokens';
  for (const name of Object.keys(X_AXES)) {
    const button = make('button', {type: 'button', 'aria-pressed': String(name === axis)}, X_AXES[name].name);
    button.addEventListener('click', () => {
      axis = name;
      for (const other of parent.children) other.setAttribute('aria-pressed', String(other === button));
      address.searchParams.set('over', name);
      history.replaceState(null, '', address);
      changed();
    });
    parent.append(button);
  }
  return () => axis;
}

// The curves that everybody looks for, in the order of a report; all others follow as the table of metrics has them.
const CURVES = {
  loss: {title: 'Loss', cut: true, smooth: true},
  lr: {title: 'Learning rate', fromZero: true},
  grad_norm: {title: 'Gradient norm', logarithmic: true, smooth: true},
  tok_s: {title: 'Tokens a second', unit: 'count', fromZero: true, smooth: true},
  mfu: {title: 'MFU', fromZero: true, smooth: true},
  memory_bytes: {title: 'Memory in use', fromZero: true},
  gpu_power: {title: 'Power of the GPU, W', fromZero: true},
  gpu_clock: {title: 'Clock of the GPU, MHz'},
};

function curveOptions(series) {
  const unit = {percent: 'percent', bytes: 'bytes', duration: 'time', count: 'count', grouped: 'count'}[series.scale] || 'plain';
  const [group, name] = series.tag.split('/');
  const plain = {title: (name || group).replaceAll('_', ' ') + (unit === 'plain' && series.unit ? ', ' + series.unit : ''), fromZero: unit !== 'plain'};
  return {unit, meaning: series.meaning, ...(CURVES[series.key] && !series.eval ? CURVES[series.key] : plain)};
}
