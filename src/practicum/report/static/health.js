// Health: the bad signs of the trainings, the gravest first; each leads to the curve that shows it.
const SEVERITIES = ['act', 'warn'];

function healthSection() {
  const lines = linesOf();
  if (!lines.length) return null;
  return el('section', {'aria-label': 'Health', id: 'health'}, el('div', {class: 'section-head'}, el('h2', {}, 'Health'),
    el('span', {class: 'soft small', id: 'health-source'}, `Known bad signs, ${healthSource(lines)}. A row shows its curve at that step; on the curves triangles mark them in the colour of the run, filled for act, hollow for warn.`)),
    el('div', {class: 'card', id: 'events'}, eventList(lines)));
}
// Where the events are from: the run's own notes, or another look at its metrics.
function healthSource(lines) {
  const practice = lines.filter((line) => line.curve.stored || line.curve.series['reward/mean']);
  const again = practice.filter((line) => !line.curve.stored).map((line) => line.label);
  if (!again.length) return 'as the run noted them while it went';
  const judged = 'judged again from the metrics with the run’s own limits';
  return again.length === practice.length ? `${judged} (no health.jsonl is kept here)` : `as the runs noted them while they went; of ${again.join(', ')} ${judged} (no health.jsonl there)`;
}

// A sign that was reported again is one entry: its newest words, since when, and at which steps it was reported.
function signsOf(lines) {
  const signs = new Map();
  for (const line of lines) for (const event of line.curve.events) {
    const name = [line.label, event.sign, event.severity].join('\u0000'), since = event.since ?? event.step;
    const one = signs.get(name) || {since, steps: []};
    signs.set(name, {...event, line, since: Math.min(one.since, since), steps: [...one.steps, event.step]});
  }
  const grave = (one) => SEVERITIES.indexOf(one.severity);
  return [...signs.values()].sort((a, b) => grave(a) - grave(b) || a.since - b.since);
}
function whenText({since, steps}) { return since < steps[0] ? `since step ${since}` : `step ${steps[0]}`; }
function reportedText({since, steps}) {
  if (steps.length === 1) return since < steps[0] ? `reported at step ${steps[0]}` : '';
  if (steps.length <= 4) return `reported at steps ${steps.slice(0, -1).join(', ')} and ${steps[steps.length - 1]}`;
  return `reported at ${steps.length} steps from ${steps[0]} to ${steps[steps.length - 1]}`;
}
function eventList(lines) {
  const signs = signsOf(lines);
  if (!signs.length) return el('p', {class: 'note'}, 'No bad sign was seen.');
  return el('ul', {class: 'events', tabindex: '0'}, signs.slice(0, 200).map((sign) => el('li', {}, el('button', {type: 'button', class: 'event', 'data-sign': sign.sign, title: 'Show it on its curve', on: {click: () => showSign(sign)}},
    el('span', {class: 'step'}, el('span', {class: 'dot ' + sign.line.colour}), whenText(sign)), badge(`${sign.severity}: ${sign.sign}`, sign.severity),
    el('span', {}, sign.text, el('span', {class: 'faint'}, [reportedText(sign), lines.length > 1 ? sign.line.label : ''].filter(Boolean).map((text) => ` · ${text}`)))))));
}

// The part of the curves around a sign, the chart of its metric on the screen, and a line at the step where it began.
function showSign(sign) {
  const {line} = sign, stage = line.stage, wanted = [...(sign.metrics || []), 'success/mean', 'reward/mean', 'actor/loss'];
  const name = wanted.find((one) => line.curve.series[one]);
  const around = Math.max(3, Math.round(0.15 * line.curve.step));
  const places = [sign.since - around, sign.since, sign.steps[sign.steps.length - 1] + around].map((step) => placeOf(line, Math.max(0, Math.min(line.curve.step, step))));
  if (places.every(isNumber) && places[0] < places[2]) setZoom(stage, [places[0], places[2]]);
  const chart = name ? chartOf(name, stage) : null;
  const node = chart ? chart.node : document.querySelector(`[data-stage=${stage}]`);
  if (!node) return;
  node.scrollIntoView({block: 'center', behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'});
  for (const old of document.querySelectorAll('.chart.shown')) old.classList.remove('shown');
  node.classList.add('shown');
  if (chart && isNumber(places[1])) for (const peer of chart.peers()) peer.crossAt(places[1]);
}
// The chart of a metric; one of those that are folded away is made first.
function chartOf(name, stage) {
  const made = () => (charts.get(name) || []).find((chart) => chart.options.stage === stage && chart.node.isConnected);
  if (!made()) {
    const box = document.querySelector(`[data-stage=${stage}] details`);
    if (box) { box.open = true; fillMore(box, name); }
  }
  return made();
}

// Why a curve ends before its run: an expert asks, and the page knows.
function endOf(line) {
  const points = line.curve ? pointsOf(line.series) : [];
  if (!points.length || (points.length === 1 && !line.series.independent)) return ''; // one validation does not say how often there is one
  const last = points[points.length - 1][0], gaps = points.slice(1).map((point, place) => point[0] - points[place][0]);
  if (line.curve.step - last <= Math.max(line.series.stride, ...gaps)) return '';
  const groups = line.curve.series['rollout/dead_groups'], later = groups ? pointsOf(groups).filter((point) => point[0] > last) : [];
  const why = later.length && later.every((point) => point[1] > 1 - 1e-9) ? 'after that no group had a difference in reward, so nothing was trained' : 'it was not written after that';
  return `ends at step ${last} of ${line.curve.step}: ${why}`;
}
