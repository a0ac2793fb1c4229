// All episodes: filters, and a list that only builds the rows that can be seen.
const ROW = 70;
const ORDERS = {
  'as played': null,
  'reward, highest first': (a, b) => order(b.reward, a.reward),
  'reward, lowest first': (a, b) => order(a.reward, b.reward),
  'advantage, highest first': (a, b) => order(advantageOf(b), advantageOf(a)),
  'advantage, lowest first': (a, b) => order(advantageOf(a), advantageOf(b)),
  'log-prob, lowest first': (a, b) => order(a.logprob, b.logprob),
  'most turns first': (a, b) => order(b.turns, a.turns),
  'most tokens first': (a, b) => order(b.tokens, a.tokens),
};
// What is no number comes last, whichever way round.
function order(a, b) { return (isNumber(a) ? 0 : 1) - (isNumber(b) ? 0 : 1) || (isNumber(a) && isNumber(b) ? a - b : 0); }

const filter = {text: '', run: '', part: '', environment: '', outcome: '', order: 'as played'};
const OWN = ' '; // stands for the run's own folder where '' stands for all
let list = null;

function openList(wanted) {
  const own = !wanted.part && (state.rows.get(wanted.run) || []).some((row) => !row.part);
  Object.assign(filter, {text: '', run: '', environment: '', outcome: ''}, wanted, {part: own ? OWN : wanted.part || ''});
  list = null;
  if (pathNow() === 'episodes') route(); else location.hash = '#/episodes';
}

class List {
  constructor() {
    this.found = [];
    this.selected = null;
    this.search = el('input', {type: 'search', placeholder: 'Search questions, replies, tools, errors …   ( / )', 'aria-label': 'Search episodes', value: filter.text, id: 'search'});
    this.search.addEventListener('input', () => { filter.text = this.search.value; this.apply(); });
    this.selects = {};
    this.count = el('span', {class: 'count', role: 'status'});
    this.rows = el('div', {class: 'list', role: 'listbox', tabindex: '0', 'aria-label': 'Episodes'});
    this.space = el('div', {});
    this.rows.append(this.space);
    this.rows.addEventListener('scroll', () => this.paint(), {passive: true});
    this.filters = el('div', {class: 'filters'}, this.search);
    for (const [name, title] of [['run', 'all runs'], ['part', 'all parts'], ['environment', 'all environments'], ['outcome', 'all outcomes'], ['order', '']]) {
      const select = el('select', {'aria-label': title || 'Order', 'data-filter': name});
      select.addEventListener('change', () => { filter[name] = select.value; this.apply(); });
      this.selects[name] = [select, title];
      this.filters.append(select);
    }
    this.filters.append(el('div', {class: 'count-line'}, this.count, el('button', {type: 'button', class: 'small-button', id: 'csv', title: 'The listed episodes as a file', on: {click: () => saveCsv(this.found)}}, 'CSV')));
    this.node = el('div', {class: 'pane'}, this.filters, this.rows);
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.rows);
    this.options();
    this.apply();
  }

  options() {
    const rows = allRows();
    const values = {
      run: shownRuns().map((run) => [run.key, run.name]),
      part: distinct(rows, 'part').map((part) => [part || OWN, part || '(the run’s own folder)']),
      environment: distinct(rows, 'environment').map((name) => [name, name]),
      outcome: distinct(rows, 'outcome').map((name) => [name, name]),
      order: Object.keys(ORDERS).map((name) => [name, name]),
    };
    for (const [name, [select, title]] of Object.entries(this.selects)) {
      const now = filter[name];
      select.replaceChildren(...(title ? [el('option', {value: ''}, title)] : []), ...values[name].map(([value, text]) => el('option', {value}, text)));
      select.value = now;
      if (select.selectedIndex < 0) { select.selectedIndex = 0; filter[name] = select.value; }
      select.hidden = name !== 'order' && values[name].length < 2;
    }
  }

  apply() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const part = filter.part === OWN ? '' : filter.part;
    const all = allRows();
    let found = all.filter((row) => (!filter.run || row.run === filter.run) && (!filter.part || row.part === part) && (!filter.environment || row.environment === filter.environment)
      && (!filter.outcome || row.outcome === filter.outcome) && words.every((word) => row.search.includes(word)));
    const by = ORDERS[filter.order];
    if (by) { shownRuns().forEach((run) => groupsOf(run.key)); found = found.slice().sort(by); }
    this.found = found;
    const waiting = shownRuns().reduce((sum, run) => sum + (run.waiting || 0), 0);
    this.count.textContent = (found.length === all.length ? plural(all.length, 'episode') : `${found.length.toLocaleString('en')} of ${plural(all.length, 'episode')}`) + (waiting ? `, reading ${waiting.toLocaleString('en')} more …` : '');
    this.space.style.height = `${found.length * ROW}px`;
    remember();
    this.paint();
  }

  paint() {
    const from = Math.max(0, Math.floor(this.rows.scrollTop / ROW) - 6), to = Math.min(this.found.length, Math.ceil((this.rows.scrollTop + this.rows.clientHeight) / ROW) + 6);
    const several = shownRuns().length > 1;
    const nodes = [];
    for (let place = from; place < to; place += 1) {
      const row = this.found[place];
      const node = el('div', {class: 'row', role: 'option', 'data-place': place, 'aria-selected': String(this.selected !== null && row.run === this.selected.run && row.number === this.selected.number), on: {click: () => { go(`episode/${row.run}/${row.number}`); }}},
        el('span', {class: 'dot ' + dotKind(row.outcome)}), el('span', {class: 'name'}, row.task), el('span', {class: 'value'}, figure(row.reward)),
        el('span', {class: 'sub'}, row.question || ' '), el('span', {class: 'sub'}, several ? el('span', {class: colourOf(row.run)}, runOf(row.run).name + ' · ') : null, subtitle(row)));
      node.style.top = `${place * ROW}px`;
      nodes.push(node);
    }
    this.space.replaceChildren(...nodes);
  }

  select(row) {
    this.selected = row;
    const place = this.found.findIndex((one) => one.run === row.run && one.number === row.number);
    if (place >= 0) {
      const top = place * ROW, bottom = top + ROW;
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

const distinct = (rows, name) => [...new Set(rows.map((row) => row[name]))].sort();

function saveCsv(rows) {
  const names = state.fields.filter((name) => !['number', 'replies', 'tools', 'parts'].includes(name));
  const tools = (row) => Object.entries(row.tools || {}).map(([name, [calls, errors]]) => `${name} ${calls}/${errors}`).join('; ');
  const lines = rows.map((row) => [runOf(row.run).name, ...names.map((name) => row[name]), tools(row)].map(csvCell).join(','));
  saveFile('episodes.csv', 'text/csv', [['run', ...names, 'tools'].join(','), ...lines].join('\n') + '\n');
}
