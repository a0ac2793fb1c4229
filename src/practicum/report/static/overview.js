// The overview: result, health, runs, curves by stage, reward parts, figures by environment, comparison, episodes to read.
const CURVES = [
  ['val/success/mean', 'Success on held-out tasks', {share: true}],
  ['success/mean', 'Success while training', {share: true}],
  ['reward/mean', 'Reward while training'],
  ['val/reward/mean', 'Reward on held-out tasks'],
  ['actor/loss', 'Loss'],
  ['sft/perplexity', 'Perplexity'],
  ['dpo/accuracy', 'Preferred reply is likelier', {share: true}],
  ['actor/entropy', 'Entropy, nats per token'],
  ['actor/kl', 'KL to the reference', {floor: 1e-3}],
  ['actor/ppo_kl', 'KL of one update', {floor: 1e-3}],
  ['response_length/mean', 'Tokens per reply'],
  ['rollout/turns/mean', 'Turns per episode'],
  ['rollout/invalid_replies', 'Unusable replies', {share: true}],
  ['rollout/dead_groups', 'Groups without a difference', {share: true}],
  ['hacking/gap', 'Rise of the reward less that of the verifier'],
  ['actor/grad_norm', 'Gradient norm'],
  ['mismatch/logprob/mean', 'Engine against learner, log-prob', {floor: 1e-4}],
];
const SHARE = 'hacking/share/';
let charts = new Map();

// Stages have axes of their own: a step of SFT is no step of RL.
const STAGES = [['sft', 'Supervised fine-tuning'], ['dpo', 'Preferences (DPO)'], ['rl', 'Reinforcement learning'], ['other', 'Other metrics']];
function stageOf(curve) {
  const names = Object.keys(curve.series);
  if (names.some((name) => name === 'reward/mean' || name === 'success/mean')) return 'rl';
  for (const stage of ['dpo', 'sft']) if (names.some((name) => name.startsWith(stage + '/'))) return stage;
  return 'other';
}
// Six colours that colour-blind readers can tell apart, solid and dashed.
const linesOf = () => shownRuns().flatMap((run) => run.curves.map((curve) => ({
  run, curve, stage: stageOf(curve), style: Number(colourOf(run.key).slice(1)) >= 6 ? ' dashes' : '', colour: colourOf(run.key), label: curve.name ? `${run.name} · ${curve.name}` : run.name,
})));

function overview() {
  charts = new Map();
  const page = el('div', {class: 'wide'});
  const parts = [resultSection(), runsSection(), differencesSection(), healthSection(), curvesSection(), partsSection(), tableSection(), failuresSection(), comparisonSection(), drawingsSection(), samplesSection(), faultsSection()];
  put(page, parts);
  if (!state.runs.length) put(page, [el('p', {class: 'soft'}, live ? 'No run here yet. This page shows one as soon as it begins.' : 'There is nothing to show.')]);
  return page;
}

function runsSection() {
  if (!state.runs.length) return null;
  const cards = state.runs.map((run) => {
    const box = el('input', {type: 'checkbox', checked: !state.hidden.has(run.key), 'aria-label': `Show ${run.name}`});
    const card = el('label', {class: 'run card' + (state.hidden.has(run.key) ? ' off' : ''), 'data-run': run.key},
      el('div', {class: 'run-name'}, el('span', {class: 'dot ' + colourOf(run.key)}), el('span', {}, run.name), box),
      el('div', {class: 'facts'}), el('div', {class: 'progress', hidden: true}, el('i', {})));
    box.addEventListener('change', () => { choose(run.key, box.checked); });
    fillRun(card, run);
    return card;
  });
  return el('section', {'aria-label': 'Runs'}, el('div', {class: 'section-head'}, el('h2', {}, state.runs.length === 1 ? 'Run' : 'Runs'),
    el('span', {class: 'soft small'}, state.runs.length > 1 ? 'Uncheck what is not to be shown.' : '')), el('div', {class: 'runs'}, cards));
}

