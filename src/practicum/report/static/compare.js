// Task by task: what two runs (or two parts of one) did on the same task, and episodes side by side.

// Each validation of a training is of another checkpoint; other parts are of one policy, or of all steps together.
const stepOf = (row) => (/(^|\/)validation$/.test(row.part) ? row.step : null);

function cohortsShown() {
  const found = new Map();
  for (const row of allRows()) {
    const step = stepOf(row), title = step === null ? '' : ` · step ${step}`;
    const name = row.run + '\u0000' + row.part + title;
    if (!found.has(name)) found.set(name, {name, label: runAndPart(row.run, row.part) + title, run: row.run, part: row.part, step, rows: []});
    found.get(name).rows.push(row);
  }
  // Parts of a run in the order of their stages, which its table has.
  const place = (one) => [state.runs.findIndex((run) => run.key === one.run), (runOf(one.run).table || []).findIndex((line) => line.part === one.part)];
  return [...found.values()].map((one) => [one, place(one)]).sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]).map(([one]) => one);
}

function comparePage() {
  const cohorts = cohortsShown();
  const page = el('div', {class: 'wide'});
  if (cohorts.length < 2) return put(page, [el('h2', {}, 'Compare'), el('p', {class: 'soft'}, 'Two runs with episodes are needed; give them both to `practicum report`, or show both on the overview.'), comparisonSection()]);
  const both = firstPair(cohorts);
  if (!cohorts.some((one) => one.name === versus.a)) versus.a = both[0];
  if (!cohorts.some((one) => one.name === versus.b) || versus.b === versus.a) versus.b = both.find((name) => name !== versus.a);
  const table = el('div', {});
  const pick = (name, label) => {
    const select = el('select', {'aria-label': label, id: 'compare-' + name}, cohorts.map((one) => el('option', {value: one.name}, shortLabel(one.label))));
    select.value = versus[name];
    select.addEventListener('change', () => { versus[name] = select.value; remember(); fill(); });
    return select;
  };
  const fill = () => table.replaceChildren(...taskTable(cohorts.find((one) => one.name === versus.a), cohorts.find((one) => one.name === versus.b), fill));
  put(page, [el('section', {}, el('div', {class: 'section-head'}, el('h2', {}, 'Task by task'), pick('a', 'First'), el('span', {class: 'soft'}, 'against'), pick('b', 'Second')), table), comparisonSection()]);
  fill();
  return page;
}

// The two that share most tasks, in their order; of several such pairs the last, which is the last stage and the one before.
function firstPair(cohorts) {
  let best = [cohorts[0].name, cohorts[1].name], most = -1;
  const sets = cohorts.slice(0, 12).map((one) => new Set(one.rows.map((row) => row.hash)));
  for (let i = 0; i < sets.length; i += 1) for (let j = i + 1; j < sets.length; j += 1) {
    let count = cohorts[i].run !== cohorts[j].run ? 0.5 : 0;
    for (const hash of sets[i]) if (sets[j].has(hash)) count += 1;
    if (count >= 1 && count >= most) { most = count; best = [cohorts[i].name, cohorts[j].name]; }
  }
  return best;
}

function byTask(rows) {
  const found = new Map();
  for (const row of rows) { const name = row.task + '\u0000' + row.hash; if (!found.has(name)) found.set(name, []); found.get(name).push(row); }
  return found;
}
const meanOf = (rows) => { const values = rows.map((row) => row.reward).filter(isNumber); return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; };

// A task is solved where at least half of its attempts are.
const solved = (list) => list.filter((row) => row.outcome === 'success').length >= list.length / 2;
const KINDS = {both: 'solved by both', gained: 'gained', lost: 'lost', neither: 'by neither', differ: 'another reward', all: 'all'};
const kindOf = (row) => (solved(row.a) ? (solved(row.b) ? 'both' : 'lost') : solved(row.b) ? 'gained' : 'neither');
const isKind = (row, kind) => kind === 'all' || (kind === 'differ' ? Math.abs(row.apart) > 1e-9 : kindOf(row) === kind);

