// Curves as inline SVG. At most 600 points a line, so drawing costs the same however long a run is.
const MARGIN = {left: 46, right: 10, top: 8, bottom: 22};

function ticks(low, high, count) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough) || rough;
  const found = [];
  // Counted, not compared only: beyond 2^53 a number plus a small step is the same number.
  const first = Math.ceil(low / step);
  for (let place = 0; place < 4 * count; place += 1) {
    const at = (first + place) * step;
    if (!(at <= high + step * 1e-6)) break;
    found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  }
  return found;
}

function pointsOf(series) {
  return series.pending[0] ? [...series.points, pendingPoint(series)] : series.points;
}

// How all charts are drawn: smoothing (0: none), a logarithmic axis where all values are positive, what they are drawn over, the part
// of it that is shown (by stage: 'rl 10 50, sft 1 5'), and lines that are hidden. All but the last are texts: they are in the address.
const drawing = {smooth: '0', log: '', x: '', zoom: ''};
const hiddenLines = new Set();

function zoomOf(stage) {
  const found = drawing.zoom.split(',').map((one) => one.trim().split(' ')).find((one) => one[0] === stage);
  const range = found ? [Number(found[1]), Number(found[2])] : null;
  return range && range.every(isNumber) && range[0] < range[1] ? range : null;
}
function setZoom(stage, range) {
  const others = drawing.zoom.split(',').map((one) => one.trim()).filter((one) => one && one.split(' ')[0] !== stage);
  drawing.zoom = [...others, ...(range ? [[stage, ...range.map((value) => String(Number(value.toPrecision(6))))].join(' ')] : [])].join(',');
  remember();
  redrawAll();
}

// What curves can be drawn over. Totals of tokens and seconds at a step lie between those that the run wrote.
const OVER = {
  step: {title: 'step', text: (value) => (Number.isInteger(value) ? value.toLocaleString('en') : figure(value)), ticks: (low, high, count) => ticks(low, high, count).filter(Number.isInteger)},
  tokens: {title: 'tokens trained on', text: (value) => amount(value), ticks},
  seconds: {title: 'time', text: (value) => hours(value), ticks: timeTicks},
};
OVER.share = {title: 'share of the run', text: (value) => `${figure(100 * value)} %`, ticks};
// Steps, unless runs of one stage differ in length so much that the longest would squash the others; then the share of each run.
const MAX_LENGTH_RATIO = 3;
let autoAxis = 'step';
function lengthsDiffer(lines) {
  return STAGES.some(([stage]) => {
    const lengths = lines.filter((line) => line.stage === stage && line.curve.step > 0).map((line) => line.curve.step);
    return lengths.length > 1 && Math.max(...lengths) > MAX_LENGTH_RATIO * Math.min(...lengths);
  });
}
const axisNow = () => drawing.x || autoAxis;
const axisNote = () => (axisNow() === 'share' ? ' Runs differ in length: each curve is drawn over the share of its own run.' : '');

function totalAt(points, step) {
  if (!points || !points.length) return null;
  let low = -1, high = points.length;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] <= step) low = middle; else high = middle; }
  const [a, b] = [low < 0 ? [0, 0] : points[low], points[high]];
  return !b ? a[1] : a[1] + (b[1] - a[1]) * (step - a[0]) / ((b[0] - a[0]) || 1);
}
// A step as a place on the axis; null where the run has not written the quantity.
function placeOf(line, step) {
  if (axisNow() === 'step') return step;
  if (axisNow() === 'share') return line.curve ? step / line.curve.step : step;
  return totalAt(line.curve && line.curve.axes ? line.curve.axes[axisNow()] : null, step);
}
function amount(value) {
  for (const [size, unit] of [[1e9, ' G'], [1e6, ' M'], [1e3, ' k']]) if (Math.abs(value) >= size) return String(Number((value / size).toPrecision(3))) + unit;
  return String(Math.round(value));
}
function hours(seconds) {
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, '0');
  return whole >= 3600 ? `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}` : `${Math.floor(whole / 60)}:${two(whole % 60)}`;
}
function timeTicks(low, high, count) {
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find((size) => size >= (high - low) / count) || (high - low) / count;
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= high && found.length < 40; place += 1) found.push(place * step);
  return found;
}