function fillRun(card, run) {
  const facts = card.querySelector('.facts');
  const found = [];
  const rated = run.table.filter((line) => !line.kept && isNumber(line.success_rate) && line.part !== 'validation').pop();
  if (rated) found.push(fact(rated.part ? shortLabel(rated.label, run.name) : 'success', percent(rated.success_rate) + (isNumber(rated.success_low) ? ` ${interval(rated.success_low, rated.success_high)}` : '')));
  // They stay two cards: one model may have several evaluations, with other tasks and settings.
  const training = trainingOf(run);
  if (training) found.push(fact('evaluation of', training.name));
  const evaluations = state.runs.filter((other) => trainingOf(other) === run);
  if (evaluations.length) found.push(fact('evaluated in', evaluations.map((other) => other.name).join(', ')));
  // The last stage's step: that of an earlier one says nothing about this.
  const newest = STAGES.map(([stage]) => run.curves.filter((curve) => stageOf(curve) === stage)).filter((curves) => curves.length && stageOf(curves[0]) !== 'other').pop() || run.curves;
  const step = Math.max(0, ...newest.map((curve) => curve.step));
  if (run.curves.length) found.push(fact(stageOf(newest[0]) === 'other' ? 'step' : `${stageOf(newest[0]).toUpperCase()} step`, run.planned ? `${step} / ${run.planned}` : String(step)));
  for (const name of ['val/success/mean', 'success/mean']) {
    const curve = newest.find((one) => one.series[name]);
    const points = curve ? pointsOf(curve.series[name]) : [];
    if (points.length) {
      const [at, mean, low, high] = points[points.length - 1];
      found.push(fact(`${name.startsWith('val') ? 'held-out success' : 'training success'} at step ${at}`, percent(mean) + (low < high ? ` ${interval(low, high)}` : '')));
      break;
    }
  }
  if (run.episodes) found.push(fact('episodes', run.episodes.toLocaleString('en') + (run.waiting ? ' …' : '')));
  if (run.unreadable_count) found.push(fact('not readable', String(run.unreadable_count)));
  const ago = run.changed ? (Date.now() - run.changed) / 1000 : Infinity;
  if (run.seconds && !live) found.push(fact('training time', clock(run.seconds)));
  const version = (run.versions || []).slice(-1)[0];
  if (version) found.push(el('span', {class: 'version', title: [version.commit ? `commit ${version.commit}` : '', version.python ? `Python ${version.python}` : ''].filter(Boolean).join(', ')},
    [`practicum ${version.practicum || '?'}`, version.commit ? version.commit.slice(0, 9) + (version.changed ? ' with changes' : '') : '', version.machine || ''].filter(Boolean).join(' · ')));
  if (live) found.push(el('span', {class: 'pace'}, paceText(run, step, ago)));
  facts.replaceChildren(...found);
  const bar = card.querySelector('.progress');
  bar.hidden = !run.planned || !run.curves.length;
  bar.firstChild.style.width = `${Math.min(100, 100 * step / (run.planned || 1))}%`;
}
// The training in this page whose model a run is an evaluation of: by the folders' names, which may begin elsewhere.
function trainingOf(run) {
  const parts = (path) => path.replace(/\/(model|last)$/, '').split('/').filter((part) => part && part !== '.').reverse();
  const agree = ([a, b]) => { const [short, long] = a.length < b.length ? [a, b] : [b, a]; return short.every((part, place) => part === long[place]) ? short.length : 0; };
  const found = run.policy ? state.runs.filter((other) => other.kind === 'training').map((other) => [agree([parts(run.policy), parts(other.folder)]), other]) : [];
  return found.filter(([length]) => length).sort(([a], [b]) => b - a).map(([, other]) => other)[0];
}
// What a run is doing: finished, how long it will take at the pace seen here, or for how long nothing has changed.
function paceText(run, step, ago) {
  if (run.finished || (run.planned && step >= run.planned)) return 'finished';
  if (!Number.isFinite(ago)) return '';
  if (run.writer === false && run.curves.length && ago > 20) return `ended early: no process writes to it, nothing new for ${clock(ago)}`;
  if (ago > 600) return `nothing new for ${clock(ago)}`;
  const each = run.planned ? secondsOfStep(run, step, ago) : 0;
  const left = each > 0 ? `, about ${clock((run.planned - step) * each)} left` : '';
  return (ago < 2 ? 'changes now' : `changed ${clock(ago)} ago`) + left;
}
// Seconds of one of the newest steps: by the run's own times, or at the pace seen here.
function secondsOfStep(run, step, ago) {
  const newest = run.curves.find((curve) => curve.step === step);
  const times = newest && newest.axes && newest.axes.seconds ? newest.axes.seconds.slice(-20) : [];
  if (times.length > 1) return (times[times.length - 1][1] - times[0][1]) / (times[times.length - 1][0] - times[0][0]);
  if (!run.pace || run.pace.step > step) run.pace = {step, at: Date.now()};
  return step > run.pace.step ? (Date.now() - ago * 1000 - run.pace.at) / 1000 / (step - run.pace.step) : 0;
}
const clock = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
const fact = (name, value) => el('span', {}, name + ' ', el('b', {}, value));

