// The result first: every rated part of the runs in the order of the stages, with its interval on one axis and its verdict.
const WIDE = 300;
const shareAt = (value) => 6 + Math.max(0, Math.min(1, value)) * (WIDE - 12);

function whisker(line, kind) {
  const node = svg('svg', {class: 'whisker ' + kind, viewBox: `0 0 ${WIDE} 18`, role: 'img', 'aria-label': `${percent(line.rate)}, interval ${percent(line.low)} to ${percent(line.high)}`});
  for (const at of [0, 0.25, 0.5, 0.75, 1]) node.append(svg('line', {class: 'grid', x1: shareAt(at), x2: shareAt(at), y1: 0, y2: 18}));
  if (isNumber(line.low) && isNumber(line.high)) node.append(svg('line', {class: 'range', x1: shareAt(line.low), x2: shareAt(line.high), y1: 9, y2: 9}));
  node.append(svg('circle', {cx: shareAt(line.rate), cy: 9, r: 4.5}));
  return node;
}
function axis() {
  const node = svg('svg', {class: 'whisker', viewBox: `0 0 ${WIDE} 14`, role: 'img', 'aria-label': 'from 0 to 100 %'});
  for (const at of [0, 0.5, 1]) node.append(svg('text', {x: shareAt(at), y: 11, 'text-anchor': at === 0 ? 'start' : at === 1 ? 'end' : 'middle'}, `${100 * at} %`));
  return node;
}

// Parts of one environment and split are compared with each other; validations of a training have no episodes here.
function resultGroups() {
  const groups = new Map();
  const add = (name, line) => { if (!groups.has(name)) groups.set(name, []); groups.get(name).push(line); };
  for (const line of shownRuns().flatMap((run) => run.table)) {
    if (line.kept || !isNumber(line.success_rate)) continue;
    add(`${line.environment}, ${line.split || 'test'} tasks`, {label: line.label, run: line.run, part: line.part, environment: line.environment, rate: line.success_rate, low: line.success_low, high: line.success_high, tasks: line.tasks});
  }
  for (const one of linesOf()) {
    const series = one.curve.series['val/success/mean'];
    const points = series && !one.run.table.some((line) => line.part === 'validation' && !line.kept) ? pointsOf(series) : [];
    for (const point of points.length > 1 ? [points[0], points[points.length - 1]] : points) add(state.runs.length > 1 || one.curve.name ? `validation during training, ${shortLabel(one.label)}` : 'validation during training', {label: `${one.label}, step ${point[0]}`, run: one.run.key, rate: point[1], low: point[2], high: point[3]});
  }
  return groups;
}

// The file has the comparisons for every baseline that can be chosen; a server is asked for them.
function comparisonsWith(label) { return live ? state.comparisons : (given.comparisons || {})[label] || (given.comparisons || {})[''] || []; }
function shownComparisons() {
  return comparisonsWith(versus.baseline).filter((found) => ![found.baseline.run, found.trained.run].some((run) => state.hidden.has(run)));
}
function comparisonOf(baseline, line, chosen) {
  const wanted = (found) => found.environment === line.environment && found.baseline.label === baseline.label && found.trained.label === line.label;
  return comparisonsWith(chosen ? chosen.label : versus.baseline).find(wanted) || comparisonsWith('').find(wanted);
}
const verdictKind = (found) => (found && (found.verdict === 'better' || found.verdict === 'worse') ? found.verdict : '');
const baselineOf = (lines) => lines.find((line) => line.label === versus.baseline) || lines[0];

function baselineChoice(groups) {
  const labels = [...new Set([...groups.values()].filter((lines) => lines.length > 1 && lines[0].environment).flatMap((lines) => lines.map((line) => line.label)))];
  if (labels.length < 2) return null;
  const select = el('select', {id: 'baseline', 'aria-label': 'Baseline'}, el('option', {value: ''}, 'the first of each'), labels.filter((label) => live || (given.comparisons || {})[label]).map((label) => el('option', {value: label}, shortLabel(label))));
  select.value = versus.baseline;
  if (select.selectedIndex < 0) { select.selectedIndex = 0; versus.baseline = ''; }
  select.addEventListener('change', () => {
    versus.baseline = select.value;
    remember();
    if (live) loadComparisons().then(stay).catch((error) => { status.textContent = error.message; }); else stay();
  });
  return el('label', {class: 'small soft'}, 'baseline ', select);
}

