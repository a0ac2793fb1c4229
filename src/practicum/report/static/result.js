// The result first: every rated part of the runs in the order of the stages, with its interval on one axis and its verdict.
const WIDE = 300;
const shareAt = (value, top) => 6 + Math.max(0, Math.min(1, value / top)) * (WIDE - 12);
// The end of an axis: rates of a few percent would be one dot at its beginning.
const axisTop = (lines) => { const most = Math.max(...lines.map((line) => (isNumber(line.high) ? line.high : line.rate))); return [0.1, 0.25, 0.5].find((top) => most <= top) || 1; };

function whisker(line, kind, top) {
  const node = svg('svg', {class: 'whisker ' + kind, viewBox: `0 0 ${WIDE} 18`, role: 'img', 'aria-label': `${percent(line.rate)}, interval ${percent(line.low)} to ${percent(line.high)}`});
  for (const at of [0, 0.25, 0.5, 0.75, 1]) node.append(svg('line', {class: 'grid', x1: shareAt(at, 1), x2: shareAt(at, 1), y1: 0, y2: 18}));
  if (isNumber(line.low) && isNumber(line.high)) node.append(svg('line', {class: 'range', x1: shareAt(line.low, top), x2: shareAt(line.high, top), y1: 9, y2: 9}));
  node.append(svg('circle', {cx: shareAt(line.rate, top), cy: 9, r: 4.5}));
  return node;
}
function axis(top) {
  const node = svg('svg', {class: 'whisker', viewBox: `0 0 ${WIDE} 14`, role: 'img', 'aria-label': `from 0 to ${100 * top} %`});
  for (const at of [0, 0.5, 1]) node.append(svg('text', {x: shareAt(at, 1), y: 11, 'text-anchor': at === 0 ? 'start' : at === 1 ? 'end' : 'middle'}, `${figure(100 * at * top)} %`));
  return node;
}

// A difference with its interval beside zero, on the axis of all differences.
const apartAt = (value, reach) => shareAt((value / reach + 1) / 2, 1);
function apartWhisker({difference, low, high}, kind, reach) {
  const node = svg('svg', {class: 'whisker ' + kind, viewBox: `0 0 ${WIDE} 18`, role: 'img', 'aria-label': `difference ${points(difference)} points, interval ${points(low ?? difference)} to ${points(high ?? difference)}`});
  for (const at of [-1, 0, 1]) node.append(svg('line', {class: at ? 'grid' : 'zero', x1: apartAt(at * reach, reach), x2: apartAt(at * reach, reach), y1: 0, y2: 18}));
  if (isNumber(low) && isNumber(high)) node.append(svg('line', {class: 'range', x1: apartAt(low, reach), x2: apartAt(high, reach), y1: 9, y2: 9}));
  node.append(svg('circle', {cx: apartAt(difference, reach), cy: 9, r: 4.5}));
  return node;
}
function apartAxis(reach) {
  const node = svg('svg', {class: 'whisker', viewBox: `0 0 ${WIDE} 14`, role: 'img', 'aria-label': `differences from −${100 * reach} to +${100 * reach} points`});
  for (const at of [-1, 0, 1]) node.append(svg('text', {x: apartAt(at * reach, reach), y: 11, 'text-anchor': at < 0 ? 'start' : at ? 'end' : 'middle'}, at ? `${at < 0 ? '−' : '+'}${100 * reach} points` : '0'));
  return node;
}

// Parts of one environment and split are compared with each other; validations of a training have no episodes here.
function resultGroups() {
  const groups = new Map();
  const add = (name, line) => { if (!groups.has(name)) groups.set(name, []); groups.get(name).push(line); };
  for (const line of shownRuns().flatMap((run) => run.table)) {
    if (line.kept || !isNumber(line.success_rate)) continue;
    add(`${environmentName(line.environment)}, ${line.split || 'test'} tasks`, {label: line.label, run: line.run, part: line.part, stage: line.stage, environment: line.environment, split: line.split, rate: line.success_rate, low: line.success_low, high: line.success_high, tasks: line.tasks});
  }
  for (const one of linesOf()) {
    const series = one.curve.series['val/success/mean'];
    const points = series && !one.run.table.some((line) => line.part === 'validation' && !line.kept) ? pointsOf(series) : [];
    for (const point of points.length > 1 ? [points[0], points[points.length - 1]] : points) add('validation during training', {label: `${one.label}, step ${point[0]}`, run: one.run.key, rate: point[1], low: point[2], high: point[3]});
  }
  return new Map([...groups].sort(([, [a]], [, [b]]) => weightOf(a) - weightOf(b)));
}
// Held-out tasks first, then validations, then what was collected from training tasks, such as demonstrations.
const weightOf = (line) => (line.part === 'validation' || !line.environment ? 2 : line.split === 'train' ? 3 : (line.split || 'test') === 'test' ? 0 : 1);
// Of an environment in a file of one's own, the file's name and not its folder.
const environmentName = (name) => name.replace(/^.*\/(?=[^/]*$)/, '');

