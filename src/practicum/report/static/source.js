// Where the data comes from: out of this file, or from the server that shows a folder of runs.
const given = JSON.parse(document.getElementById('data').textContent);
const live = given.mode === 'live';
const state = {runs: [], rows: new Map(), fields: given.fields || [], hidden: new Set(), comparisons: []};
// The chosen baseline, and the pair that is compared task by task: which tasks of it are listed.
const versus = {a: '', b: '', baseline: '', tasks: 'differ'};

const runOf = (key) => state.runs.find((run) => run.key === key);
// The name of a part as the result has it: episodes of an evaluated stage are in its folder `examination`, of a result in `episodes`.
const partName = (part) => part.replace(/\/examination$|^episodes$/, '');
const runAndPart = (key, part) => [runOf(key).name, partName(part)].filter(Boolean).join(' · ');
const shownRuns = () => state.runs.filter((run) => !state.hidden.has(run.key));
// A run keeps its colour, whichever runs come and go around it.
const colours = new Map();
function colourOf(key) {
  if (!colours.has(key)) colours.set(key, 'c' + (colours.size % 12));
  return colours.get(key);
}

function takeRows(key, lists, from) {
  const rows = from ? state.rows.get(key) || [] : [];
  rows.length = Math.min(rows.length, from || 0);
  for (const list of lists) {
    const row = {run: key};
    state.fields.forEach((name, place) => { row[name] = list[place]; });
    row.search = [row.task, row.part, row.environment, row.outcome, row.group, row.question, row.target, row.answer, row.error, row.last, ...Object.keys(row.tools || {})].join(' ').toLowerCase();
    rows.push(row);
  }
  state.rows.set(key, rows);
  grouped.delete(key);
  for (const name of [...hits.keys()]) if (name.startsWith(key + ' ')) hits.delete(name); // rows were added or numbered anew
}

// Groups of a run: episodes that were played for one comparison of rewards.
const grouped = new Map();
function groupsOf(key) {
  if (!grouped.has(key)) {
    const groups = new Map();
    for (const row of state.rows.get(key) || []) {
      const name = [row.part, row.step, row.group].join('\u0000');
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
      row.groupName = name;
    }
    for (const rows of groups.values()) {
      const scored = rows.filter((row) => ['success', 'failure', 'truncated'].includes(row.outcome) && isNumber(row.reward));
      for (const row of rows) row.advantage = isNumber(row.credit) ? row.credit : null;
      if (rows.some((row) => isNumber(row.credit))) continue; // what the run trained with, not what this page would give
      if (scored.length < 2 || /(^|\/)top_episodes$/.test(rows[0].part)) continue;
      const mean = scored.reduce((sum, row) => sum + row.reward, 0) / scored.length;
      const spread = Math.sqrt(scored.reduce((sum, row) => sum + (row.reward - mean) ** 2, 0) / (scored.length - 1));
      for (const row of scored) row.advantage = (row.reward - mean) / (spread + 1e-6);
    }
    grouped.set(key, groups);
  }
  return grouped.get(key);
}
function groupOf(row) { return groupsOf(row.run).get(row.groupName) || [row]; }
function advantageOf(row) { groupsOf(row.run); return row.advantage; }

function rowAt(key, number) { return (state.rows.get(key) || [])[number]; }
const allRows = () => shownRuns().flatMap((run) => state.rows.get(run.key) || []);

function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw')));
}
const unpack = (text) => inflate(text).json();

