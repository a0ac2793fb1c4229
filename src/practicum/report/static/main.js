// Views by address, keys, light and dark, and what a running server says.
const main = document.getElementById('main');
const status = document.getElementById('status');
const stop = () => { shownEpisode = null; hideTip(); };

// The address has the filters, the colouring and the compared pair: whoever opens it sees the same.
const pathNow = () => location.hash.replace(/^#\/?/, '').split('?')[0];
const SHARED = [
  ['', filter, NO_FILTER, ['episodes', 'episode']],
  ['', look, {by: 'origin', view: 'tokens'}, ['episode', 'side']],
  ['', versus, {baseline: ''}, ['', 'compare']],
  ['compare-', versus, {a: '', b: '', tasks: 'differ'}, ['compare']],
  ['chart-', drawing, {x: '', smooth: '0', log: '', zoom: ''}, ['']],
];
function addressOf(path) {
  const wanted = new URLSearchParams();
  const tab = path.split('/')[0];
  for (const [prefix, values, usual, tabs] of SHARED) {
    if (!tabs.includes(tab)) continue;
    for (const [name, value] of Object.entries(usual)) if (values[name] !== value && values[name]) wanted.set(prefix + name, values[name]);
  }
  return `#/${path}${String(wanted) ? '?' + wanted : ''}`;
}
function go(path) { location.hash = addressOf(path); }
function remember() {
  const address = addressOf(pathNow());
  if (address !== location.hash && (location.hash || address !== '#/')) history.replaceState(history.state, '', address);
}
// Filters are those of the address and no others: a link without any shows all. Colouring, pair and axes stay until the address names others.
function recall() {
  const found = new URLSearchParams(location.hash.split('?')[1] || ''), tab = pathNow().split('/')[0];
  let changed = false;
  for (const [prefix, values, usual, tabs] of SHARED) for (const name of Object.keys(usual)) {
    const value = found.get(prefix + name) ?? (values === filter && tabs.includes(tab) ? usual[name] : values[name]);
    if (value === values[name]) continue;
    values[name] = value;
    changed = changed || values === filter;
  }
  if (ORDERS[filter.order] === undefined) filter.order = 'as played';
  if (drawing.x && !(drawing.x in OVER)) drawing.x = '';
  if (changed) list = null; // the list is built anew only for another filter: a search box that is being typed into stays
}

function route() {
  const path = pathNow().split('/');
  recall();
  stop();
  let tab = path[0] || 'overview';
  if (tab === 'episode' || tab === 'episodes') {
    const row = tab === 'episode' ? rowAt(path[1], Number(path[2])) : null;
    episodesPage(row);
    tab = 'episodes';
  } else if (tab === 'side') {
    const rows = (path[1] || '').split(',').map((name) => rowAt(...name.split('.').map((part, place) => (place ? Number(part) : part)))).filter(Boolean);
    main.replaceChildren(rows.length ? sidePage(rows) : el('div', {class: 'wide'}, el('p', {}, 'These episodes are not here.')));
    tab = 'compare';
  } else if (tab === 'compare') main.replaceChildren(comparePage());
  else { tab = 'overview'; main.replaceChildren(overview()); }
  for (const link of document.querySelectorAll('[data-tab]')) { if (link.dataset.tab === tab) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current'); }
  if (tab !== 'episodes') scrollTo(0, 0);
  remember();
}

function episodesPage(row) {
  if (list === null) list = new List();
  let split = main.querySelector('.split');
  if (!split || split.firstChild !== list.node) {
    list.options();
    split = el('div', {class: 'split'}, list.node, el('div', {class: 'detail'}));
    main.replaceChildren(split);
    list.apply();
  }
  split.classList.toggle('open', Boolean(row));
  const detail = split.lastChild;
  detail.scrollTop = 0;
  if (row) { list.select(row); detail.replaceChildren(episodePane(row)); } else {
    list.select(null);
    detail.replaceChildren(el('p', {class: 'empty'}, allRows().length ? 'Choose an episode; j and k go through the list.' : 'No episodes here. A training keeps its best-paid ones; `practicum collect` and `practicum eval --out` keep all.'));
  }
}

function choose(key, on) {
  if (on) state.hidden.delete(key); else state.hidden.add(key);
  list = null;
  route();
  if (live) (on ? loadRun(key) : Promise.resolve()).then(() => { list = null; stay(); return loadComparisons(); }).then(stay).catch((error) => { status.textContent = error.message; });
}

// -- keys --------------------------------------------------------------------------------------
const KEYS = [['j  ↓', 'next episode'], ['k  ↑', 'previous episode'], ['/', 'search'], ['o  l  a', 'colour by origin, log-prob, advantage'], ['t', 'tokens or messages'], ['g', 'the group side by side'], ['1  2  3', 'overview, episodes, compare'], ['d', 'light or dark'], ['Esc', 'back'], ['?', 'this list']];
const help = document.getElementById('help');
help.append(el('h2', {}, 'Keys'), el('dl', {}, KEYS.map(([key, text]) => [el('dt', {}, key.split('  ').map((one) => [el('kbd', {}, one), ' '])), el('dd', {}, text)])));

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLElement && event.target.matches('input[type=search], select, textarea');
  const onEpisodes = Boolean(main.querySelector('.split'));
  if (event.key === 'Escape') {
    if (help.open) help.close();
    else if (typing) { if (event.target.value && event.target.id === 'search') { event.target.value = ''; event.target.dispatchEvent(new Event('input')); } event.target.blur(); }
    else if (location.hash.startsWith('#/side/')) history.back();
    else if (location.hash.startsWith('#/episode/')) go('episodes');
    else location.hash = '#/';
    return;
  }
  if (typing) { if (event.key === 'ArrowDown' && event.target.id === 'search') { event.target.blur(); list.move(0); event.preventDefault(); } return; }
  const again = (name, value) => { look[name] = value; remember(); if (shownEpisode) shownEpisode.again(); };
  const acts = {
    j: () => step(1), ArrowDown: () => onEpisodes && step(1), k: () => step(-1), ArrowUp: () => onEpisodes && step(-1),
    '/': () => { if (!onEpisodes) { location.hash = '#/episodes'; route(); } document.getElementById('search').focus(); },
    o: () => again('by', 'origin'), l: () => again('by', 'logprob'), a: () => again('by', 'advantage'), t: () => again('view', look.view === 'tokens' ? 'messages' : 'tokens'),
    g: () => { if (shownEpisode && shownEpisode.group.length > 1) side(shownEpisode.group); },
    1: () => { location.hash = '#/'; }, 2: () => { location.hash = '#/episodes'; }, 3: () => { location.hash = '#/compare'; },
    d: theme, '?': () => (help.open ? help.close() : help.showModal()),
  };
  if (!(event.key in acts) || acts[event.key]() === false) return;
  event.preventDefault();
}
function step(by) { if (!main.querySelector('.split')) { location.hash = '#/episodes'; return; } list.move(by); }

// -- light and dark ----------------------------------------------------------------------------
function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('practicum-theme', document.documentElement.dataset.theme); } catch { /* a page without storage forgets, no more */ }
}
try { const kept = localStorage.getItem('practicum-theme'); if (kept === 'dark' || kept === 'light') document.documentElement.dataset.theme = kept; } catch { /* as above */ }