// The name of a part; that of the only run says nothing.
function shortLabel(label) { return state.runs.length === 1 && label.startsWith(state.runs[0].name + ' · ') ? label.slice(state.runs[0].name.length + 3) : label; }
const shortSentence = (text) => (state.runs.length === 1 ? text.replaceAll(`'${state.runs[0].name} · `, "'") : text);

function resultBlock(name, lines) {
  const baseline = baselineOf(lines), others = lines.filter((line) => line !== baseline), last = others[others.length - 1];
  const found = last ? comparisonOf(baseline, last, baseline) : null;
  const body = lines.map((line, place) => {
    const before = place && lines[place - 1] !== baseline && line !== baseline ? lines[place - 1] : null;
    const against = [...(line === baseline ? [] : [['the baseline', baseline]]), ...(before ? [['the one before', before]] : [])].map(([title, other]) => [title, comparisonOf(other, line, baseline)]).filter(([, one]) => one);
    return el('tr', {class: line === baseline && others.length ? 'baseline' : ''}, el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), shortLabel(line.label)),
      el('td', {class: 'whisker-cell'}, whisker(line, line === baseline ? '' : verdictKind(comparisonOf(baseline, line, baseline)))),
      el('td', {class: 'n'}, el('b', {}, percent(line.rate)), isNumber(line.low) ? el('span', {class: 'range'}, ` ${interval(line.low, line.high)}`) : null), el('td', {class: 'n'}, line.tasks ?? ''),
      el('td', {class: 'verdicts'}, line === baseline && others.length && line.environment ? el('span', {class: 'soft small'}, 'baseline') : null,
        against.map(([title, one]) => [el('span', {class: 'whole'}, badge(one.verdict, verdictKind(one)), el('span', {class: 'soft small'}, ` ${verdictKind(one) ? 'than' : 'from'} ${title}`)), ' '])));
  });
  const alone = `${shortLabel(baseline.label)}: ${percent(baseline.rate)}${isNumber(baseline.low) ? ` ${interval(baseline.low, baseline.high)}` : ''}${baseline.tasks ? ` of ${plural(baseline.tasks, 'task')}` : ''}.`;
  const sentence = found ? shortSentence(found.sentence) : last ? `${shortLabel(baseline.label)}: ${percent(baseline.rate)}; ${shortLabel(last.label)}: ${percent(last.rate)}.` : alone;
  return el('div', {class: 'card result on-axis'}, el('p', {}, found ? [badge(found.verdict, verdictKind(found)), ' '] : null, sentence),
    el('div', {class: 'scroll', tabindex: '0'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, name), el('th', {}, axis()), el('th', {class: 'n'}, 'Success [95 %]'), el('th', {class: 'n'}, 'Tasks'), el('th', {}, 'Verdict'))), el('tbody', {}, body))));
}

function resultSection() {
  const groups = resultGroups();
  if (!groups.size) return null;
  return el('section', {'aria-label': 'Result', id: 'result'}, el('div', {class: 'section-head'}, el('h2', {}, 'Result'),
    el('span', {class: 'soft small'}, 'Success with 95 % intervals over tasks, stages in their order. A verdict is the paired test on the same tasks, corrected for all comparisons (Holm).'), baselineChoice(groups)),
  [...groups].map(([name, lines]) => resultBlock(name, lines)), matrixBlock());
}

// Many policies in many environments: one row and one column each.
function matrixBlock() {
  const lines = shownRuns().flatMap((run) => run.table).filter((line) => !line.kept && isNumber(line.success_rate));
  const environments = [...new Set(lines.map((line) => line.environment))], labels = [...new Set(lines.map((line) => line.label))];
  const inSeveral = (label) => new Set(lines.filter((line) => line.label === label).map((line) => line.environment)).size > 1;
  if (labels.length < 2 || !labels.some(inSeveral)) return null;
  const cell = (label, environment) => {
    const line = lines.find((one) => one.label === label && one.environment === environment);
    if (!line) return el('td', {class: 'n faint'}, '–');
    const group = lines.filter((one) => one.environment === environment && (one.split || 'test') === (line.split || 'test'));
    const baseline = baselineOf(group), kind = line === baseline ? '' : verdictKind(comparisonOf(baseline, line, baseline));
    return el('td', {class: 'n cell ' + kind, title: kind ? `${kind} than ${baseline.label}` : ''}, el('b', {}, percent(line.success_rate)), isNumber(line.success_low) ? el('span', {class: 'range'}, ` ${interval(line.success_low, line.success_high)}`) : null, kind ? el('span', {class: 'mark', 'aria-label': kind}, kind === 'better' ? ' ▲' : ' ▼') : null);
  };
  return el('div', {class: 'card scroll result', tabindex: '0'}, el('table', {id: 'matrix'}, el('caption', {class: 'soft small'}, 'Policies and environments; ▲ better, ▼ worse than the baseline of the environment.'),
    el('thead', {}, el('tr', {}, el('th', {}, 'Policy'), environments.map((name) => el('th', {class: 'n'}, name)))),
    el('tbody', {}, labels.map((label) => el('tr', {}, el('th', {scope: 'row'}, shortLabel(label)), environments.map((name) => cell(label, name)))))));
}