// Every pair is compared, in both directions, and corrected over all pairs: a verdict is the same whichever baseline is chosen.
const shownLines = (groups) => [...groups.values()].filter((lines) => lines[0].environment);
function comparisonOf(baseline, line) {
  return state.comparisons.find((found) => found.environment === line.environment && (found.split || 'test') === (line.split || 'test') && found.baseline.label === baseline.label && found.trained.label === line.label);
}
const verdictKind = (found) => (found && (found.verdict === 'better' || found.verdict === 'worse') ? found.verdict : '');

// A validation is what a stage was chosen by, and training tasks what it learnt from: results only where nothing else was evaluated.
const isSecondary = (line) => weightOf(line) > 1 && shownRuns().some((run) => run.table.some((one) => !one.kept && isNumber(one.success_rate) && weightOf(one) < weightOf(line)));

// Lines that follow each other: the stages of one run; runs of one line each follow each other too (by folder, where several folders have several).
function sequencesOf(lines) {
  const by = (list, name) => { const found = new Map(); for (const one of list) { if (!found.has(name(one))) found.set(name(one), []); found.get(name(one)).push(one); } return found; };
  const runs = by(lines, (line) => line.run), single = lines.filter((line) => runs.get(line.run).length === 1);
  const folders = by(single, (line) => runOf(line.run).folder.replace(/\/[^/]*$/, ''));
  const apart = folders.size > 1 && [...folders.values()].every((list) => list.length > 1);
  const alone = !single.length ? [] : apart ? [...folders.values()] : [single];
  return [...[...runs.values()].filter((list) => list.length > 1), ...alone].sort((a, b) => lines.indexOf(a[0]) - lines.indexOf(b[0]));
}
// The stage before; another seed of the same stage is not one.
const seedless = (label) => label.replace(/seed[-_ ]?\d+/gi, 'seed');
const sameStage = (a, b) => isNumber(a.stage) && a.stage === b.stage;
const earlierOf = (line, sequence) => sequence.slice(0, sequence.indexOf(line)).filter((one) => seedless(one.label) !== seedless(line.label));
// Of many lines without a known stage none follows another.
const MAX_FOLLOWING = 6;
const isUnordered = (sequence) => sequence.length > MAX_FOLLOWING && sequence.every((line) => !isNumber(line.stage));
function beforeOf(line, sequence) { return isUnordered(sequence) ? null : earlierOf(line, sequence).reverse().find((one) => !sameStage(one, line)) || null; }
// Another line of the same stage, as of two RL trainings from one SFT model: they do not follow each other.
function besideOf(line, sequence) { return earlierOf(line, sequence).find((one) => sameStage(one, line)) || null; }
// The lines of the last stage, the best one first.
function lastOf(sequence) {
  const last = sequence[sequence.length - 1];
  return sequence.filter((line) => line === last || sameStage(line, last)).sort((a, b) => b.rate - a.rate);
}
const baselineOf = (line, sequence, lines) => lines.find((one) => one.label === versus.baseline) || sequence[0];
// What a line is compared with: the stage before it and the baseline; and the last line of a run with that of the first run.
function othersOf(line, sequence, lines) {
  const first = sequencesOf(lines)[0], last = first[first.length - 1];
  const across = sequence !== first && sequence[0].run !== first[0].run && !isSecondary(line) && line === sequence[sequence.length - 1] && !versus.baseline ? last : null;
  return [...new Set([beforeOf(line, sequence), besideOf(line, sequence), baselineOf(line, sequence, lines), across])].filter((other) => other && other !== line);
}
function shownComparisons() {
  return shownLines(resultGroups()).flatMap((lines) => sequencesOf(lines).flatMap((sequence) => sequence.flatMap((line) => othersOf(line, sequence, lines).map((other) => comparisonOf(other, line))))).filter(Boolean);
}