function curvesSection() {
  const lines = linesOf();
  const stages = STAGES.filter(([stage]) => lines.some((line) => line.stage === stage && Object.keys(line.curve.series).length));
  if (!stages.length) return null;
  autoAxis = lengthsDiffer(lines) ? 'share' : 'step';
  const strides = Math.max(1, ...lines.flatMap((line) => Object.values(line.curve.series).map((series) => series.stride)));
  return el('section', {'aria-label': 'Learning curves'}, el('div', {class: 'section-head'}, el('h2', {}, 'Learning curves'),
    el('span', {class: 'soft small'}, 'Shaded: 95 % interval; for training figures it counts tasks, not episodes. Draw over a part of a chart to see it alone.',
      strides > 1 ? ` A point of the longest curves is the mean of ${strides} steps.` : '', el('span', {id: 'axis-note'}, axisNote())), drawingControls(lines)),
    el('div', {id: 'curves'}, stages.map(([stage, title]) => stageCurves(stage, title, lines.filter((line) => line.stage === stage)))));
}

function stageCurves(stage, title, lines) {
  const names = new Set(lines.flatMap((line) => Object.keys(line.curve.series)));
  // Rewards of 0 and 1 are successes: one picture is enough.
  const twice = (name, other) => lines.every((line) => { const [a, b] = [line.curve.series[name], line.curve.series[other]]; return !a || (b && a.points.length === b.points.length && a.points.every((point, place) => point[1] === b.points[place][1])); });
  const known = CURVES.filter(([name]) => names.has(name));
  const first = known.filter(([name]) => !(name.endsWith('reward/mean') && twice(name, name.replace('reward', 'success'))));
  const rest = [...names].filter((name) => !known.some(([one]) => one === name)).sort();
  const more = el('details', {}, el('summary', {}, `All other metrics (${rest.length})`));
  more.dataset.rest = JSON.stringify(rest);
  more.addEventListener('toggle', () => { if (more.open && !more.querySelector('.charts')) fillMore(more, ''); });
  return el('div', {class: 'of-run', 'data-stage': stage}, el('div', {class: 'stage-head'}, el('h3', {class: 'soft'}, title), zoomFields(stage)), el('div', {class: 'charts'}, first.map(([name, one, options]) => curve(one, name, options, stage))), rest.length ? el('p', {}, more) : null);
}

// The metrics that are folded away, those whose name has this text.
function fillMore(more, text) {
  const rest = JSON.parse(more.dataset.rest), {stage} = more.closest('[data-stage]').dataset;
  if (!more.querySelector('.charts')) {
    const box = el('input', {type: 'search', placeholder: 'name of a metric', 'aria-label': 'Filter metrics'});
    box.addEventListener('input', () => fillMore(more, box.value.trim()));
    more.append(el('p', {}, box), el('div', {class: 'charts'}));
  }
  if (more.querySelector('input').value.trim() !== text) more.querySelector('input').value = text;
  more.querySelector('.charts').replaceChildren(...rest.filter((name) => name.includes(text)).slice(0, 60).map((name) => curve(name, name, {}, stage)));
}

function curve(title, name, options, stage) {
  const chart = new Chart(title, name, {...options, stage, keys: linesOf().filter((line) => line.stage === stage && line.curve.series[name]).length > 1});
  charts.set(name, [...(charts.get(name) || []), chart]);
  fillCurve(chart, name);
  return chart.node;
}
function fillCurve(chart, name) {
  chart.set(linesOf().filter((line) => line.stage === chart.options.stage && line.curve.series[name]).map((line) => ({...line, series: line.curve.series[name], events: line.curve.events})));
}