// -- live --------------------------------------------------------------------------------------
async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
const blank = (facts) => ({curves: [], table: [], samples: {}, unreadable: [], unreadable_count: 0, episodes: 0, waiting: 0, generation: 0, ...facts});

async function loadRuns() {
  const found = await get('api/runs');
  state.fields = found.fields;
  const known = new Map(state.runs.map((run) => [run.key, run]));
  state.runs = found.runs.map((facts) => Object.assign(known.get(facts.key) || blank(facts), {finished: facts.finished, writer: facts.writer, changed: facts.age === null ? 0 : Date.now() - 1000 * facts.age}));
  const fresh = state.runs.filter((run) => !known.has(run.key));
  const room = Math.max(0, found.shown - state.runs.filter((run) => known.has(run.key) && !state.hidden.has(run.key)).length);
  const newest = fresh.slice().sort((a, b) => b.changed - a.changed);
  newest.slice(room).forEach((run) => state.hidden.add(run.key));
  return newest.slice(0, room);
}
// Whether runs are finished and who writes to them.
async function loadStates() {
  for (const facts of (await get('api/runs')).runs) {
    const run = runOf(facts.key);
    if (run) Object.assign(run, {finished: facts.finished, writer: facts.writer, changed: facts.age === null ? 0 : Date.now() - 1000 * facts.age});
  }
}
async function loadRun(key) {
  const record = await get('api/run?run=' + encodeURIComponent(key));
  const run = runOf(key);
  if (!run) return;
  const before = run.generation;
  Object.assign(run, record);
  const rows = state.rows.get(key) || [];
  if (record.generation !== before || rows.length < record.episodes) await loadRows(key, record.generation === before && rows.length > 0 ? rows.length : 0);
}
async function loadRows(key, from) {
  const found = await get(`api/episodes?run=${encodeURIComponent(key)}&from=${from}`);
  const run = runOf(key);
  if (!run) return;
  takeRows(key, found.rows, from);
  Object.assign(run, {episodes: found.count, waiting: found.waiting, generation: found.generation});
}
async function loadComparisons() {
  const keys = shownRuns().map((run) => run.key);
  state.comparisons = keys.length ? (await get(`api/compare?runs=${keys.map(encodeURIComponent).join(',')}`)).comparisons : [];
}

const due = new Map();
// Many messages, one act: at most once a second for each thing there is to load.
function soon(name, act) {
  if (due.has(name)) return;
  due.set(name, setTimeout(() => { due.delete(name); act().catch((error) => { status.textContent = error.message; }); }, 700));
}
const isOverview = () => !pathNow();