// How many tasks each of the two solved, the other, both or neither; a number lists its tasks.
function solvedTable(a, b, rows, fill) {
  const [first, second] = [a, b].map((one) => shortLabel(one.label));
  const pick = (kind) => el('button', {type: 'button', class: 'small-button', 'data-tasks': kind, 'aria-pressed': String(versus.tasks === kind), on: {click: () => { versus.tasks = kind; remember(); fill(); }}},
    el('b', {}, String(rows.filter((row) => isKind(row, kind)).length)), ` ${KINDS[kind]}`);
  const line = (title, kinds) => el('tr', {}, el('th', {scope: 'row'}, title), kinds.map((kind) => el('td', {}, pick(kind))));
  return el('div', {class: 'solved'}, el('div', {class: 'card scroll', tabindex: '0'}, el('table', {id: 'solved'}, el('thead', {}, el('tr', {}, el('td', {}), el('th', {}, `${second} solves it`), el('th', {}, `${second} does not`))),
    el('tbody', {}, line(`${first} solves it`, ['both', 'lost']), line(`${first} does not`, ['gained', 'neither'])))),
  el('p', {class: 'group'}, pick('differ'), pick('all')));
}

function taskTable(a, b, fill) {
  const first = byTask(a.rows), second = byTask(b.rows);
  const shared = [...first.keys()].filter((name) => second.has(name));
  const rows = shared.map((name) => ({name, a: first.get(name), b: second.get(name), apart: (meanOf(second.get(name)) ?? 0) - (meanOf(first.get(name)) ?? 0)}));
  if (!(versus.tasks in KINDS)) versus.tasks = 'differ';
  const wanted = rows.filter((row) => isKind(row, versus.tasks)).sort((x, y) => Math.abs(y.apart) - Math.abs(x.apart));
  const dots = (list) => el('span', {class: 'outcomes'}, list.slice(0, 16).map((row) => el('span', {class: 'dot ' + dotKind(row.outcome), title: `${row.outcome}, ${figure(row.reward)}`})), el('span', {class: 'faint small'}, ' ' + figure(meanOf(list))));
  const better = rows.filter((row) => row.apart > 1e-9).length, worse = rows.filter((row) => row.apart < -1e-9).length;
  if (!shared.length) return [el('p', {class: 'card note'}, 'They have no task in common.')];
  const open = (row) => side(row.a.length + row.b.length <= 2 ? [...row.a, ...row.b] : [...row.a.slice(0, 4), ...row.b.slice(0, 4)]);
  return [el('p', {class: 'soft small'}, `${plural(shared.length, 'shared task')}; the second got more reward on ${better}, less on ${worse}. A row opens both side by side.`), solvedTable(a, b, rows, fill),
    el('div', {class: 'card scroll', tabindex: '0'}, el('table', {id: 'tasks'}, el('thead', {}, el('tr', {}, el('th', {}, 'Task'), el('th', {class: 'question'}, 'Question'), el('th', {}, shortLabel(a.label)), el('th', {}, shortLabel(b.label)), el('th', {class: 'n'}, 'Difference'))),
      el('tbody', {}, wanted.slice(0, 300).map((row) => el('tr', {class: 'link', tabindex: '0', on: {click: () => open(row), keydown: (event) => { if (event.key === 'Enter') open(row); }}},
        el('td', {}, row.a[0].task), el('td', {class: 'question soft small'}, row.a[0].question || ''), el('td', {}, dots(row.a)), el('td', {}, dots(row.b)), el('td', {class: 'n'}, signed(row.apart))))))),
    wanted.length > 300 ? el('p', {class: 'faint small'}, `The first 300 of ${wanted.length}.`) : null].filter(Boolean);
}

// Whether all episodes begin with the same messages, which are then shown once.
function samePrompt(found) {
  const prompts = found.map((one) => (one && one.turns && one.turns.length ? JSON.stringify(one.turns[0].messages) : null));
  return found.length > 1 && prompts[0] !== null && prompts[0] !== '[]' && prompts.every((prompt) => prompt === prompts[0]);
}