const MAX_STACKS = 3;
function partsSection() {
  const stacks = linesOf().map((line) => {
    const names = Object.keys(line.curve.series).filter((name) => name.startsWith(SHARE));
    if (names.length < 2) return null; // of a single part there is nothing to share
    const chart = new Chart(line.label, '', {share: true, stacked: true, keys: true});
    charts.set(SHARE, [...(charts.get(SHARE) || []), chart]);
    chart.set(names.map((name, place) => ({label: name.slice(SHARE.length), colour: 'c' + ((place + 2) % 6), series: line.curve.series[name], curve: line.curve})));
    return chart.node;
  }).filter(Boolean);
  const tables = shownRuns().flatMap((run) => run.table).filter((line) => Object.keys(line.parts).length > 1);
  if (!stacks.length && !tables.length) return null;
  const names = [...new Set(tables.flatMap((line) => Object.keys(line.parts)))];
  return el('section', {'aria-label': 'Reward parts'}, el('div', {class: 'section-head'}, el('h2', {}, 'Reward parts'),
    el('span', {class: 'soft small'}, stacks.length ? 'Share of each part in all reward, signs aside.' : 'Mean of each part over scored episodes.')),
    stacks.length ? el('div', {class: 'charts'}, stacks.slice(0, MAX_STACKS)) : null,
    stacks.length > MAX_STACKS ? el('details', {}, el('summary', {}, `Those of ${plural(stacks.length - MAX_STACKS, 'further run')}`), el('div', {class: 'charts'}, stacks.slice(MAX_STACKS))) : null,
    tables.length ? el('div', {class: 'card scroll', tabindex: '0'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Episodes'), names.map((name) => el('th', {class: 'n'}, name)))),
      el('tbody', {}, tables.map((line) => el('tr', {}, el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), line.label),
        names.map((name) => el('td', {class: 'n'}, figure(line.parts[name]))))))) ) : null);
}

function tableSection() {
  const lines = shownRuns().flatMap((run) => run.table);
  if (!lines.length) return null;
  const range = (low, high, form) => (isNumber(low) && isNumber(high) ? el('span', {class: 'range'}, ` [${form(low)}, ${form(high)}]`) : null);
  const cell = (line, name, low, high, form) => el('td', {class: 'n'}, line.kept ? '–' : form(line[name]), line.kept ? null : range(line[low], line[high], form));
  // A validation has a result of all its tasks, and episodes of a few: there is no list of what it counts.
  const body = lines.map((line) => el('tr', line.part === 'validation' && !line.kept ? {} : opens({run: line.run, part: line.part, environment: line.environment}),
    el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), shortLabel(line.label), line.kept ? el('span', {class: 'faint'}, /top_episodes$/.test(line.part) ? ' (those of the highest reward)' : /validation$/.test(line.part) ? ' (the first tasks of each validation)' : ' (first groups of steps 1, 2, 4, 8 …)') : null),
    el('td', {title: line.environment}, environmentName(line.environment), line.split ? el('span', {class: 'faint'}, ' ' + line.split) : null),
    el('td', {class: 'n'}, line.episodes.toLocaleString('en'), line.tasks !== line.episodes ? el('span', {class: 'range'}, ` of ${line.tasks} tasks`) : null),
    el('td', {class: 'n'}, line.kept ? '–' : percent(line.success_rate), line.kept || !isNumber(line.success_low) ? null : el('span', {class: 'range'}, ` ${interval(line.success_low, line.success_high)}`)),
    cell(line, 'mean_reward', 'reward_low', 'reward_high', figure),
    el('td', {class: 'n'}, figure(line.mean_turns)), el('td', {class: 'n'}, figure(line.mean_tokens)), el('td', {class: 'n'}, line.kept ? '–' : percent(line.invalid_reply_rate)),
    el('td', {class: 'faint small outcomes-cell'}, [...Object.entries(line.outcomes).map(([name, count]) => `${count} ${name}`), ...(line.uncounted ? [`${line.uncounted} without a finite reward`] : [])]
      .map((text, place, all) => [el('span', {class: 'whole'}, text + (place + 1 < all.length ? ',' : '')), ' ']))));
  return el('section', {'aria-label': 'By environment'}, el('div', {class: 'section-head'}, el('h2', {}, 'By environment'),
    el('span', {class: 'soft small'}, 'With 95 % intervals over tasks. Episodes that could not be scored take no part in rates, nor do those that a training kept to be read.')),
    el('div', {class: 'card scroll', tabindex: '0'}, el('table', {id: 'environments'}, el('thead', {}, el('tr', {}, ['Episodes of', 'Environment'].map((name) => el('th', {}, name)),
      ['Episodes', 'Success', 'Reward', 'Turns', 'Tokens', 'Unusable'].map((name) => el('th', {class: 'n'}, name)), el('th', {}, 'Outcomes'))), el('tbody', {}, body))));
}

