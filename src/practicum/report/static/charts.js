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
  const pending = series.pending;
  if (!pending[0]) return series.points;
  return [...series.points, [pending[1], pending[2] / pending[0], pending[3] / pending[0], pending[4] / pending[0]]];
}

// lines: [{label, colour, series, events}], options: {share: y from 0 to 1, stacked}
class Chart {
  constructor(title, name, options) {
    this.options = options || {};
    this.lines = [];
    this.picture = svg('svg', {role: 'img', 'aria-label': title});
    this.keys = el('div', {class: 'keys'});
    this.node = el('div', {class: 'chart card', 'data-metric': name}, el('h3', {}, title, name && name !== title ? el('code', {}, name) : null), this.picture, this.keys);
    this.picture.addEventListener('pointermove', (event) => this.point(event));
    this.picture.addEventListener('pointerleave', () => { hideTip(); if (this.cross) this.cross.remove(); });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.picture);
  }

  set(lines) {
    this.lines = lines;
    this.keys.replaceChildren(...(this.options.keys ? lines.map((line) => el('span', {}, el('span', {class: 'dot ' + line.colour + (line.style || '')}), line.label)) : []));
    this.draw();
  }

  draw() {
    const width = this.picture.clientWidth, height = this.picture.clientHeight;
    if (!width || !height) return;
    const drawn = this.lines.map((line) => ({...line, points: pointsOf(line.series)})).filter((line) => line.points.length);
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
      for (const point of line.points) { y0 = Math.min(y0, Math.max(point[2], low - room)); y1 = Math.max(y1, Math.min(point[3], high + room)); }
    }
    if (this.options.share) { y0 = 0; y1 = Math.max(1, Math.min(y1, 1)); } else {
      if (y0 > 0 && y0 < 0.5 * y1) y0 = 0;
      const room = (y1 - y0) || Math.abs(y1) || 1;
      if (y1 === y0) { y0 -= room / 2; y1 += room / 2; } else { if (y0 !== 0) y0 -= 0.04 * room; y1 += 0.04 * room; }
    }
    if (x1 === x0) { x0 -= 0.5; x1 += 0.5; }
    const X = (step) => MARGIN.left + (step - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right);
    const Y = (value) => MARGIN.top + (y1 - Math.max(y0, Math.min(y1, value))) / (y1 - y0) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = {X, Y, x0, x1, height, width};
    const parts = [];
    for (const at of ticks(y0, y1, 4)) {
      parts.push(svg('line', {class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: Y(at), y2: Y(at)}));
      parts.push(svg('text', {x: MARGIN.left - 6, y: Y(at) + 3.5, 'text-anchor': 'end'}, this.options.share ? Math.round(100 * at) + ' %' : figure(at)));
    }
    for (const at of ticks(x0, x1, Math.max(2, Math.floor(width / 62))).filter(Number.isInteger)) {
      parts.push(svg('text', {x: X(at), y: height - 6, 'text-anchor': 'middle'}, at.toLocaleString('en')));
    }
    const grid = parts.length;
    for (const line of drawn) {
      const around = line.points.some((point) => point[2] !== point[1] || point[3] !== point[1]);
      const there = line.points.map((point) => `${X(point[0]).toFixed(1)},${Y(point[3]).toFixed(1)}`);
      const back = line.points.map((point) => `${X(point[0]).toFixed(1)},${Y(point[2]).toFixed(1)}`).reverse();
      // Intervals lie beneath all lines, and the more there are the fainter each is.
      if (around || this.options.stacked) parts.splice(grid, 0, svg('path', {class: (this.options.stacked ? 'stack ' : drawn.length > 3 ? 'area faint-area ' : 'area ') + line.colour, d: `M${there.join('L')}L${back.join('L')}Z`}));
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
    const {X, x0, x1, height} = this.scale;
    const box = this.picture.getBoundingClientRect();
    const step = x0 + (event.clientX - box.left - MARGIN.left) / (X(x1) - X(x0)) * (x1 - x0);
    const texts = [];
    let nearest = null;
    for (const line of this.drawn) {
      const point = near(line.points, step);
      if (nearest === null || Math.abs(point[0] - step) < Math.abs(nearest - step)) nearest = point[0];
      const value = line.shareOf ? line.shareOf(point) : point[1];
      const range = !this.options.stacked && point[2] !== point[3] ? ` [${figure(point[2])}, ${figure(point[3])}]` : '';
      const over = line.series.stride > 1 ? `, mean of ${line.series.stride} steps` : '';
      texts.push(`${line.label}: ${figure(value)}${range}${point[0] !== nearest || over ? ` (step ${point[0]}${over})` : ''}`);
    }
    if (this.cross) this.cross.remove();
    this.cross = svg('line', {class: 'cross', x1: X(nearest), x2: X(nearest), y1: MARGIN.top, y2: height - MARGIN.bottom});
    this.picture.append(this.cross);
    showTip(`step ${nearest}\n${texts.join('\n')}`, event.clientX, event.clientY);
  }
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
