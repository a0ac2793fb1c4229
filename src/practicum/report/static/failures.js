// What failed, and which tools erred: counts over the listed episodes. A row opens exactly the episodes that it counts.
const CAUSES = {
  kind: ['kind of task', (row) => row.kind || 'no kind'],
  error: ['reply format', (row) => (row.error ? row.error.replace(/\d+/g, '#').slice(0, 90) : 'no unusable reply')],
  last: ['last action', (row) => row.last || 'no reply'],
  tool: ['tool that failed', (row) => Object.entries(row.tools || {}).filter(([, [, errors]]) => errors).map(([name]) => name).join(', ') || (Object.keys(row.tools || {}).length ? 'none failed' : 'no tool called')],
};
const causeOf = (row, kind) => CAUSES[kind][1](row);
// Further filters of the list: what a row of the table of tools counts.
const ANY_TOOL = '(any)';
const TOOL_FILTERS = {
  calls: ['calls the tool', (row, name) => Object.keys(row.tools || {}).some((one) => name === ANY_TOOL || one === name)],
  fails: ['a call failed of', (row, name) => Object.entries(row.tools || {}).some(([one, [, errors]]) => errors && (name === ANY_TOOL || one === name))],
};
// The value is "tool: text".
TOOL_FILTERS.says = ['a call failed with', (row, value) => Object.entries(row.toolErrors || {}).some(([name, texts]) => Object.keys(texts).some((text) => value === `${name}: ${text}`))];
const causeTitle = (kind) => (CAUSES[kind] || TOOL_FILTERS[kind] || [null])[0];
const hasCause = (row, kind, cause) => (kind in CAUSES ? causeOf(row, kind) === cause : TOOL_FILTERS[kind][1](row, cause));
const NOT_SUCCESS = 'not success';
const hasOutcome = (row, outcome) => (outcome === NOT_SUCCESS ? row.outcome !== 'success' : row.outcome === outcome);
const MAX_CLUSTERS = 12, MAX_TOOL_ROWS = 20, MAX_ERROR_ROWS = 12;
const failures = {by: '', of: ''}; // what was chosen; '': nothing

const opens = (wanted, kind) => ({class: 'link ' + (kind || ''), tabindex: '0', on: {click: () => openList(wanted), keydown: (event) => { if (event.key === 'Enter') openList(wanted); }}});
const numbers = (...cells) => cells.map((value) => el('td', {class: 'n'}, typeof value === 'number' ? value.toLocaleString('en') : value));

// Unsuccessful episodes by cause: [what, {outcome, cause}, count, of how many].
function clustersBy(rows, kind) {
  const clusters = new Map();
  for (const row of rows) {
    const cause = causeOf(row, kind), failed = row.outcome !== 'success';
    if (!failed && kind !== 'kind') continue;
    const outcome = kind === 'kind' ? NOT_SUCCESS : row.outcome, name = [outcome, cause].join('\u0000');
    if (!clusters.has(name)) clusters.set(name, {outcome, cause, count: 0, of: 0});
    const one = clusters.get(name);
    one.of += 1;
    if (failed) one.count += 1;
  }
  const share = (one) => (kind === 'kind' ? one.count / one.of : one.count);
  return [...clusters.values()].filter((one) => one.count).sort((a, b) => share(b) - share(a) || b.count - a.count);
}

// The rows with the most failures, those beyond in one row, and the sum. Kinds of tasks have a rate; the others a share of all failures.
function clusterTable(rows, kind, where) {
  const found = clustersBy(rows, kind), failed = rows.filter((row) => row.outcome !== 'success').length, byKind = kind === 'kind';
  const shown = found.slice(0, MAX_CLUSTERS), rest = found.slice(MAX_CLUSTERS), sum = (list, name) => list.reduce((total, one) => total + one[name], 0);
  const cells = (count, of) => (byKind ? numbers(count, of, percent(count / of)) : numbers(count, percent(count / failed)));
  return el('table', {id: 'clusters'}, el('thead', {}, el('tr', {}, el('th', {}, `Not successful, by ${CAUSES[kind][0]}`), (byKind ? ['Episodes', 'Of', 'Rate'] : ['Episodes', 'Share']).map((name) => el('th', {class: 'n'}, name)))),
    el('tbody', {}, shown.map((one) => el('tr', opens({...where, outcome: one.outcome, cause: `${kind}: ${one.cause}`}), el('td', {}, byKind ? null : [badge(one.outcome), ' '], one.cause), cells(one.count, one.of))),
      rest.length ? el('tr', {class: 'soft'}, el('td', {}, plural(rest.length, 'further row')), cells(sum(rest, 'count'), sum(rest, 'of'))) : null),
    el('tfoot', {}, el('tr', opens({...where, outcome: NOT_SUCCESS}, 'total'), el('td', {}, 'All'), cells(failed, rows.length))));
}

