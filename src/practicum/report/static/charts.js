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

// How all charts are drawn: smoothing (0: none), a logarithmic axis where all values are positive, and lines that are hidden.
const drawing = {smooth: 0, log: false, hidden: new Set()};

// An exponential moving average without the bias of its start.
function smoothed(points, weight) {
  let sum = 0, total = 0;
  return points.map((point) => { sum = weight * sum + point[1]; total = weight * total + 1; return [point[0], sum / total, sum / total, sum / total]; });
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
    this.keys = el('div', {class: 'keys'});
    const save = (kind, act) => el('button', {type: 'button', class: 'save', title: `Save as ${kind}`, 'aria-label': `Save ${title} as ${kind}`, on: {click: act}}, kind);
    this.name = name || title;
    this.node = el('div', {class: 'chart card', 'data-metric': name}, el('h3', {}, title, name && name !== title ? el('code', {}, name) : null, el('span', {class: 'saves'}, save('SVG', () => this.saveSvg()), save('CSV', () => this.saveCsv()))), this.picture, this.keys);
    this.picture.addEventListener('pointermove', (event) => this.point(event));
    this.picture.addEventListener('pointerleave', () => { hideTip(); for (const chart of this.peers()) chart.uncross(); });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.picture);
  }

  set(lines) {
    this.lines = lines;
    this.keys.replaceChildren(...(this.options.keys ? lines.map((line) => el('button', {type: 'button', class: 'key', 'aria-pressed': String(!drawing.hidden.has(line.label)), title: 'Hide or show', on: {click: () => { if (!drawing.hidden.delete(line.label)) drawing.hidden.add(line.label); redrawAll(); }}},
      el('span', {class: 'dot ' + line.colour + (line.style || '')}), line.label)) : []));
    this.draw();
  }

  // All charts of its stage: their cursors go together.
  peers() { return [...charts.values()].flat().filter((chart) => chart === this || (this.options.stage && chart.options.stage === this.options.stage)); }
  uncross() { if (this.cross) this.cross.remove(); }
  crossAt(step) {
    this.uncross();
    if (!this.scale || !this.drawn || !this.drawn.length || step < this.scale.x0 || step > this.scale.x1) return;
    this.cross = svg('line', {class: 'cross', x1: this.scale.X(step), x2: this.scale.X(step), y1: MARGIN.top, y2: this.scale.height - MARGIN.bottom});
    this.picture.append(this.cross);
  }

  saveCsv() {
    const lines = this.lines.flatMap((line) => pointsOf(line.series).map((point) => [line.label, ...point]));
    saveFile(`${this.name.replaceAll('/', '-')}.csv`, 'text/csv', ['line,step,mean,low,high', ...lines.map((cells) => cells.map(csvCell).join(','))].join('\n') + '\n');
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
    const shown = this.lines.filter((line) => !drawing.hidden.has(line.label)).map((line) => ({...line, points: pointsOf(line.series)})).filter((line) => line.points.length);
    const smooth = drawing.smooth > 0 && !this.options.stacked;
    const log = drawing.log && !this.options.share && !this.options.stacked && shown.every((line) => line.points.every((point) => point[1] > 0));
    const T = log ? Math.log10 : (value) => value, back = log ? (value) => 10 ** value : (value) => value;
    const scaled = (point) => (log ? [point[0], T(point[1]), T(Math.max(point[2], point[1] / 10)), T(point[3])] : point);
    const drawn = shown.map((line) => ({...line, raw: line.points.map(scaled), points: (smooth ? smoothed(line.points, drawing.smooth) : line.points).map(scaled)}));
    this.drawn = drawn;
    this.picture.replaceChildren();
    if (!drawn.length) return;
    if (this.options.stacked) stack(drawn);
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of drawn) {
      x0 = Math.min(x0, line.points[0][0]); x1 = Math.max(x1, line.points[line.points.length - 1][0]);
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
    const X = (step) => MARGIN.left + (step - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right);
    const Y = (value) => MARGIN.top + (y1 - Math.max(y0, Math.min(y1, value))) / (y1 - y0) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = {X, Y, x0, x1, height, width, back};
    const parts = [];
    for (const at of log ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
      parts.push(svg('line', {class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: Y(at), y2: Y(at)}));
      parts.push(svg('text', {x: MARGIN.left - 6, y: Y(at) + 3.5, 'text-anchor': 'end'}, this.options.share ? Math.round(100 * at) + ' %' : figure(back(at))));
    }
    for (const at of ticks(x0, x1, Math.max(2, Math.floor(width / 62))).filter(Number.isInteger)) {
      parts.push(svg('text', {x: X(at), y: height - 6, 'text-anchor': 'middle'}, at.toLocaleString('en')));
    }
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
        const at = X(event.step), foot = height - MARGIN.bottom;
        if (event.step >= x0 && event.step <= x1) parts.push(svg('path', {class: 'mark-' + event.severity, d: `M${at - 4},${foot}h8l-4,-7z`}, svg('title', {}, `Step ${event.step}: ${event.sign}`)));
      }
    }
    parts.push(svg('line', {class: 'axis', x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom}));
    this.picture.append(...parts);
  }

  point(event) {
    if (!this.drawn || !this.drawn.length || !this.scale) return;
    const {X, x0, x1, back} = this.scale;
    const box = this.picture.getBoundingClientRect();
    const step = x0 + (event.clientX - box.left - MARGIN.left) / (X(x1) - X(x0)) * (x1 - x0);
    const texts = [];
    let nearest = null;
    for (const line of this.drawn) {
      const point = near(line.points, step);
      if (nearest === null || Math.abs(point[0] - step) < Math.abs(nearest - step)) nearest = point[0];
      const value = line.shareOf ? line.shareOf(point) : back(point[1]);
      const range = !this.options.stacked && point[2] !== point[3] ? ` [${figure(back(point[2]))}, ${figure(back(point[3]))}]` : '';
      const over = line.series.stride > 1 ? `, mean of ${line.series.stride} steps` : '';
      texts.push(`${line.label}: ${figure(value)}${range}${point[0] !== nearest || over ? ` (step ${point[0]}${over})` : ''}`);
    }
    for (const chart of this.peers()) chart.crossAt(nearest);
    showTip(`step ${nearest}\n${texts.join('\n')}`, event.clientX, event.clientY);
  }
}