// Full text: the episodes of a run that have a word anywhere. The file brings an index of words; a server is asked.
const indexes = new Map(), hits = new Map();
async function readIndex(key) {
  const block = document.getElementById(`s-${key}`);
  if (!block) return {words: [], values: []};
  const bytes = new Uint8Array(await inflate(block.textContent).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true), planes = bytes.subarray(4 + size), count = planes.length / 4;
  const words = new TextDecoder().decode(bytes.subarray(4, 4 + size)).split('\n').slice(0, -1), values = new Uint32Array(count);
  for (let place = 0; place < count; place += 1) values[place] = planes[place] + 2 ** 8 * planes[count + place] + 2 ** 16 * planes[2 * count + place] + 2 ** 24 * planes[3 * count + place];
  return {words, values};
}
function rowsWith({words, values}, text) {
  const found = new Set();
  for (let place = 0, at = 0; place < words.length; place += 1, at += values[at] + 1) {
    if (words[place].includes(text)) for (let next = 1, row = 0; next <= values[at]; next += 1) { row += values[at + next]; found.add(row); }
  }
  return found;
}
async function search(key, word) {
  if (live) return new Set((await get(`api/search?run=${encodeURIComponent(key)}&word=${encodeURIComponent(word)}`)).rows);
  if (!indexes.has(key)) indexes.set(key, readIndex(key));
  return rowsWith(await indexes.get(key), word);
}
// The numbers of the rows, or null as long as they are looked for; `ready` is called when they are known.
function hitsOf(key, word, ready) {
  const name = `${key} ${word}`;
  if (!hits.has(name)) {
    if (hits.size > 400) hits.clear();
    const entry = {rows: null};
    hits.set(name, entry);
    search(key, word).catch(() => new Set()).then((rows) => { entry.rows = rows; if (hits.get(name) === entry) ready(); });
  }
  return hits.get(name).rows;
}

const opened = new Map();
async function episodeAt(key, number) {
  const name = `${key}/${(runOf(key) || {}).generation}/${number}`;
  if (opened.has(name)) return opened.get(name);
  let found;
  if (live) {
    const answer = await fetch(`api/episode?run=${encodeURIComponent(key)}&number=${number}`);
    found = answer.ok ? await answer.json() : {fault: 'the server does not have it (any more)'};
  } else {
    const block = document.getElementById(`e-${key}-${number}`);
    if (block) found = await unpack(block.textContent);
    else found = {absent: true};
  }
  if (opened.size > 40) opened.delete(opened.keys().next().value);
  opened.set(name, found);
  return found;
}

// The same rule as the server's series: a point is the mean over `stride` steps, and 600 points become 300. The interval of
// a mean over steps with different tasks is narrower by the root of their number.
const LIMIT = 600;
const marginOf = (series, total, count) => (series.independent ? Math.sqrt(total) : total) / count;
function pendingPoint(series) {
  const [count, step, sum, below, above] = series.pending;
  return [step, sum / count, sum / count - marginOf(series, below, count), sum / count + marginOf(series, above, count)];
}
function addPoint(series, step, value) {
  const [low, high] = value.length > 1 ? [value[1], value[2]] : [value[0], value[0]];
  if (series.stride === 1) series.points.push([step, value[0], low, high]);
  else {
    const pending = series.pending, summand = (margin) => (series.independent ? margin * margin : margin);
    pending[0] += 1; pending[1] = step; pending[2] += value[0]; pending[3] += summand(value[0] - low); pending[4] += summand(high - value[0]);
    if (pending[0] < series.stride) return;
    series.points.push(pendingPoint(series));
    series.pending = [0, 0, 0, 0, 0];
  }
  if (series.points.length < LIMIT) return;
  const half = [], both = (a, b) => (series.independent ? Math.hypot(a, b) : a + b) / 2;
  for (let place = 0; place + 1 < series.points.length; place += 2) {
    const [a, b] = [series.points[place], series.points[place + 1]], mean = (a[1] + b[1]) / 2;
    half.push([b[0], mean, mean - both(a[1] - a[2], b[1] - b[2]), mean + both(a[3] - a[1], b[3] - b[1])]);
  }
  series.points = half;
  series.stride *= 2;
}

// The total of another quantity up to a step; a line between two totals is enough, so of many every second is dropped.
function addTotal(curve, name, total) {
  if (!curve.axes) curve.axes = {};
  const points = curve.axes[name] = curve.axes[name] || [];
  if (points.length && points[points.length - 1][0] >= total[0]) return;
  points.push(total);
  if (points.length >= LIMIT) curve.axes[name] = points.filter((point, place) => place % 2 === 1);
}