function toolsOf(rows) {
  const tools = new Map();
  for (const row of rows) for (const [name, [calls, errors]] of Object.entries(row.tools || {})) {
    const step = stepOf(row), key = [row.run, row.part, step, name].join('\u0000');
    if (!tools.has(key)) tools.set(key, {run: row.run, part: row.part, step, name, calls: 0, errors: 0, episodes: 0, failing: 0, seconds: []});
    const one = tools.get(key);
    one.calls += calls; one.errors += errors; one.episodes += 1; one.failing += errors ? 1 : 0;
    for (const seconds of (row.seconds || {})[name] || []) one.seconds.push(seconds);
  }
  for (const one of tools.values()) one.seconds.sort((a, b) => a - b);
  return [...tools.values()].sort((a, b) => b.errors - a.errors || b.calls - a.calls);
}
// The time of a call below which this share of the calls is; times are sorted.
function latency(seconds, share) {
  if (!seconds.length) return '–';
  const value = seconds[Math.min(seconds.length - 1, Math.ceil(share * seconds.length) - 1)];
  return value < 0.001 ? '< 1 ms' : value < 1 ? `${figure(1000 * value, 2)} ms` : `${figure(value, 2)} s`;
}

function toolTable(rows, where, single) {
  const used = toolsOf(rows), timed = used.some((one) => one.seconds.length), sum = (name) => used.reduce((total, one) => total + one[name], 0);
  const with_ = (test) => rows.filter(test).length, any = (row) => TOOL_FILTERS.calls[1](row, ANY_TOOL), failing = (row) => TOOL_FILTERS.fails[1](row, ANY_TOOL);
  const all = {name: ANY_TOOL, calls: sum('calls'), errors: sum('errors'), episodes: with_(any), failing: with_(failing), seconds: used.flatMap((one) => one.seconds).sort((a, b) => a - b)};
  const place = (one) => (one.run ? {run: one.run, part: one.part, step: one.step === null ? '' : String(one.step)} : where);
  const title = (one) => (single || !one.run ? null : el('span', {class: 'faint small'}, ' ' + [state.runs.length > 1 ? runOf(one.run).name : '', partName(one.part), one.step === null ? '' : `step ${one.step}`].filter(Boolean).join(' · ')));
  const line = (one, head) => el('tr', opens({...place(one), cause: `calls: ${one.name}`}, one.run ? '' : 'total'), el('td', {}, one.run ? el('span', {class: 'dot ' + colourOf(one.run)}) : null, head, title(one)), numbers(one.episodes, one.calls),
    el('td', {class: 'n'}, one.failing ? failingButton(one, place(one)) : '0'), numbers(percent(one.errors / one.calls)), timed ? [0.5, 0.95].map((share) => el('td', {class: 'n whole'}, latency(one.seconds, share))) : null);
  const titles = {Errors: 'Calls that failed, and in how many episodes', Median: 'Median time of a call', '95 %': '95 % of the calls took at most so long'};
  return el('table', {id: 'tools'}, el('thead', {}, el('tr', {}, el('th', {}, 'Tool'), ['Episodes', 'Calls', 'Errors', 'Share', ...(timed ? ['Median', '95 %'] : [])].map((name) => el('th', {class: 'n', title: titles[name]}, name)))),
    el('tbody', {}, used.slice(0, MAX_TOOL_ROWS).map((one) => line(one, one.name)), used.length > MAX_TOOL_ROWS ? el('tr', {class: 'soft'}, el('td', {colspan: '7'}, `${plural(used.length - MAX_TOOL_ROWS, 'further row')} with fewer errors and calls`)) : null),
    el('tfoot', {}, line(all, 'All')));
}
// The errors of a tool, which open the episodes that have them; the rest of the row opens all that call it.
function failingButton(one, where) {
  const open = (event) => { event.stopPropagation(); openList({...where, cause: `fails: ${one.name}`}); };
  return el('button', {type: 'button', class: 'as-link', title: 'The episodes with these errors', on: {click: open, keydown: (event) => { if (event.key === 'Enter') { event.preventDefault(); open(event); } }}}, `${one.errors.toLocaleString('en')} in ${plural(one.failing, 'episode')}`);
}

// The texts of the errors of the tools, the most frequent first: [{name, text, calls, episodes}].
function toolErrorsOf(rows) {
  const errors = new Map();
  for (const row of rows) for (const [name, texts] of Object.entries(row.toolErrors || {})) for (const [text, calls] of Object.entries(texts)) {
    const key = [name, text].join('\u0000');
    if (!errors.has(key)) errors.set(key, {name, text, calls: 0, episodes: 0});
    const one = errors.get(key);
    one.calls += calls; one.episodes += 1;
  }
  return [...errors.values()].sort((a, b) => b.calls - a.calls);
}
function toolErrorTable(rows, where) {
  const found = toolErrorsOf(rows), rest = found.slice(MAX_ERROR_ROWS), failing = rows.filter((row) => TOOL_FILTERS.fails[1](row, ANY_TOOL)).length;
  if (!found.length) return null;
  const calls = (list) => list.reduce((sum, one) => sum + one.calls, 0);
  return el('table', {id: 'tool-errors'}, el('thead', {}, el('tr', {}, el('th', {}, 'Error of a tool'), el('th', {class: 'n', title: 'Calls that failed with it'}, 'Calls'), el('th', {class: 'n'}, 'Episodes'))),
    el('tbody', {}, found.slice(0, MAX_ERROR_ROWS).map((one) => el('tr', opens({...where, cause: `says: ${one.name}: ${one.text}`}), el('td', {}, el('b', {}, one.name), ` ${one.text}`), numbers(one.calls, one.episodes))),
      rest.length ? el('tr', {class: 'soft'}, el('td', {}, plural(rest.length, 'further text')), numbers(calls(rest), '')) : null),
    el('tfoot', {}, el('tr', opens({...where, cause: `fails: ${ANY_TOOL}`}, 'total'), el('td', {}, 'All'), numbers(calls(found), failing))));
}

