// All episodes: filters, and a table that only builds the rows that can be seen. Beside an open episode it is a narrow list.
const HIGH = {table: 37, list: 70};
const ORDERS = {
  'as played': null,
  'reward, highest first': (a, b) => order(b.reward, a.reward),
  'reward, lowest first': (a, b) => order(a.reward, b.reward),
  'advantage, highest first': (a, b) => order(advantageOf(b), advantageOf(a)),
  'advantage, lowest first': (a, b) => order(advantageOf(a), advantageOf(b)),
  'log-prob, lowest first': (a, b) => order(a.logprob, b.logprob),
  'most turns first': (a, b) => order(b.turns, a.turns),
  'fewest turns first': (a, b) => order(a.turns, b.turns),
  'most tokens first': (a, b) => order(b.tokens, a.tokens),
};
// What is no number comes last, whichever way round.
function order(a, b) { return (isNumber(a) ? 0 : 1) - (isNumber(b) ? 0 : 1) || (isNumber(a) && isNumber(b) ? a - b : 0); }

// Title, class, what a row shows there, and the orders that a click on the title takes in turn.
const toolsText = (row) => Object.entries(row.tools || {}).map(([name, [calls, errors]]) => `${name} ×${calls}${errors ? ` (${errors} failed)` : ''}`).join(', ');
const COLUMNS = [
  ['Task', 'name', (row) => [el('span', {class: 'dot ' + dotKind(row.outcome)}), row.task], ['as played']],
  ['Question', 'question', (row) => row.question],
  ['Target', 'target', (row) => row.target],
  ['Answer', 'answer', (row) => row.answer],
  ['Score', 'value', (row) => figure(row.reward), ['reward, lowest first', 'reward, highest first']],
  ['Turns', 'value', (row) => row.turns, ['most turns first', 'fewest turns first']],
  ['Tools', 'tools-cell', toolsText],
  ['Outcome', 'outcome', (row) => badge(row.outcome)],
  ['Run', 'where', (row) => [el('span', {class: 'dot ' + colourOf(row.run)}), `${state.runs.length > 1 || !partName(row.part) ? runAndPart(row.run, row.part) : partName(row.part)}${row.step !== null ? ` · step ${row.step}` : ''}`]],
];

const NO_FILTER = {text: '', run: '', part: '', step: '', environment: '', outcome: '', cause: '', order: 'as played'};
const filter = {...NO_FILTER};
const OWN = ' '; // stands for the run's own folder where '' stands for all
let list = null;
const NO_ROWS = new Set();

function openList(wanted) {
  const own = !wanted.part && (state.rows.get(wanted.run) || []).some((row) => !row.part);
  Object.assign(filter, NO_FILTER, wanted, {part: own ? OWN : wanted.part || ''});
  list = null;
  go('episodes');
}