// What failed, and which tools erred: counts over the listed episodes; a row opens them.
const CAUSES = {
  kind: ['kind of task', (row) => row.kind || 'no kind'],
  error: ['error', (row) => (row.error ? row.error.replace(/\d+/g, '#').slice(0, 90) : 'no error')],
  last: ['last action', (row) => row.last || 'no reply'],
  tool: ['tool that failed', (row) => Object.entries(row.tools || {}).filter(([, [, errors]]) => errors).map(([name]) => name).join(', ') || (Object.keys(row.tools || {}).length ? 'none failed' : 'no tool called')],
};
const causeOf = (row, kind) => CAUSES[kind][1](row);
const failures = {by: '', of: ''};

function clustersBy(rows, kind) {
  const clusters = new Map();
  for (const row of rows) {
    const cause = causeOf(row, kind), name = [row.outcome, cause].join('\u0000');
    if (!clusters.has(name)) clusters.set(name, {outcome: row.outcome, cause, count: 0});
    clusters.get(name).count += 1;
  }
  return [...clusters.values()].sort((a, b) => b.count - a.count);
}

// Of each kind of task, how many episodes did not succeed.
function kindTable(rows, where) {
  const kinds = new Map();
  for (const row of rows) {
    const name = causeOf(row, 'kind');
    if (!kinds.has(name)) kinds.set(name, {name, failed: 0, count: 0});
    kinds.get(name).count += 1;
    if (row.outcome !== 'success') kinds.get(name).failed += 1;
  }
  const found = [...kinds.values()].sort((a, b) => b.failed / b.count - a.failed / a.count || b.count - a.count).slice(0, 12);
  return el('table', {id: 'clusters'}, el('thead', {}, el('tr', {}, el('th', {}, 'Not successful, by kind of task'), ['Episodes', 'Of', 'Share'].map((name) => el('th', {class: 'n'}, name)))),
    el('tbody', {}, found.map((one) => el('tr', opens({...where, cause: `kind: ${one.name}`}), el('td', {}, one.name), [one.failed, one.count].map((count) => el('td', {class: 'n'}, count.toLocaleString('en'))), el('td', {class: 'n'}, percent(one.failed / one.count))))));
}

function toolTable() {
  const tools = new Map();
  for (const row of allRows()) for (const [name, [calls, errors]] of Object.entries(row.tools || {})) {
    const key = [row.run, row.part, name].join('\u0000');
    if (!tools.has(key)) tools.set(key, {run: row.run, part: row.part, name, calls: 0, errors: 0, episodes: 0, seconds: []});
    const one = tools.get(key);
    one.calls += calls; one.errors += errors; one.episodes += 1; one.seconds.push(...((row.seconds || {})[name] || []));
  }
  for (const one of tools.values()) one.seconds.sort((a, b) => a - b);
  return [...tools.values()].sort((a, b) => b.errors - a.errors || b.calls - a.calls).slice(0, 20);
}
// The time of a call below which this share of the calls is; times are sorted.
function latency(seconds, share) {
  if (!seconds.length) return '–';
  const value = seconds[Math.min(seconds.length - 1, Math.ceil(share * seconds.length) - 1)];
  return value < 0.001 ? '< 1 ms' : value < 1 ? `${figure(1000 * value, 2)} ms` : `${figure(value, 2)} s`;
}

const opens = (wanted) => ({class: 'link', tabindex: '0', on: {click: () => openList(wanted), keydown: (event) => { if (event.key === 'Enter') openList(wanted); }}});