// All differences on one axis from worse to better; a row opens its figures.
function comparisonSection() {
  const shown = shownComparisons();
  if (!shown.length) return null;
  const most = Math.max(...shown.filter((found) => found.changes.length).map(({changes: [{difference, low, high}]}) => Math.max(...[difference, low, high].filter(isNumber).map(Math.abs))), 0);
  const reach = [0.05, 0.1, 0.25, 0.5].find((one) => most <= one) || 1;
  // p-values do not depend on the baseline: pairs that another choice would list count too.
  const count = shown[0].comparisons;
  const corrected = count > 1 ? `; p-values are corrected (Holm) over all ${plural(count, 'pair')} that can be compared here${count > shown.length ? `, of which ${shown.length} are listed` : ''}` : '';
  return el('section', {'aria-label': 'Comparison', id: 'comparison'}, el('div', {class: 'section-head'}, el('h2', {}, 'Comparison'),
    el('span', {class: 'soft small'}, `Paired, on the same tasks${corrected}. A row opens all figures.`), el('a', {href: '#/compare', class: 'small'}, 'task by task')),
    el('div', {class: 'card verdicts-card', tabindex: '0'}, el('div', {class: 'verdict-head'}, el('span', {}), apartAxis(reach)), shown.map((found) => verdict(found, reach))));
}

function verdict(found, reach) {
  const rows = found.changes.map((change) => {
    const form = change.rate ? percent : figure;
    const apart = change.rate ? (value) => (isNumber(value) ? points(value) : '–') : (value) => signed(value);
    return el('tr', {}, el('td', {}, change.name), el('td', {class: 'n'}, form(change.baseline)), el('td', {class: 'n'}, form(change.trained)),
      el('td', {class: 'n'}, apart(change.difference), el('span', {class: 'range'}, ` [${apart(change.low)}, ${apart(change.high)}]`)), el('td', {class: 'n'}, figure(change.p, 2)));
  });
  return el('details', {class: 'verdict'}, el('summary', {}, el('span', {}, badge(found.verdict, found.verdict === 'no difference shown' ? '' : found.verdict), ' ', shortSentence(found.sentence)),
    found.changes.length ? apartWhisker(found.changes[0], verdictKind(found), reach) : null), el('p', {class: 'soft small'}, found.outlook, ` Compared on ${found.basis}.`),
    el('div', {class: 'scroll', tabindex: '0'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Figure'),
      [shortLabel(found.baseline.label), shortLabel(found.trained.label), 'Difference [95 %]', 'p'].map((name) => el('th', {class: 'n'}, name)))), el('tbody', {}, rows))));
}

// The best episode of the first and of the last saved step of a training run, where its environment draws episodes.
function drawingsSection() {
  const blocks = shownRuns().filter((run) => (run.drawings || []).length).map((run) => {
    const cards = run.drawings.map((number) => rowAt(run.key, number)).filter(Boolean).map((row) => {
      const card = el('div', {class: 'drawn'}, item(row));
      episodeAt(run.key, row.number).then((found) => { if (found && found.drawing) put(card, [drawingNode(found)]); });
      return card;
    });
    return el('div', {class: 'of-run'}, shownRuns().length > 1 ? el('h3', {class: 'soft'}, el('span', {class: 'dot ' + colourOf(run.key)}), run.name) : null, cards);
  });
  if (!blocks.length) return null;
  return el('section', {'aria-label': 'Drawings', id: 'drawings'}, el('div', {class: 'section-head'}, el('h2', {}, 'First and last step'),
    el('span', {class: 'soft small'}, 'The episode of the highest reward in the first and in the last group that the run saved.')), blocks);
}