class List {
  constructor() {
    this.found = [];
    this.selected = null;
    this.search = el('input', {type: 'search', placeholder: 'Search questions, replies, tools, errors …   ( / )', 'aria-label': 'Search episodes', value: filter.text, id: 'search'});
    this.search.addEventListener('input', () => { filter.text = this.search.value; this.apply(); });
    this.selects = {};
    this.count = el('span', {class: 'count', role: 'status'});
    this.heads = el('div', {class: 'heads', role: 'row', 'aria-rowindex': '1'}, COLUMNS.map(([title, kind, , orders]) => el('span', {class: kind, role: 'columnheader', 'data-orders': orders ? orders.join('|') : null}, orders
      ? el('button', {type: 'button', class: 'sort', on: {click: () => { filter.order = orders[(orders.indexOf(filter.order) + 1) % orders.length]; this.options(); this.apply(); }}}, title) : title)));
    this.space = el('div', {class: 'space', role: 'rowgroup'});
    this.rows = el('div', {class: 'list', role: 'grid', tabindex: '0', 'aria-label': 'Episodes', 'aria-colcount': COLUMNS.length}, el('div', {role: 'rowgroup', class: 'head'}, this.heads), this.space);
    this.rows.addEventListener('scroll', () => this.paint(), {passive: true});
    this.filters = el('div', {class: 'filters'}, this.search);
    for (const [name, title] of [['run', 'all runs'], ['part', 'all parts'], ['environment', 'all environments'], ['outcome', 'all outcomes'], ['order', '']]) {
      const select = el('select', {'aria-label': title || 'Order', 'data-filter': name});
      select.addEventListener('change', () => { filter[name] = select.value; this.apply(); });
      this.selects[name] = [select, title];
      this.filters.append(select);
    }
    this.cause = el('span', {class: 'cause'});
    const save = (id, title, act) => el('button', {type: 'button', class: 'small-button', id, title: 'The listed episodes as a file', on: {click: () => act(this.found)}}, title);
    this.filters.append(el('div', {class: 'count-line'}, this.count, this.cause, el('span', {class: 'files'}, save('csv', 'CSV', saveCsv), ' ', save('jsonl', 'JSONL', saveJsonl))));
    this.node = el('div', {class: 'pane'}, this.filters, this.rows);
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.rows);
    this.options();
    this.apply();
  }

  // A table where it has the width of the page; a list beside an episode and on a phone.
  get shape() { return this.selected === null && innerWidth > 820 ? 'table' : 'list'; }

  options() {
    const rows = allRows();
    this.several = new Set(rows.map((row) => row.run + row.part)).size > 1; // else a column for the run says nothing
    const values = {
      run: shownRuns().map((run) => [run.key, run.name]),
      part: distinct(rows, 'part').map((part) => [part || OWN, partName(part) || part || '(the run’s own folder)']),
      environment: distinct(rows, 'environment').map((name) => [name, name]),
      outcome: [...distinct(rows, 'outcome').map((name) => [name, name]), [NOT_SUCCESS, 'not successful']],
      order: Object.keys(ORDERS).map((name) => [name, name]),
    };
    for (const [name, [select, title]] of Object.entries(this.selects)) {
      const now = filter[name];
      select.replaceChildren(...(title ? [el('option', {value: ''}, title)] : []), ...values[name].map(([value, text]) => el('option', {value}, text)));
      select.value = now;
      if (select.selectedIndex < 0) { select.selectedIndex = 0; filter[name] = select.value; }
      select.hidden = name !== 'order' && values[name].length < (name === 'outcome' ? 3 : 2) && !filter[name];
    }
  }

  apply() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    // A word is in what the list knows of an episode, or in its whole text.
    const texts = new Map(shownRuns().map((run) => [run.key, words.map((word) => hitsOf(run.key, word, () => { if (list === this) this.apply(); }))]));
    const searching = [...texts.values()].flat().includes(null);
    const has = (row, word, place) => row.search.includes(word) || (texts.get(row.run)[place] || NO_ROWS).has(row.number);
    const part = filter.part === OWN ? '' : filter.part;
    const [kind, cause] = filter.cause ? [filter.cause.split(': ')[0], filter.cause.split(': ').slice(1).join(': ')] : ['', ''];
    const all = allRows();
    let found = all.filter((row) => (!filter.run || row.run === filter.run) && (!filter.part || row.part === part) && (!filter.step || String(row.step) === filter.step) && (!filter.environment || row.environment === filter.environment)
      && (!filter.outcome || hasOutcome(row, filter.outcome)) && (!causeTitle(kind) || hasCause(row, kind, cause)) && words.every((word, place) => has(row, word, place)));
    const by = ORDERS[filter.order];
    if (by) { shownRuns().forEach((run) => groupsOf(run.key)); found = found.slice().sort(by); }
    this.found = found;
    const waiting = shownRuns().reduce((sum, run) => sum + (run.waiting || 0), 0);
    this.count.textContent = (found.length === all.length ? plural(all.length, 'episode') : `${found.length.toLocaleString('en')} of ${plural(all.length, 'episode')}`) + (searching ? ', searching …' : '') + (waiting ? `, reading ${waiting.toLocaleString('en')} more …` : '');
    const chip = (name, text) => el('button', {type: 'button', class: 'chip', title: 'Remove this filter', on: {click: () => { filter[name] = ''; this.apply(); }}}, `${text} ×`);
    this.cause.replaceChildren(...(filter.step ? [chip('step', `step ${filter.step}`)] : []), ...(causeTitle(kind) ? [chip('cause', `${causeTitle(kind)}: ${cause}`)] : []));
    for (const head of this.heads.children) {
      const orders = (head.dataset.orders || '').split('|');
      if (orders.includes(filter.order) && filter.order !== 'as played') head.setAttribute('aria-sort', /highest|most/.test(filter.order) ? 'descending' : 'ascending'); else head.removeAttribute('aria-sort');
    }
    remember();
    this.paint();
  }

  paint() {
    const shape = this.shape, high = HIGH[shape], several = shownRuns().length > 1;
    this.node.dataset.shape = shape;
    this.node.dataset.one = this.several ? 'no' : 'yes';
    this.heads.hidden = shape !== 'table';
    this.space.style.height = `${this.found.length * high}px`;
    this.rows.setAttribute('aria-rowcount', String(this.found.length + 1));
    const from = Math.max(0, Math.floor(this.rows.scrollTop / high) - 6), to = Math.min(this.found.length, Math.ceil((this.rows.scrollTop + this.rows.clientHeight) / high) + 6);
    const nodes = [];
    for (let place = from; place < to; place += 1) {
      const row = this.found[place];
      const node = el('div', {class: 'row', role: 'row', 'aria-rowindex': place + 2, 'data-place': place, 'aria-selected': String(this.selected !== null && row.run === this.selected.run && row.number === this.selected.number), on: {click: () => { go(`episode/${row.run}/${row.number}`); }}},
        shape === 'table' ? COLUMNS.map(([, kind, show]) => el('span', {class: kind, role: 'gridcell'}, show(row))) : listCells(row, several));
      if (shape === 'table') node.title = [row.question, row.answer ? `answer: ${row.answer}` : '', row.target ? `target: ${row.target}` : '', row.error ? `error: ${row.error}` : ''].filter(Boolean).join('\n');
      node.style.top = `${place * high}px`;
      nodes.push(node);
    }
    this.space.replaceChildren(...nodes);
  }

  select(row) {
    this.selected = row;
    const place = row ? this.found.findIndex((one) => one.run === row.run && one.number === row.number) : -1;
    if (place >= 0) {
      const top = place * HIGH[this.shape], bottom = top + HIGH[this.shape];
      this.space.style.height = `${this.found.length * HIGH[this.shape]}px`;
      if (top < this.rows.scrollTop) this.rows.scrollTop = top;
      else if (bottom > this.rows.scrollTop + this.rows.clientHeight) this.rows.scrollTop = bottom - this.rows.clientHeight;
    }
    this.paint();
  }

  move(by) {
    if (!this.found.length) return;
    const now = this.selected ? this.found.findIndex((row) => row.run === this.selected.run && row.number === this.selected.number) : -1;
    const next = this.found[Math.max(0, Math.min(this.found.length - 1, now < 0 ? 0 : now + by))];
    go(`episode/${next.run}/${next.number}`);
  }
}

