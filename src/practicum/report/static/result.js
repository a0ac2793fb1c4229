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
  const node = svg('svg', {class: 'whisker', viewBox: `0 0 ${WIDE} 14`, 'aria-hidden': 'true'});
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
    const points = series && !one.run.table.some((line) => line.part === 'validation') ? pointsOf(series) : [];
    for (const point of points.length > 1 ? [points[0], points[points.length - 1]] : points) add('validation during training', {label: `${one.label}, step ${point[0]}`, run: one.run.key, rate: point[1], low: point[2], high: point[3]});
  }
  return groups;
}

function comparisonOf(baseline, line) {
  return state.comparisons.find((found) => found.environment === line.environment && found.baseline.label === baseline.label && found.trained.label === line.label);
}
const verdictKind = (found) => (found && (found.verdict === 'better' || found.verdict === 'worse') ? found.verdict : '');

function resultSection() {
  const groups = resultGroups();
  if (!groups.size) return null;
  const blocks = [...groups].map(([name, lines]) => {
    const first = lines[0], last = lines[lines.length - 1];
    const found = lines.length > 1 ? comparisonOf(first, last) : null;
    const body = lines.map((line, place) => {
      const against = place ? [['first', first], ...(place > 1 ? [['before', lines[place - 1]]] : [])].map(([title, other]) => [title, comparisonOf(other, line)]).filter(([, one]) => one) : [];
      return el('tr', {}, el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), line.label), el('td', {class: 'whisker-cell'}, whisker(line, place ? verdictKind(comparisonOf(first, line)) : '')),
        el('td', {class: 'n'}, el('b', {}, percent(line.rate)), isNumber(line.low) ? el('span', {class: 'range'}, ` [${(100 * line.low).toFixed(1)}, ${(100 * line.high).toFixed(1)}]`) : null), el('td', {class: 'n'}, line.tasks ?? ''),
        el('td', {}, against.map(([title, one]) => [el('span', {class: 'soft small'}, `than the ${title === 'first' ? 'first' : 'one before'}: `), badge(one.verdict, verdictKind(one)), ' '])));
    });
    const sentence = found ? found.sentence : lines.length > 1 ? `${first.label}: ${percent(first.rate)}; ${last.label}: ${percent(last.rate)}.` : `${first.label}: ${percent(first.rate)}${isNumber(first.low) ? ` [${(100 * first.low).toFixed(1)}, ${(100 * first.high).toFixed(1)}]` : ''}${first.tasks ? ` of ${plural(first.tasks, 'task')}` : ''}.`;
    return el('div', {class: 'card result'}, el('p', {}, found ? [badge(found.verdict, verdictKind(found)), ' '] : null, sentence), el('div', {class: 'scroll'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, name), el('th', {}, axis()), el('th', {class: 'n'}, 'Success [95 %]'), el('th', {class: 'n'}, 'Tasks'), el('th', {}, 'Verdict'))), el('tbody', {}, body))));
  });
  return el('section', {'aria-label': 'Result', id: 'result'}, el('div', {class: 'section-head'}, el('h2', {}, 'Result'), el('span', {class: 'soft small'}, 'Success with 95 % intervals over tasks, stages in their order. A verdict is the paired test on the same tasks, corrected for all comparisons (Holm).')), blocks);
}

// What failed, and which tools erred: counts over the listed episodes; a row opens them.
function failuresSection() {
  const rows = allRows().filter((row) => row.outcome !== 'success');
  const clusters = new Map();
  for (const row of rows) {
    const cause = row.error ? row.error.replace(/\d+/g, '#').slice(0, 90) : Object.keys(row.tools || {}).length ? `last tool: ${Object.keys(row.tools).pop()}` : row.outcome;
    const name = [row.outcome, cause].join('\u0000');
    if (!clusters.has(name)) clusters.set(name, {outcome: row.outcome, cause, count: 0, row});
    clusters.get(name).count += 1;
  }
  const tools = new Map();
  for (const row of allRows()) for (const [name, [calls, errors]] of Object.entries(row.tools || {})) {
    const key = [row.run, row.part, name].join('\u0000');
    if (!tools.has(key)) tools.set(key, {run: row.run, part: row.part, name, calls: 0, errors: 0, episodes: 0});
    const one = tools.get(key);
    one.calls += calls; one.errors += errors; one.episodes += 1;
  }
  if (!clusters.size && !tools.size) return null;
  const opened = (wanted) => ({class: 'link', tabindex: '0', on: {click: () => openList(wanted), keydown: (event) => { if (event.key === 'Enter') openList(wanted); }}});
  const failed = [...clusters.values()].sort((a, b) => b.count - a.count).slice(0, 12);
  const used = [...tools.values()].sort((a, b) => b.errors - a.errors || b.calls - a.calls).slice(0, 20);
  return el('section', {'aria-label': 'Failures and tools', id: 'failures'}, el('div', {class: 'section-head'}, el('h2', {}, 'Failures and tools'), el('span', {class: 'soft small'}, 'Counts over the episodes listed here.')),
    el('div', {class: 'samples'},
      failed.length ? el('div', {class: 'card scroll'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Not successful, by error or tool'), el('th', {class: 'n'}, 'Episodes'))), el('tbody', {}, failed.map((one) => el('tr', opened({outcome: one.outcome, text: one.row.error ? one.row.error.split(/\d/)[0].replace('…', '').trim() : ''}), el('td', {}, badge(one.outcome), ' ', one.cause), el('td', {class: 'n'}, one.count.toLocaleString('en'))))))) : null,
      used.length ? el('div', {class: 'card scroll'}, el('table', {id: 'tools'}, el('thead', {}, el('tr', {}, el('th', {}, 'Tool'), ['Episodes', 'Calls', 'Errors', 'Share'].map((name) => el('th', {class: 'n'}, name)))), el('tbody', {}, used.map((one) => el('tr', opened({run: one.run, part: one.part, text: one.name}), el('td', {}, el('span', {class: 'dot ' + colourOf(one.run)}), one.name, el('span', {class: 'faint small'}, shownRuns().length > 1 || one.part ? ` ${runOf(one.run).name}${one.part ? ' · ' + one.part : ''}` : '')), el('td', {class: 'n'}, one.episodes.toLocaleString('en')), el('td', {class: 'n'}, one.calls.toLocaleString('en')), el('td', {class: 'n'}, one.errors.toLocaleString('en')), el('td', {class: 'n'}, percent(one.errors / one.calls))))))) : null));
}