// An exponential moving average without the bias of its start.
function smoothed(points, weight) {
  let sum = 0, total = 0;
  return points.map((point) => { sum = weight * sum + point[1]; total = weight * total + 1; return [point[0], sum / total, sum / total, sum / total, point[4]]; });
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) for (const factor of high - low < 2.5 ? [1, 2, 5] : [1]) {
    const at = power + Math.log10(factor);
    if (at >= low && at <= high) found.push(at);
  }
  return found.length > 8 ? found.filter((at, place) => place % Math.ceil(found.length / 8) === 0) : found;
}

// lines: [{label, colour, series, events}], options: {share: y from 0 to 1, stacked}
class Chart {
  constructor(title, name, options) {
    this.options = options || {};
    this.lines = [];
    this.picture = svg('svg', {role: 'img', 'aria-label': title});
    this.clip = 'clip-' + (Chart.made = (Chart.made || 0) + 1);
    this.keys = el('div', {class: 'keys'});
    this.ends = el('p', {class: 'ends soft small', hidden: true});
    const save = (kind, act) => el('button', {type: 'button', class: 'save', title: `Save as ${kind}`, 'aria-label': `Save ${title} as ${kind}`, on: {click: act}}, kind);
    this.name = name || title;
    this.node = el('div', {class: 'chart card', 'data-metric': name}, el('h3', {}, title, name && name !== title ? el('code', {}, name) : null, el('span', {class: 'saves'}, save('SVG', () => this.saveSvg()), save('CSV', () => this.saveCsv()))), this.picture, this.keys, this.ends);
    this.picture.addEventListener('pointermove', (event) => this.point(event));
    this.picture.addEventListener('pointerleave', () => { this.drag = null; hideTip(); for (const chart of this.peers()) chart.uncross(); });
    this.picture.addEventListener('pointerdown', (event) => { if (this.scale && this.options.stage && event.button === 0) this.drag = {from: this.xAt(event), at: event.clientX}; });
    this.picture.addEventListener('pointerup', (event) => this.dragged(event));
    this.picture.addEventListener('dblclick', () => { if (this.options.stage) setZoom(this.options.stage, null); });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.picture);
  }

  set(lines) {
    this.lines = lines;
    this.keys.replaceChildren(...(this.options.keys ? lines.map((line) => el('button', {type: 'button', class: 'key', 'aria-pressed': String(!hiddenLines.has(line.label)), title: 'Hide or show', on: {click: () => { if (!hiddenLines.delete(line.label)) hiddenLines.add(line.label); redrawAll(); }}},
      el('span', {class: 'dot ' + line.colour + (line.style || '')}), line.label)) : []));
    const ends = lines.map((line) => [line, endOf(line)]).filter(([, text]) => text);
    this.ends.textContent = ends.map(([line, text]) => `${lines.length > 1 ? line.label + ' ' : 'The curve '}${text}.`).join(' ');
    this.ends.hidden = !ends.length;
    this.draw();
  }

  // All charts of its stage: their cursors go together.
  peers() { return [...charts.values()].flat().filter((chart) => chart === this || (this.options.stage && chart.options.stage === this.options.stage)); }
  uncross() { for (const node of [this.cross, this.chosen]) if (node) node.remove(); }
  crossAt(place, from) {
    this.uncross();
    if (!this.scale || !this.drawn || !this.drawn.length || place < this.scale.x0 || place > this.scale.x1) return;
    const at = this.scale.X(place), high = this.scale.height - MARGIN.bottom - MARGIN.top;
    this.cross = svg('line', {class: 'cross', x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + high});
    this.picture.append(this.cross);
    if (from === undefined) return;
    const other = this.scale.X(Math.max(this.scale.x0, Math.min(this.scale.x1, from)));
    this.chosen = svg('rect', {class: 'chosen', x: Math.min(at, other), y: MARGIN.top, width: Math.abs(at - other), height: high});
    this.picture.append(this.chosen);
  }

  // The place on the axis under the pointer.
  xAt(event) {
    const {X, x0, x1} = this.scale, box = this.picture.getBoundingClientRect();
    return Math.max(x0, Math.min(x1, x0 + (event.clientX - box.left - MARGIN.left) / (X(x1) - X(x0)) * (x1 - x0)));
  }
  // A part that was drawn over with the pointer is shown alone, in all charts of the stage.
  dragged(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag || !this.scale || Math.abs(event.clientX - drag.at) < 8) return;
    setZoom(this.options.stage, [drag.from, this.xAt(event)].sort((a, b) => a - b));
  }

  saveCsv() {
    const totals = (line, step) => ['tokens', 'seconds'].map((name) => totalAt(line.curve && line.curve.axes ? line.curve.axes[name] : null, step));
    const lines = this.lines.flatMap((line) => pointsOf(line.series).map((point) => [line.label, ...point, ...totals(line, point[0])]));
    saveFile(`${this.name.replaceAll('/', '-')}.csv`, 'text/csv', ['line,step,mean,low,high,tokens,seconds', ...lines.map((cells) => cells.map(csvCell).join(','))].join('\n') + '\n');
  }

  // The style sheet stays behind, so each element takes its style along.
  saveSvg() {
    const copy = this.picture.cloneNode(true), own = [...this.picture.querySelectorAll('*')], copies = [...copy.querySelectorAll('*')];
    own.forEach((node, place) => { const style = getComputedStyle(node); for (const name of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-size', 'font-family']) copies[place].setAttribute(name, style.getPropertyValue(name)); });
    copy.setAttribute('xmlns', SVG);
    copy.setAttribute('viewBox', `0 0 ${this.picture.clientWidth} ${this.picture.clientHeight}`);
    saveFile(`${this.name.replaceAll('/', '-')}.svg`, 'image/svg+xml', new XMLSerializer().serializeToString(copy));
  }

  draw() {
    const width = this.picture.clientWidth, height = this.picture.clientHeight;
    if (!width || !height) return;
    const zoom = this.options.stage ? zoomOf(this.options.stage) : null, over = OVER[axisNow()];
    // A point is its place on the axis, mean, low, high and step; outside the part that is shown one on each side is kept.
    const placed = (line) => pointsOf(line.series).map(([step, ...values]) => [placeOf(line, step), ...values, step]).filter((point) => point[0] !== null);
    const inside = (points) => points.filter((point, place) => !zoom || (point[0] >= zoom[0] && point[0] <= zoom[1]) || (points[place + 1] && points[place + 1][0] >= zoom[0] && point[0] < zoom[0]) || (points[place - 1] && points[place - 1][0] <= zoom[1] && point[0] > zoom[1]));
    const shown = this.lines.filter((line) => !hiddenLines.has(line.label)).map((line) => ({...line, points: placed(line)})).filter((line) => line.points.length);
    const weight = Number(drawing.smooth) || 0, smooth = weight > 0 && !this.options.stacked;
    const log = drawing.log && !this.options.share && !this.options.stacked && shown.every((line) => line.points.every((point) => point[1] > 0));
    const T = log ? Math.log10 : (value) => value, back = log ? (value) => 10 ** value : (value) => value;
    const scaled = (point) => (log ? [point[0], T(point[1]), T(Math.max(point[2], point[1] / 10)), T(point[3]), point[4]] : point);
    const drawn = shown.map((line) => ({...line, raw: inside(line.points.map(scaled)), points: inside((smooth ? smoothed(line.points, weight) : line.points).map(scaled))})).filter((line) => line.points.length);
    this.drawn = drawn;
    this.picture.replaceChildren();
    if (!drawn.length) return;
    if (this.options.stacked) stack(drawn);
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of drawn) {
      // As far as the run: where a curve ends before it, the picture shows that.
      const end = line.curve ? placeOf(line, line.curve.step) : null;
      x0 = Math.min(x0, line.points[0][0]); x1 = Math.max(x1, line.points[line.points.length - 1][0], end ?? -Infinity);
      const means = line.points.map((point) => point[1]);
      const low = Math.min(...means), high = Math.max(...means), room = (high - low) || Math.abs(high) || 1;
      // A wide interval may not squeeze the curve itself flat.
      for (const point of smooth ? [...line.points, ...line.raw] : line.points) { y0 = Math.min(y0, Math.max(point[2], low - room)); y1 = Math.max(y1, Math.min(point[3], high + room)); }
    }
    // Rounding noise may not fill the picture: below a millionth of the values, or the metric's own floor, it is a flat line.
    const size = Math.max(Math.abs(y0), Math.abs(y1)), floor = this.options.floor || 0;
    if (!this.options.share && y1 - y0 <= Math.max(log ? 0 : floor, 1e-6 * size)) {
      const span = Math.max(floor, 0.1 * size) || 1, middle = y0 / 2 + y1 / 2;
      y0 = y0 >= 0 && middle < span / 2 ? 0 : middle - span / 2;
      y1 = y0 + span;
    }
    if (this.options.share) { y0 = 0; y1 = Math.max(1, Math.min(y1, 1)); } else {
      if (!log && y0 > 0 && y0 < 0.5 * y1) y0 = 0;
      const room = y1 - y0;
      if (y0 !== 0 || log) y0 -= 0.04 * room;
      y1 += 0.04 * room;
    }
    if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
    if (zoom) [x0, x1] = zoom;
    const X = (step) => MARGIN.left + (step - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right);
    const Y = (value) => MARGIN.top + (y1 - Math.max(y0, Math.min(y1, value))) / (y1 - y0) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = {X, Y, x0, x1, height, width, back};
    const parts = [];
    for (const at of log ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
      parts.push(svg('line', {class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: Y(at), y2: Y(at)}));
      parts.push(svg('text', {x: MARGIN.left - 6, y: Y(at) + 3.5, 'text-anchor': 'end'}, this.options.share ? Math.round(100 * at) + ' %' : figure(back(at))));
    }
    for (const at of over.ticks(x0, x1, Math.max(2, Math.floor(width / 62)))) {
      parts.push(svg('text', {x: X(at), y: height - 6, 'text-anchor': X(at) > width - MARGIN.right - 12 ? 'end' : 'middle'}, over.text(at)));
    }
    parts.push(svg('clipPath', {id: this.clip}, svg('rect', {x: MARGIN.left - 3, y: 0, width: Math.max(0, width - MARGIN.left - MARGIN.right + 6), height})));
    const grid = parts.length;
    for (const line of drawn) {
      const around = !smooth && line.points.some((point) => point[2] !== point[1] || point[3] !== point[1]);
      if (smooth) parts.splice(grid, 0, svg('path', {class: 'line raw ' + line.colour, d: 'M' + line.raw.map((point) => `${X(point[0]).toFixed(1)},${Y(point[1]).toFixed(1)}`).join('L')}));
      const there = line.points.map((point) => `${X(point[0]).toFixed(1)},${Y(point[3]).toFixed(1)}`);
      const under = line.points.map((point) => `${X(point[0]).toFixed(1)},${Y(point[2]).toFixed(1)}`).reverse();
      // Intervals lie beneath all lines, and the more there are the fainter each is.
      if (around || this.options.stacked) parts.splice(grid, 0, svg('path', {class: (this.options.stacked ? 'stack ' : drawn.length > 3 ? 'area faint-area ' : 'area ') + line.colour, d: `M${there.join('L')}L${under.join('L')}Z`}));
      if (this.options.stacked) continue;
      parts.push(svg('path', {class: 'line ' + line.colour + (line.style || ''), d: 'M' + line.points.map((point) => `${X(point[0]).toFixed(1)},${Y(point[1]).toFixed(1)}`).join('L')}));
      if (line.points.length < 30) for (const point of line.points) parts.push(svg('circle', {class: 'point ' + line.colour, cx: X(point[0]), cy: Y(point[1]), r: 2.2}));
      for (const event of (line.events || []).slice(-60)) {
        const place = placeOf(line, event.step), at = X(place), foot = height - MARGIN.bottom;
        if (place !== null && place >= x0 && place <= x1) parts.push(svg('path', {class: `mark-${event.severity} ${line.colour}`, d: `M${at - 4},${foot}h8l-4,-7z`}, svg('title', {}, `${line.label}, step ${event.step}: ${event.sign}`)));
      }
    }
    const curves = parts.splice(grid);
    parts.push(zoom ? svg('g', {'clip-path': `url(#${this.clip})`}, curves) : curves, svg('line', {class: 'axis', x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom}));
    this.picture.append(...parts.flat());
  }

  point(event) {
    if (!this.drawn || !this.drawn.length || !this.scale) return;
    const {back} = this.scale, place = this.xAt(event);
    const texts = [];
    const nearest = this.drawn.map((line) => near(line.points, place)).reduce((a, b) => (Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a));
    for (const line of this.drawn) {
      const point = near(line.points, place);
      const value = line.shareOf ? line.shareOf(point) : back(point[1]);
      const range = !this.options.stacked && point[2] !== point[3] ? ` [${figure(back(point[2]))}, ${figure(back(point[3]))}]` : '';
      const over = line.series.stride > 1 ? `, mean of ${line.series.stride} steps` : '';
      texts.push(`${line.label}: ${figure(value)}${range}${point[4] !== nearest[4] || over ? ` (step ${point[4]}${over})` : ''}`);
    }
    for (const chart of this.peers()) chart.crossAt(nearest[0], this.drag ? this.drag.from : undefined);
    const also = axisNow() === 'step' ? '' : `, ${OVER[axisNow()].title} ${OVER[axisNow()].text(nearest[0])}`;
    showTip(`step ${nearest[4]}${also}\n${texts.join('\n')}`, event.clientX, event.clientY);
  }
}

function redrawAll() {
  for (const chart of [...charts.values()].flat()) if (chart.node.isConnected) chart.set(chart.lines);
  for (const box of document.querySelectorAll('.zoom')) fillZoom(box);
}
function drawingControls(lines) {
  const smooth = el('input', {type: 'range', min: '0', max: '0.95', step: '0.05', value: drawing.smooth, 'aria-label': 'Smoothing', id: 'smooth'});
  smooth.addEventListener('input', () => { drawing.smooth = smooth.value; remember(); redrawAll(); });
  const log = el('input', {type: 'checkbox', checked: drawing.log !== '', id: 'log-axis'});
  log.addEventListener('change', () => { drawing.log = log.checked ? 'yes' : ''; remember(); redrawAll(); });
  const axes = Object.keys(OVER).filter((name) => name === 'step' || (name === 'share' && lines.length > 1) || lines.some((line) => line.curve.axes && line.curve.axes[name]));
  if (!axes.includes(drawing.x)) drawing.x = '';
  const over = el('select', {id: 'x-axis', 'aria-label': 'What curves are drawn over'}, axes.map((name) => el('option', {value: name}, OVER[name].title)));
  over.value = axisNow();
  over.addEventListener('change', () => { drawing.x = over.value; drawing.zoom = ''; remember(); redrawAll(); document.getElementById('axis-note').textContent = axisNote(); });
  return el('span', {class: 'soft small drawing-controls'}, axes.length > 1 ? el('label', {}, 'over ', over) : null, el('label', {}, 'smoothing ', smooth), el('label', {}, log, ' logarithmic'));
}

// The part of the axis that is shown, as two fields: what a drag with the pointer does, for the keyboard.
function zoomFields(stage) {
  const field = (name) => el('input', {type: 'number', step: 'any', 'data-zoom': name, 'aria-label': `${STAGES.find(([one]) => one === stage)[1]}: shown ${name}`});
  const box = el('span', {class: 'soft small zoom', 'data-zoom-stage': stage}, 'from ', field('from'), ' to ', field('to'), ' ', el('button', {type: 'button', class: 'small-button', on: {click: () => setZoom(stage, null)}}, 'all'));
  box.addEventListener('change', () => {
    const [from, to] = ['from', 'to'].map((name) => box.querySelector(`[data-zoom=${name}]`).value);
    if (!from && !to) { setZoom(stage, null); return; }
    const whole = [...charts.values()].flat().filter((chart) => chart.options.stage === stage && chart.scale).map((chart) => chart.scale);
    const range = [from ? Number(from) : Math.min(...whole.map((one) => one.x0)), to ? Number(to) : Math.max(...whole.map((one) => one.x1))];
    if (range[0] < range[1]) setZoom(stage, range);
  });
  fillZoom(box);
  return box;
}
function fillZoom(box) {
  const range = zoomOf(box.dataset.zoomStage);
  ['from', 'to'].forEach((name, place) => { const field = box.querySelector(`[data-zoom=${name}]`); if (field !== document.activeElement || !range) field.value = range ? String(range[place]) : ''; });
  box.querySelector('button').hidden = !range;
}

function near(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] < step) low = middle; else high = middle; }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
}

// Parts on top of each other: low and high of each are its lower and upper edge.
function stack(lines) {
  const base = new Map();
  for (const line of lines) {
    line.points = line.points.map((point) => {
      const under = base.get(point[0]) || 0;
      base.set(point[0], under + point[1]);
      return [point[0], under + point[1], under, under + point[1], point[4]];
    });
    line.shareOf = (point) => point[3] - point[2];
  }
}