// The episodes of the last stage, because what the first model could not do says little; without one, of the last validation.
function lastCohort() {
  const lines = shownLines(resultGroups()).find((group) => group.some((line) => line.part !== 'validation')), cohorts = cohortsShown();
  if (lines) {
    // A run of several stages before one of a single stage, which may be demonstrations.
    const sequences = sequencesOf(lines), sequence = sequences.filter((one) => one.length > 1).pop() || sequences.pop(), [last] = lastOf(sequence);
    const cohort = cohorts.find((one) => one.run === last.run && (one.part === last.part || !last.part));
    return cohort ? {...cohort, stage: last.label} : null;
  }
  const validations = cohorts.filter((one) => one.step !== null);
  const newest = validations.filter((one) => one.run === validations[validations.length - 1].run).sort((a, b) => a.step - b.step).pop();
  return newest ? {...newest, stage: newest.label} : null;
}
// By the kind of task, where tasks have several; else by the errors, where most have one; else by the last action, which all episodes have.
const severalKinds = () => new Set(allRows().map((row) => row.kind).filter(Boolean)).size > 1;
function usualCause(rows) {
  const failed = rows.filter((row) => row.outcome !== 'success');
  return severalKinds() ? 'kind' : failed.filter((row) => row.error).length >= failed.length / 2 ? 'error' : 'last';
}

function failuresSection() {
  const all = allRows(), failed = all.some((row) => row.outcome !== 'success'), called = all.some((row) => Object.keys(row.tools || {}).length);
  if (!failed && !called) return null;
  const clusters = el('div', {}), tools = el('div', {});
  // Of the last stage, unless it has no failure or another is chosen.
  const cohorts = cohortsShown(), newest = lastCohort();
  const usual = newest && newest.rows.some((row) => row.outcome !== 'success') ? newest.name : 'all';
  const ofNow = () => (failures.of === 'all' || cohorts.some((one) => one.name === failures.of) ? failures.of : usual);
  const of = el('select', {id: 'failures-of', 'aria-label': 'Failures and tools of'}, el('option', {value: 'all'}, 'all episodes'), cohorts.map((one) => el('option', {value: one.name}, shortLabel(one.label))));
  of.value = ofNow();
  of.addEventListener('change', () => { failures.of = of.value; fill(); });
  const kinds = severalKinds();
  const choice = el('span', {class: 'segmented', role: 'group', 'aria-label': 'Failures by'}, Object.entries(CAUSES).filter(([name]) => name !== 'kind' || kinds).map(([name, [title]]) => el('button', {type: 'button', 'data-cause': name, on: {click: () => { failures.by = name; fill(); }}}, title)));
  const fill = () => {
    const chosen = cohorts.find((one) => one.name === ofNow()), rows = chosen ? chosen.rows : all;
    const where = chosen ? {run: chosen.run, part: chosen.part, step: chosen.step === null ? '' : String(chosen.step)} : {};
    const by = failures.by || usualCause(rows);
    for (const button of choice.children) button.setAttribute('aria-pressed', String(button.dataset.cause === by));
    clusters.replaceChildren(rows.some((row) => row.outcome !== 'success') ? clusterTable(rows, by, where) : el('p', {class: 'note'}, `All ${plural(rows.length, 'episode')} succeeded.`));
    tools.replaceChildren(...rows.some((row) => Object.keys(row.tools || {}).length) ? [toolTable(rows, where, Boolean(chosen)), toolErrorTable(rows, where)].filter(Boolean) : [el('p', {class: 'note'}, 'No tool was called.')]);
  };
  fill();
  return el('section', {'aria-label': 'Failures and tools', id: 'failures'}, el('div', {class: 'section-head'}, el('h2', {}, 'Failures and tools'), el('span', {class: 'soft small'}, 'A row opens the episodes that it counts.'), cohorts.length > 1 ? el('label', {class: 'small soft'}, 'of ', of) : null, failed ? choice : null),
    el('div', {class: 'samples' + (failed && called ? ' uneven' : '')}, failed ? el('div', {class: 'card scroll', tabindex: '0'}, clusters) : null, called ? el('div', {class: 'card scroll', tabindex: '0'}, tools) : null));
}