function stepped(told) {
  const run = runOf(told.run);
  if (!run || state.hidden.has(run.key)) return;
  const curve = run.curves.find((one) => one.name === told.curve);
  const size = told.again ? 0 : Object.keys(told.points).length;
  if (!told.again && curve && size && told.row <= curve.rows) return;
  // A curve that is new, began anew, or of which a step was missed is asked for whole.
  if (told.again || !curve || (size && told.row !== curve.rows + 1)) { soon('run ' + run.key, () => loadRun(run.key).then(stay)); return; }
  let unknown = false;
  for (const [name, value] of Object.entries(told.points)) {
    if (!curve.series[name]) { curve.series[name] = {stride: 1, independent: !name.startsWith('val/'), points: [], pending: [0, 0, 0, 0, 0]}; unknown = true; }
    addPoint(curve.series[name], told.step, value);
  }
  for (const [name, total] of Object.entries(told.axes || {})) addTotal(curve, name, total);
  if (size) { curve.step = told.step; curve.rows = told.row; }
  if (told.noted > curve.noted) { curve.events = [...curve.events, ...told.events].slice(-500); curve.noted = told.noted; }
  run.changed = Date.now();
  if (!isOverview()) return;
  if (unknown) { soon('page', async () => stay()); return; }
  touched.add(run.key);
  if (told.events.length) touched.add('events');
  for (const name of Object.keys(told.points)) touched.add('curve ' + name);
  if (touched.size && !painting) { painting = true; requestAnimationFrame(repaint); }
}
const touched = new Set();
let painting = false;
function repaint() {
  painting = false;
  for (const card of document.querySelectorAll('.run[data-run]')) if (touched.has(card.dataset.run)) fillRun(card, runOf(card.dataset.run));
  for (const [name, made] of charts) {
    if (name === SHARE ? [...touched].some((one) => one.startsWith('curve ' + SHARE)) : touched.has('curve ' + name)) {
      for (const chart of made) if (chart.node.isConnected) { if (name === SHARE) chart.draw(); else fillCurve(chart, name); }
    }
  }
  if (touched.has('events')) { const box = document.getElementById('events'); if (box) box.replaceChildren(eventList(linesOf())); const seen = document.getElementById('glance'); if (seen) seen.replaceWith(glance()); }
  touched.clear();
}

// The overview drawn anew without losing one's place.
function stay() { if (isOverview()) { const at = scrollY, focused = document.activeElement && document.activeElement.id; route(); scrollTo(0, at); if (focused && document.getElementById(focused)) document.getElementById(focused).focus({preventScroll: true}); } }

function played(told) {
  const run = runOf(told.run);
  if (!run) return;
  run.waiting = told.waiting;
  run.changed = Date.now();
  if (state.hidden.has(run.key)) { run.episodes = told.count; return; }
  soon('rows ' + run.key, async () => {
    const rows = state.rows.get(run.key) || [];
    await loadRows(run.key, told.generation === run.generation ? rows.length : 0);
    if (list) { list.options(); list.apply(); }
    for (const card of document.querySelectorAll('.run[data-run]')) if (card.dataset.run === run.key) fillRun(card, run);
    if (!run.waiting) soon('figures', async () => { await loadRun(run.key); await loadComparisons(); stay(); });
  });
}

async function listen() {
  // Heard from the first moment, so that no step falls between the loading and the listening.
  const early = [];
  let ready = false, before = false;
  const hear = (told) => {
    if (told.type === 'step') stepped(told);
    else if (told.type === 'episodes') played(told);
    else if (told.type === 'runs') soon('runs', async () => { const fresh = await loadRuns(); await Promise.all(fresh.map((run) => loadRun(run.key))); if (list) { list.options(); list.apply(); } await loadComparisons(); stay(); });
  };
  const stream = new EventSource('api/events');
  stream.onopen = () => {
    status.replaceChildren(el('span', {class: 'dot success'}), 'live');
    if (before) soon('anew', async () => { await loadRuns(); await Promise.all(shownRuns().map((run) => loadRun(run.key))); stay(); });
    before = true;
  };
  stream.onerror = () => { status.replaceChildren(el('span', {class: 'dot failure'}), 'not connected; trying again'); };
  stream.onmessage = (event) => { const told = JSON.parse(event.data); if (ready) hear(told); else early.push(told); };
  const begun = await loadRuns();
  route();
  await Promise.all(begun.map((run) => loadRun(run.key)));
  list = null;
  route();
  ready = true;
  early.forEach(hear);
  setInterval(() => { for (const card of document.querySelectorAll('.run[data-run]')) fillRun(card, runOf(card.dataset.run)); }, 5000);
  setInterval(() => { loadStates().catch(() => {}); }, 15000); // a server that is gone is said by the stream
  await loadComparisons();
  if (state.comparisons.length) stay();
}

addEventListener('hashchange', route);
addEventListener('keydown', pressed);
document.getElementById('theme').addEventListener('click', theme);
document.getElementById('help-open').addEventListener('click', () => help.showModal());
help.addEventListener('click', (event) => { if (event.target === help) help.close(); });
if (live) { status.textContent = 'connecting …'; listen().catch((error) => { status.textContent = error.message; }); } else {
  state.runs = given.runs;
  state.comparisons = given.comparisons;
  for (const run of state.runs) takeRows(run.key, given.rows[run.key] || [], 0);
  status.textContent = `practicum ${given.version}`;
  route();
}
document.documentElement.dataset.ready = 'yes';