function baselineChoice(groups) {
  const compared = new Set(state.comparisons.map((found) => found.baseline.label));
  const labels = [...new Set(shownLines(groups).flatMap((lines) => lines.map((line) => line.label)))].filter((label) => compared.has(label));
  if (labels.length < 2) return null;
  const select = el('select', {id: 'baseline', 'aria-label': 'Baseline'}, el('option', {value: ''}, shownRuns().length > 1 ? 'the first stage of each run' : 'the first stage'), labels.map((label) => el('option', {value: label}, shortLabel(label))));
  select.value = versus.baseline;
  if (select.selectedIndex < 0) { select.selectedIndex = 0; versus.baseline = ''; }
  select.addEventListener('change', () => { versus.baseline = select.value; remember(); stay(); });
  return el('label', {class: 'small soft'}, 'baseline ', select);
}

// The folder of all results of `eval` that are shown, which says nothing beside their names.
function folderOfResults() {
  const names = state.runs.filter((run) => run.kind === 'examination').map((run) => run.name), folder = (names[0] || '').replace(/[^/]*$/, '');
  return names.length > 1 && folder && names.every((name) => name.startsWith(folder)) ? folder : '';
}
// The name of a part; that of the only run says nothing, nor does that of a run which is named already.
function shortLabel(label, known) {
  const name = known || (state.runs.length === 1 ? state.runs[0].name : ''), folder = folderOfResults();
  if (folder && label.startsWith(folder)) return label.slice(folder.length);
  return name && label.startsWith(name + ' · ') ? label.slice(name.length + 3) : label;
}
const shortSentence = (text) => (state.runs.length === 1 ? text.replaceAll(`'${state.runs[0].name} · `, "'") : text);
const points = (value) => (value > 0 ? '+' : '') + inPercent(value).replace('-', '−');
const apartText = (found) => { const {difference, low, high} = found.changes[0]; return `${points(difference)} points${isNumber(low) && isNumber(high) ? ` [${points(low)}, ${points(high)}]` : ''}`; };

// One line that says what was gained: the last stage less the one before, with its interval and its verdict.
function headline(found, run) {
  const name = (side) => shortLabel(found[side].label, run ? run.name : ''), own = run && state.runs.length > 1 ? `${run.name}: ` : '';
  const small = isSecondary({part: found.trained.part, environment: found.environment, split: found.split});
  return el('p', {class: small ? 'soft small' : 'headline'}, badge(found.verdict, verdictKind(found)), ' ', found.changes.length ? el(small ? 'span' : 'b', {}, `${own}${name('trained')} − ${name('baseline')}: ${apartText(found)}`) : null, ' ', el('span', {class: 'soft small'}, found.evidence ? `(${found.evidence})` : shortSentence(found.sentence)));
}
const MAX_HEADLINES = 4;
function headlines(sequence, lines) {
  const found = lastOf(sequence).slice(0, MAX_HEADLINES).map((line) => headlineOf(line, sequence, lines)).filter(Boolean);
  if (found.length) return found;
  const text = (line) => `${shortLabel(line.label)}: ${percent(line.rate)}${isNumber(line.low) ? ` ${interval(line.low, line.high)}` : ''}${line.tasks ? ` of ${plural(line.tasks, 'task')}` : ''}`, last = sequence[sequence.length - 1];
  return el('p', {class: isSecondary(last) ? 'soft small' : 'headline'}, sequence[0] !== last ? `${text(sequence[0])}; ${text(last)}.` : `${text(last)}.`);
}
function headlineOf(last, sequence, lines) {
  const run = sequence.every((line) => line.run === last.run) ? runOf(last.run) : null;
  const other = versus.baseline ? baselineOf(last, sequence, lines) : beforeOf(last, sequence) || besideOf(last, sequence) || baselineOf(last, sequence, lines), found = other && other !== last ? comparisonOf(other, last) : null;
  return found ? headline(found, other.run === last.run ? run : null) : null;
}
// The last stage of each run against that of the first run, or that the two cannot be compared.
function acrossRuns(lines) {
  const [first, ...rest] = sequencesOf(lines), last = first[first.length - 1];
  if (versus.baseline || !last.environment || isSecondary(last)) return [];
  return rest.filter((sequence) => sequence[0].run !== first[0].run).map((sequence) => {
    const own = sequence[sequence.length - 1], found = comparisonOf(last, own);
    return found ? headline(found, null) : el('p', {class: 'soft small'}, `${own.label} and ${last.label} have no task in common, so the runs are not compared with each other.`);
  });
}