function failuresSection() {
  const failed = allRows().filter((row) => row.outcome !== 'success'), used = toolTable();
  if (!failed.length && !used.length) return null;
  const table = el('div', {});
  // Of the last stage, unless another is chosen: what the first model could not do says little.
  const cohorts = cohortsShown().filter((one) => one.rows.some((row) => row.outcome !== 'success'));
  const rated = shownRuns().flatMap((run) => run.table).filter((line) => !line.kept && isNumber(line.success_rate) && line.part !== 'validation').pop();
  const newest = rated ? cohorts.find((one) => one.run === rated.run && (one.name.split('\u0000')[1] === rated.part || !rated.part)) : null;
  if (!cohorts.some((one) => one.name === failures.of) && failures.of !== 'all') failures.of = newest ? newest.name : 'all';
  let rows = failed;
  const of = el('select', {id: 'failures-of', 'aria-label': 'Failures of'}, el('option', {value: 'all'}, 'all episodes'), cohorts.map((one) => el('option', {value: one.name}, shortLabel(one.label))));
  of.value = failures.of;
  of.addEventListener('change', () => { failures.of = of.value; fill(); });
  // By the kind of task, where tasks have several; else by the errors, where most have one; else by the last action, which all episodes have.
  const kinds = new Set(allRows().map((row) => row.kind).filter(Boolean)).size > 1;
  const kind = () => failures.by || (kinds ? 'kind' : rows.filter((row) => row.error).length >= rows.length / 2 ? 'error' : 'last');
  const choice = el('span', {class: 'segmented', role: 'group', 'aria-label': 'Failures by'}, Object.entries(CAUSES).filter(([name]) => name !== 'kind' || kinds).map(([name, [title]]) => el('button', {type: 'button', 'data-cause': name, on: {click: () => { failures.by = name; fill(); }}}, title)));
  const fill = () => {
    const chosen = cohorts.find((one) => one.name === failures.of), [run, part] = chosen ? chosen.name.split('\u0000') : ['', ''];
    rows = chosen ? chosen.rows.filter((row) => row.outcome !== 'success') : failed;
    for (const button of choice.children) button.setAttribute('aria-pressed', String(button.dataset.cause === kind()));
    if (kind() === 'kind') { table.replaceChildren(kindTable(chosen ? chosen.rows : allRows(), {run, part: part.split(' · step ')[0]})); return; }
    table.replaceChildren(el('table', {id: 'clusters'}, el('thead', {}, el('tr', {}, el('th', {}, `Not successful, by ${CAUSES[kind()][0]}`), el('th', {class: 'n'}, 'Episodes'), el('th', {class: 'n'}, 'Share'))),
      el('tbody', {}, clustersBy(rows, kind()).slice(0, 12).map((one) => el('tr', opens({run, part: part.split(' · step ')[0], outcome: one.outcome, cause: `${kind()}: ${one.cause}`}), el('td', {}, badge(one.outcome), ' ', one.cause), el('td', {class: 'n'}, one.count.toLocaleString('en')), el('td', {class: 'n'}, percent(one.count / rows.length)))))));
  };
  fill();
  const timed = used.some((one) => one.seconds.length);
  const where = (one) => ' ' + [state.runs.length > 1 ? runOf(one.run).name : '', one.part].filter(Boolean).join(' · ');
  return el('section', {'aria-label': 'Failures and tools', id: 'failures'}, el('div', {class: 'section-head'}, el('h2', {}, 'Failures and tools'), el('span', {class: 'soft small'}, 'Counts over the episodes listed here; a row opens them.'), failed.length ? [cohorts.length > 1 ? el('label', {class: 'small soft'}, 'of ', of) : null, choice] : null),
    el('div', {class: 'samples'}, failed.length ? el('div', {class: 'card scroll', tabindex: '0'}, table) : null,
      used.length ? el('div', {class: 'card scroll', tabindex: '0'}, el('table', {id: 'tools'}, el('thead', {}, el('tr', {}, el('th', {}, 'Tool'), ['Episodes', 'Calls', 'Errors', 'Share', ...(timed ? ['Median', '95 %'] : [])].map((name) => el('th', {class: 'n', title: {Median: 'Median time of a call', '95 %': '95 % of the calls took at most so long'}[name]}, name)))),
        el('tbody', {}, used.map((one) => el('tr', opens({run: one.run, part: one.part, text: one.name}), el('td', {}, el('span', {class: 'dot ' + colourOf(one.run)}), one.name, el('span', {class: 'faint small'}, where(one))),
          el('td', {class: 'n'}, one.episodes.toLocaleString('en')), el('td', {class: 'n'}, one.calls.toLocaleString('en')), el('td', {class: 'n'}, one.errors.toLocaleString('en')), el('td', {class: 'n'}, percent(one.errors / one.calls)), timed ? [0.5, 0.95].map((share) => el('td', {class: 'n whole'}, latency(one.seconds, share))) : null))))) : null));
}