// An episode for its column: without the common prompt, and with the place in each turn where its reply leaves the first one's.
function besideOthers(found, place, folded) {
  const one = found[place], first = found[0];
  if (!one.turns) return one;
  const written = (turn) => turn.spans.filter((span) => span.origin === 'sampled').flatMap((span) => span.texts);
  const turns = one.turns.map((turn, at) => {
    const shown = folded && at === 0 ? {...turn, messages: [], spans: turn.spans.filter((span) => span.origin === 'sampled')} : {...turn};
    const other = place && first && first.turns ? first.turns[at] : null;
    if (!place || !first || !first.turns) return shown;
    const [mine, theirs] = [written(turn), other ? written(other) : []];
    let same = 0;
    while (same < mine.length && mine[same] === theirs[same]) same += 1;
    shown.apart = same === mine.length && mine.length === theirs.length ? null : same;
    shown.compared = !other ? 'no such turn in the first' : JSON.stringify(other.reply) === JSON.stringify(turn.reply) ? 'same reply' : 'differs';
    return shown;
  });
  return {...one, turns};
}

// Columns whose turns are beside each other: a turn is as high as the highest of its number.
function aligned(rows, contents) {
  const turnOf = (node) => (node.dataset && node.dataset.turn !== undefined ? Number(node.dataset.turn) : null);
  const high = Math.max(0, ...contents.map((nodes) => nodes.filter((node) => turnOf(node) !== null).length));
  return contents.map((nodes) => {
    const first = nodes.findIndex((node) => turnOf(node) !== null), before = first < 0 ? nodes : nodes.slice(0, first);
    const after = first < 0 ? [] : nodes.slice(first).filter((node) => turnOf(node) === null);
    const column = el('div', {class: 'column'}, el('div', {}, before), nodes.filter((node) => turnOf(node) !== null), el('div', {class: 'after'}, after));
    column.style.gridRow = `1 / span ${high + 2}`;
    column.lastChild.style.gridRow = String(high + 2);
    return column;
  });
}

function sidePage(rows) {
  const tools = el('div', {class: 'tools'});
  const columns = el('div', {class: 'columns'});
  const prompt = el('div', {});
  const page = el('div', {class: 'wide full'}, el('div', {class: 'section-head'}, el('h2', {}, new Set(rows.map((row) => row.task)).size === 1 ? rows[0].task : 'Side by side'), el('span', {class: 'soft small'}, plural(rows.length, 'episode'), rows.length > 1 ? '; underlined: what differs from the first one’s reply' : '')), tools, prompt, columns);
  const found = new Array(rows.length).fill(null);
  const again = () => {
    tools.replaceChildren(...put(el('div', {}), controls(again, rows, found)).childNodes);
    const folded = samePrompt(found);
    prompt.replaceChildren(...(folded ? [el('details', {id: 'common-prompt'}, el('summary', {class: 'small'}, 'The prompt, the same in all'), found[0].turns[0].messages.map(messageNode))] : []));
    columns.replaceChildren(...aligned(rows, rows.map((row, place) => [
      el('div', {class: 'card column-head'}, el('div', {class: 'episode-head'}, el('a', {href: `#/episode/${row.run}/${row.number}`}, el('span', {class: 'dot ' + colourOf(row.run)}), runAndPart(row.run, row.part)), badge(row.outcome)),
        el('div', {class: 'facts'}, fact('attempt', row.attempt), fact('reward', figure(row.reward)), advantageOf(row) === null ? null : fact('advantage', signed(advantageOf(row))), fact('turns', row.turns), row.logprob === null ? null : fact('mean log-prob', figure(row.logprob)))),
      ...(found[place] ? turnsOf(besideOthers(found, place, folded), row) : [el('p', {class: 'faint'}, 'Opening …')])])));
  };
  shownEpisode = {row: rows[0], again, group: rows};
  again();
  rows.forEach((row, place) => episodeAt(row.run, row.number).then((one) => { found[place] = one; again(); }).catch((error) => { found[place] = {fault: error.message}; again(); }));
  return page;
}