function redrawAll() {
  for (const chart of [...charts.values()].flat()) if (chart.node.isConnected) chart.set(chart.lines);
}
function drawingControls() {
  const smooth = el('input', {type: 'range', min: '0', max: '0.95', step: '0.05', value: String(drawing.smooth), 'aria-label': 'Smoothing', id: 'smooth'});
  smooth.addEventListener('input', () => { drawing.smooth = Number(smooth.value); redrawAll(); });
  const log = el('input', {type: 'checkbox', checked: drawing.log, id: 'log-axis'});
  log.addEventListener('change', () => { drawing.log = log.checked; redrawAll(); });
  return el('span', {class: 'soft small drawing-controls'}, el('label', {}, 'smoothing ', smooth), el('label', {}, log, ' logarithmic'));
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
      return [point[0], under + point[1], under, under + point[1]];
    });
    line.shareOf = (point) => point[3] - point[2];
  }
}

// A difference with its interval against zero.
function forest(change) {
  const reach = Math.max(Math.abs(change.low ?? 0), Math.abs(change.high ?? 0), Math.abs(change.difference), 0.02) * 1.15;
  const X = (value) => 10 + (value + reach) / (2 * reach) * 480;
  const node = svg('svg', {class: 'forest', viewBox: '0 0 500 44', role: 'img', 'aria-label': 'difference with its interval'});
  const label = change.rate ? (value) => (value > 0 ? '+' : '') + (100 * value).toFixed(1) : (value) => signed(value);
  node.append(svg('line', {class: 'zero', x1: X(0), x2: X(0), y1: 4, y2: 28}), svg('text', {x: X(0), y: 40, 'text-anchor': 'middle'}, '0'));
  if (isNumber(change.low) && isNumber(change.high)) {
    node.append(svg('line', {class: 'range', x1: X(change.low), x2: X(change.high), y1: 16, y2: 16}));
    for (const [end, anchor] of [[change.low, 'end'], [change.high, 'start']]) {
      const at = Math.max(34, Math.min(466, X(end)));
      if (Math.abs(at - X(0)) > 30) node.append(svg('text', {x: at, y: 40, 'text-anchor': anchor}, label(end)));
    }
  }
  node.append(svg('circle', {cx: X(change.difference), cy: 16, r: 5}));
  return node;
}