function samplesSection() {
  const kinds = [['best', 'Best'], ['worst', 'Worst'], ['surprising', 'Most surprising']];
  const blocks = shownRuns().filter((run) => run.samples && kinds.some(([kind]) => (run.samples[kind] || []).length)).map((run) => {
    const lists = kinds.map(([kind, title]) => {
      const rows = (run.samples[kind] || []).map((number) => rowAt(run.key, number)).filter(Boolean);
      return rows.length ? el('div', {class: 'card'}, el('h3', {}, title), rows.map((row) => item(row))) : null;
    });
    const shown = el('div', {class: 'samples'}, lists);
    if (shownRuns().length === 1) return shown;
    return el('details', {class: 'of-run', open: shownRuns().length <= 2 || run === shownRuns()[0]}, el('summary', {}, el('span', {class: 'dot ' + colourOf(run.key)}), run.name), shown);
  });
  if (!blocks.length) return null;
  return el('section', {'aria-label': 'Episodes to read', id: 'samples'}, el('div', {class: 'section-head'}, el('h2', {}, 'Episodes to read'),
    el('span', {class: 'soft small'}, 'Surprising: an outcome that the other attempts at the task (or, without any, the other episodes) made unlikely.')), blocks);
}

function item(row) {
  return el('a', {class: 'item', href: `#/episode/${row.run}/${row.number}`}, el('span', {class: 'dot ' + dotKind(row.outcome)}), el('span', {class: 'name'}, row.task),
    el('span', {class: 'value'}, figure(row.reward)), el('span', {class: 'sub'}, row.question || ' '), el('span', {class: 'sub'}, subtitle(row)));
}
function subtitle(row) {
  const words = [row.target || row.answer ? `${row.answer || '–'}${row.target ? ` (target ${row.target})` : ''}` : '', row.outcome, partName(row.part), row.step !== null ? `step ${row.step}` : '', `attempt ${row.attempt}`, plural(row.turns, 'turn'), plural(row.tokens, 'token')];
  return words.filter(Boolean).join(' · ');
}

function faultsSection() {
  const faults = shownRuns().flatMap((run) => [...(run.fault ? [{path: run.folder, reason: run.fault}] : []), ...run.unreadable.map((entry) => ({...entry, path: `${run.folder}/${entry.path}`})),
    ...run.curves.flatMap((curve) => [['metrics.jsonl', curve.unreadable], ['health.jsonl', curve.unreadable_events]].filter(([, count]) => count)
      .map(([file, count]) => ({path: `${run.folder}/${curve.name ? curve.name + '/' : ''}${file}`, reason: `${plural(count, 'line')} cannot be read`})))]);
  const counted = shownRuns().reduce((sum, run) => sum + Math.max(0, run.unreadable_count - run.unreadable.length), 0);
  const configs = shownRuns().flatMap((run) => (run.configs || []).map(([name, text]) => ({title: [run.name, name].filter(Boolean).join(' · '), text})));
  const config = configs.length ? el('section', {'aria-label': 'Configuration', id: 'configuration'}, el('h2', {}, 'Configuration'),
    configs.map(({title, text}) => el('details', {}, el('summary', {}, title), el('pre', {class: 'mono'}, text)))) : null;
  if (!faults.length) return config;
  return [el('section', {'aria-label': 'Not readable', id: 'faults'}, el('div', {class: 'section-head'}, el('h2', {}, 'Not readable'), el('span', {class: 'soft small'}, 'These files are damaged or no episodes; all others are shown.')),
    el('div', {class: 'card scroll', tabindex: '0'}, el('table', {}, el('tbody', {}, faults.slice(0, 200).map((fault) => el('tr', {}, el('td', {class: 'mono'}, fault.path), el('td', {class: 'soft'}, fault.reason)))))),
    counted ? el('p', {class: 'soft small'}, `… and ${counted} more.`) : null), config];
}