function resultRow(line, sequence, lines) {
  const baseline = baselineOf(line, sequence, lines), several = sequencesOf(lines).length > 1, known = several && sequence.every((one) => one.run === line.run) ? runOf(line.run).name : '';
  const against = othersOf(line, sequence, lines).map((other) => [other, comparisonOf(other, line)]).filter(([, one]) => one);
  const name = (other) => shortLabel(other.label, other.run === line.run ? runOf(line.run).name : '');
  return el('tr', {class: line === baseline && lines.length > 1 ? 'baseline' : ''}, el('td', {}, el('span', {class: 'named'}, el('span', {class: 'dot ' + colourOf(line.run)}), el('span', {}, shortLabel(line.label, known)))),
    el('td', {class: 'whisker-cell'}, whisker(line, line === baseline ? '' : verdictKind(comparisonOf(baseline, line)), axisTop(lines))),
    el('td', {class: 'n'}, el('b', {}, percent(line.rate)), isNumber(line.low) ? el('span', {class: 'range'}, ` ${interval(line.low, line.high)}`) : null), el('td', {class: 'n'}, line.tasks ?? ''),
    el('td', {class: 'verdicts'}, line === baseline && lines.length > 1 && line.environment ? el('div', {class: 'soft small'}, 'baseline') : null,
      against.map(([other, one]) => el('div', {}, badge(one.verdict, verdictKind(one)), el('span', {class: 'soft small'}, ` ${verdictKind(one) ? 'than' : 'from'} ${name(other)}`, one.changes.length ? [', ', el('span', {class: 'whole'}, apartText(one).replace(' points', ''))] : null)))));
}

function resultBlock(name, lines, seen) {
  const sequences = sequencesOf(lines), several = sequences.length > 1;
  const body = sequences.map((sequence) => [several && sequence.every((line) => line.run === sequence[0].run) ? el('tr', {class: 'of-sequence'}, el('th', {colspan: '5', scope: 'rowgroup'}, el('span', {class: 'dot ' + colourOf(sequence[0].run)}), runOf(sequence[0].run).name)) : null,
    sequence.map((line) => resultRow(line, sequence, lines))]);
  return el('div', {class: 'card result on-axis'}, sequences.map((sequence) => headlines(sequence, lines)), acrossRuns(lines), seen,
    el('div', {class: 'scroll', tabindex: '0'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, name), el('th', {}, axis(axisTop(lines))), el('th', {class: 'n'}, 'Success [95 %]'), el('th', {class: 'n'}, 'Tasks'), el('th', {}, 'Verdict, difference in points [95 %]'))), el('tbody', {}, body))));
}

// Many validations, which are not the result, do not push everything else away.
const MAX_SECONDARY_ROWS = 8;
function folded(name, lines, block) {
  return lines.length > MAX_SECONDARY_ROWS && isSecondary(lines[0]) ? el('details', {class: 'of-run'}, el('summary', {}, `${name}: ${plural(lines.length, 'row')}`), block) : block;
}

function resultSection() {
  const groups = resultGroups();
  const seen = glance();
  if (!groups.size) return seen && el('section', {'aria-label': 'At a glance'}, el('div', {class: 'card result'}, seen));
  const count = state.comparisons.length ? state.comparisons[0].comparisons : 0;
  const corrected = count > 1 ? `, corrected for the ${count} pairs that can be compared here (Holm)` : '';
  return el('section', {'aria-label': 'Result', id: 'result'}, el('div', {class: 'section-head'}, el('h2', {}, 'Result'),
    el('span', {class: 'soft small'}, `95 % intervals over tasks. Verdicts: the paired test on the same tasks${corrected}.`), baselineChoice(groups)),
  [...groups].map(([name, lines], place) => folded(name, lines, resultBlock(name, lines, place ? null : seen))), matrixBlock());
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
    const baseline = baselineOf(line, sequencesOf(group).find((sequence) => sequence.includes(line)), group), kind = line === baseline ? '' : verdictKind(comparisonOf(baseline, line));
    return el('td', {class: 'n cell ' + kind, title: kind ? `${kind} than ${baseline.label}` : ''}, el('b', {}, percent(line.success_rate)), isNumber(line.success_low) ? el('span', {class: 'range'}, ` ${interval(line.success_low, line.success_high)}`) : null, kind ? el('span', {class: 'mark', 'aria-label': kind}, kind === 'better' ? ' ▲' : ' ▼') : null);
  };
  return el('div', {class: 'card scroll result', tabindex: '0'}, el('table', {id: 'matrix'}, el('caption', {class: 'soft small'}, 'Policies and environments; ▲ better, ▼ worse than the baseline of the environment.'),
    el('thead', {}, el('tr', {}, el('th', {}, 'Policy'), environments.map((name) => el('th', {class: 'n'}, environmentName(name))))),
    el('tbody', {}, labels.map((label) => el('tr', {}, el('th', {scope: 'row'}, shortLabel(label)), environments.map((name) => cell(label, name)))))));
}