function listCells(row, several) {
  return [el('span', {class: 'dot ' + dotKind(row.outcome), role: 'gridcell', 'aria-label': row.outcome}), el('span', {class: 'name', role: 'gridcell'}, row.task), el('span', {class: 'value', role: 'gridcell'}, figure(row.reward)),
    el('span', {class: 'sub', role: 'gridcell'}, row.question || ' '), el('span', {class: 'sub', role: 'gridcell'}, several ? [el('span', {class: 'dot ' + colourOf(row.run)}), runOf(row.run).name + ' · '] : null, subtitle(row))];
}

const distinct = (rows, name) => [...new Set(rows.map((row) => row[name]))].sort();

// What a file holds of an episode: its fields by name.
const SAVED = () => state.fields.filter((name) => name !== 'number');
function saveCsv(rows) {
  const names = SAVED().filter((name) => !['tools', 'parts', 'seconds'].includes(name));
  const lines = rows.map((row) => [runOf(row.run).name, ...names.map((name) => row[name]), toolsText(row)].map(csvCell).join(','));
  saveFile('episodes.csv', 'text/csv', [['run', ...names, 'tools'].join(','), ...lines].join('\n') + '\n');
}
function saveJsonl(rows) {
  const named = (row) => ({run: runOf(row.run).name, ...Object.fromEntries(SAVED().map((name) => [name, row[name]])), tools: Object.fromEntries(Object.entries(row.tools || {}).map(([name, [calls, errors]]) => [name, {calls, errors}]))});
  saveFile('episodes.jsonl', 'application/jsonl', rows.map((row) => JSON.stringify(named(row)) + '\n').join(''));
}
