// The overview: runs, curves, health, reward parts, figures by environment, comparison, episodes worth reading.
const CURVES = [
  ['val/success/mean', 'Success on held-out tasks', {share: true}],
  ['success/mean', 'Success while training', {share: true}],
  ['reward/mean', 'Reward while training'],
  ['val/reward/mean', 'Reward on held-out tasks'],
  ['actor/loss', 'Loss'],
  ['sft/perplexity', 'Perplexity'],
  ['dpo/accuracy', 'Preferred reply is likelier', {share: true}],
  ['actor/entropy', 'Entropy, nats a token'],
  ['actor/kl', 'KL to the reference'],
  ['actor/ppo_kl', 'KL of one update'],
  ['response_length/mean', 'Tokens a reply'],
  ['rollout/turns/mean', 'Turns an episode'],
  ['rollout/invalid_replies', 'Unusable replies', {share: true}],
  ['rollout/dead_groups', 'Groups without a difference', {share: true}],
  ['actor/grad_norm', 'Gradient norm'],
  ['mismatch/logprob/mean', 'Engine against learner, log-prob'],
];
const SHARE = 'hacking/share/';
let charts = new Map();

// A run's second stage has its run's colour too, and is drawn in dashes.
const linesOf = () => shownRuns().flatMap((run) => run.curves.map((curve, place) => ({
  run, curve, style: place % 2 ? ' dashes' : '', colour: colourOf(run.key), label: curve.name ? `${run.name} · ${curve.name}` : run.name,
})));

function overview() {
  charts = new Map();
  const page = el('div', {class: 'wide'});
  const parts = [runsSection(), curvesSection(), healthSection(), partsSection(), tableSection(), comparisonSection(), samplesSection(), faultsSection()];
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
    el('span', {class: 'soft small'}, state.runs.length > 1 ? 'The first one shown is the baseline of comparisons.' : '')), el('div', {class: 'runs'}, cards));
}

function fillRun(card, run) {
  const facts = card.querySelector('.facts');
  const found = [];
  const step = Math.max(0, ...run.curves.map((curve) => curve.step));
  if (run.curves.length) found.push(fact('step', run.planned ? `${step} / ${run.planned}` : String(step)));
  for (const name of ['val/success/mean', 'success/mean']) {
    const curve = run.curves.find((one) => one.series[name]);
    const points = curve ? pointsOf(curve.series[name]) : [];
    if (points.length) { found.push(fact(name.startsWith('val') ? 'held-out success' : 'training success', percent(points[points.length - 1][1]))); break; }
  }
  const rated = run.table.find((line) => isNumber(line.success_rate));
  if (!run.curves.length && rated) found.push(fact('success', percent(rated.success_rate)));
  if (run.episodes) found.push(fact('episodes', run.episodes.toLocaleString('en') + (run.waiting ? ' …' : '')));
  if (run.unreadable_count) found.push(fact('not readable', String(run.unreadable_count)));
  const ago = run.changed ? (Date.now() - run.changed) / 1000 : Infinity;
  if (live && ago < 120) found.push(el('span', {}, ago < 2 ? 'changes now' : `changed ${Math.round(ago)} s ago`));
  facts.replaceChildren(...found);
  const bar = card.querySelector('.progress');
  bar.hidden = !run.planned || !run.curves.length;
  bar.firstChild.style.width = `${Math.min(100, 100 * step / (run.planned || 1))}%`;
}
const fact = (name, value) => el('span', {}, name + ' ', el('b', {}, value));

function curvesSection() {
  const lines = linesOf();
  const names = new Set(lines.flatMap((line) => Object.keys(line.curve.series)));
  if (!names.size) return null;
  const first = CURVES.filter(([name]) => names.has(name));
  const grid = el('div', {class: 'charts', id: 'curves'}, first.map(([name, title, options]) => curve(title, name, options)));
  const rest = [...names].filter((name) => !first.some(([known]) => known === name)).sort();
  const more = el('details', {}, el('summary', {}, `All other metrics (${rest.length})`));
  more.addEventListener('toggle', () => {
    if (!more.open || more.querySelector('.charts')) return;
    const box = el('input', {type: 'search', placeholder: 'name of a metric', 'aria-label': 'Filter metrics'});
    const all = el('div', {class: 'charts'});
    const fill = () => {
      const wanted = rest.filter((name) => name.includes(box.value.trim()));
      all.replaceChildren(...wanted.slice(0, 60).map((name) => curve(name, name)));
    };
    box.addEventListener('input', fill);
    more.append(el('p', {}, box), all);
    fill();
  });
  const strides = Math.max(1, ...lines.flatMap((line) => Object.values(line.curve.series).map((series) => series.stride)));
  return el('section', {'aria-label': 'Learning curves'}, el('div', {class: 'section-head'}, el('h2', {}, 'Learning curves'),
    el('span', {class: 'soft small'}, 'Shaded: 95 % interval; for training figures it counts tasks, not episodes.',
      strides > 1 ? ` A point of the longest curves is the mean of ${strides} steps.` : '')),
    grid, rest.length ? el('p', {}, more) : null);
}

function curve(title, name, options) {
  const chart = new Chart(title, name, {...options, keys: linesOf().filter((line) => line.curve.series[name]).length > 1});
  charts.set(name, [...(charts.get(name) || []), chart]);
  fillCurve(chart, name);
  return chart.node;
}
function fillCurve(chart, name) {
  chart.set(linesOf().filter((line) => line.curve.series[name]).map((line) => ({...line, series: line.curve.series[name], events: line.curve.events})));
}

function healthSection() {
  const lines = linesOf();
  if (!lines.length) return null;
  return el('section', {'aria-label': 'Health', id: 'health'}, el('div', {class: 'section-head'}, el('h2', {}, 'Health'),
    el('span', {class: 'soft small', id: 'health-source'}, `Known bad signs, ${healthSource(lines)}; triangles mark them on the curves.`)),
    el('div', {class: 'card', id: 'events'}, eventList(lines)));
}
// Where the events are from: the run's own notes, or another look at its metrics.
function healthSource(lines) {
  const practice = lines.filter((line) => line.curve.stored || line.curve.series['reward/mean']);
  const again = practice.filter((line) => !line.curve.stored).map((line) => line.label);
  if (!again.length) return 'as the run noted them while it went';
  const judged = 'judged again from the metrics with the run’s own limits';
  return again.length === practice.length ? `${judged} (no health.jsonl is kept here)` : `as the runs noted them while they went; of ${again.join(', ')} ${judged} (no health.jsonl there)`;
}
function eventList(lines) {
  const events = lines.flatMap((line) => line.curve.events.map((event) => ({...event, line}))).sort((a, b) => b.step - a.step);
  if (!events.length) return el('p', {class: 'note'}, 'No bad sign was seen.');
  // A sign that persists is one line: its newest words, and since when.
  const signs = new Map();
  for (const event of events) {
    const name = [event.line.label, event.sign, event.severity].join('\u0000');
    if (signs.has(name)) { const one = signs.get(name); one.count += 1; one.since = Math.min(one.since, event.step); } else signs.set(name, {...event, since: event.step, count: 1});
  }
  return el('ul', {class: 'events', tabindex: '0'}, [...signs.values()].slice(0, 200).map((event) => el('li', {},
    el('span', {class: 'step'}, el('span', {class: 'dot ' + event.line.colour}), event.since === event.step ? `step ${event.step}` : `steps ${event.since}–${event.step}`), badge(event.sign, event.severity),
    el('span', {}, event.text, el('span', {class: 'faint'}, event.count > 1 ? ` (${event.count} times)` : '', lines.length > 1 ? ` · ${event.line.label}` : '')))));
}

function partsSection() {
  const stacks = linesOf().map((line) => {
    const names = Object.keys(line.curve.series).filter((name) => name.startsWith(SHARE));
    if (!names.length) return null;
    const chart = new Chart(line.label, '', {share: true, stacked: true, keys: true});
    charts.set(SHARE, [...(charts.get(SHARE) || []), chart]);
    chart.set(names.map((name, place) => ({label: name.slice(SHARE.length), colour: 'c' + ((place + 2) % 8), series: line.curve.series[name]})));
    return chart.node;
  }).filter(Boolean);
  const tables = shownRuns().flatMap((run) => run.table).filter((line) => Object.keys(line.parts).length);
  if (!stacks.length && !tables.length) return null;
  const names = [...new Set(tables.flatMap((line) => Object.keys(line.parts)))];
  return el('section', {'aria-label': 'Reward parts'}, el('div', {class: 'section-head'}, el('h2', {}, 'Reward parts'),
    el('span', {class: 'soft small'}, stacks.length ? 'Share of each part in all reward, signs aside.' : 'Mean of each part over scored episodes.')),
    stacks.length ? el('div', {class: 'charts'}, stacks) : null,
    tables.length ? el('div', {class: 'card scroll'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Episodes'), names.map((name) => el('th', {class: 'n'}, name)))),
      el('tbody', {}, tables.map((line) => el('tr', {}, el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), line.label),
        names.map((name) => el('td', {class: 'n'}, figure(line.parts[name]))))))) ) : null);
}

function tableSection() {
  const lines = shownRuns().flatMap((run) => run.table);
  if (!lines.length) return null;
  const range = (low, high, form) => (isNumber(low) && isNumber(high) ? el('span', {class: 'range'}, ` [${form(low)}, ${form(high)}]`) : null);
  const cell = (line, name, low, high, form) => el('td', {class: 'n'}, line.kept ? '–' : form(line[name]), line.kept ? null : range(line[low], line[high], form));
  const short = (value) => (100 * value).toFixed(0);
  const body = lines.map((line) => el('tr', {class: 'link', tabindex: '0', on: {
    click: () => openList({run: line.run, part: line.part, environment: line.environment}),
    keydown: (event) => { if (event.key === 'Enter') openList({run: line.run, part: line.part, environment: line.environment}); }}},
    el('td', {}, el('span', {class: 'dot ' + colourOf(line.run)}), line.label, line.kept ? el('span', {class: 'faint'}, /top_episodes$/.test(line.part) ? ' (the best-paid)' : ' (first groups of steps 1, 2, 4, 8 …)') : null),
    el('td', {}, line.environment, line.split ? el('span', {class: 'faint'}, ' ' + line.split) : null),
    el('td', {class: 'n'}, line.episodes.toLocaleString('en'), line.tasks !== line.episodes ? el('span', {class: 'range'}, ` of ${line.tasks} tasks`) : null),
    el('td', {class: 'n'}, line.kept ? '–' : percent(line.success_rate), line.kept || !isNumber(line.success_low) ? null : el('span', {class: 'range'}, ` [${short(line.success_low)}, ${short(line.success_high)}]`)),
    cell(line, 'mean_reward', 'reward_low', 'reward_high', figure),
    el('td', {class: 'n'}, figure(line.mean_turns)), el('td', {class: 'n'}, figure(line.mean_tokens)), el('td', {class: 'n'}, line.kept ? '–' : percent(line.invalid_reply_rate)),
    el('td', {class: 'faint small outcomes-cell'}, [...Object.entries(line.outcomes).map(([name, count]) => `${count} ${name}`), ...(line.uncounted ? [`${line.uncounted} without a finite reward`] : [])]
      .map((text, place, all) => [el('span', {class: 'whole'}, text + (place + 1 < all.length ? ',' : '')), ' ']))));
  return el('section', {'aria-label': 'By environment'}, el('div', {class: 'section-head'}, el('h2', {}, 'By environment'),
    el('span', {class: 'soft small'}, 'With 95 % intervals over tasks. Episodes that could not be scored take no part in rates, nor do those that a training kept to be read.')),
    el('div', {class: 'card scroll'}, el('table', {id: 'environments'}, el('thead', {}, el('tr', {}, ['Episodes of', 'Environment'].map((name) => el('th', {}, name)),
      ['Episodes', 'Success', 'Reward', 'Turns', 'Tokens', 'Unusable'].map((name) => el('th', {class: 'n'}, name)), el('th', {}, 'Outcomes'))), el('tbody', {}, body))));
}

function comparisonSection() {
  if (!state.comparisons.length) return null;
  return el('section', {'aria-label': 'Comparison', id: 'comparison'}, el('div', {class: 'section-head'}, el('h2', {}, 'Comparison'),
    el('span', {class: 'soft small'}, 'Paired, on the same tasks; several comparisons are corrected for (Holm).'), el('a', {href: '#/compare', class: 'small'}, 'task by task')),
    state.comparisons.map((found) => verdict(found)));
}

function verdict(found) {
  const rows = found.changes.map((change) => {
    const form = change.rate ? percent : figure;
    const apart = change.rate ? (value) => (isNumber(value) ? (value > 0 ? '+' : '') + (100 * value).toFixed(1) : '–') : (value) => signed(value);
    return el('tr', {}, el('td', {}, change.name), el('td', {class: 'n'}, form(change.baseline)), el('td', {class: 'n'}, form(change.trained)),
      el('td', {class: 'n'}, apart(change.difference), el('span', {class: 'range'}, ` [${apart(change.low)}, ${apart(change.high)}]`)), el('td', {class: 'n'}, figure(change.p, 2)));
  });
  return el('div', {class: 'card verdict'}, el('p', {}, badge(found.verdict, found.verdict === 'no difference shown' ? '' : found.verdict), ' ', found.sentence),
    found.changes.length ? forest(found.changes[0]) : null, el('p', {class: 'soft small'}, found.outlook, ` Compared on ${found.basis}.`),
    el('details', {}, el('summary', {class: 'small'}, 'All figures'), el('div', {class: 'scroll'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Figure'),
      [found.baseline.label, found.trained.label, 'Difference [95 %]', 'p'].map((name) => el('th', {class: 'n'}, name)))), el('tbody', {}, rows)))));
}

function samplesSection() {
  const kinds = [['best', 'Best'], ['worst', 'Worst'], ['surprising', 'Most surprising']];
  const blocks = shownRuns().filter((run) => run.samples && kinds.some(([kind]) => (run.samples[kind] || []).length)).map((run) => {
    const lists = kinds.map(([kind, title]) => {
      const rows = (run.samples[kind] || []).map((number) => rowAt(run.key, number)).filter(Boolean);
      return rows.length ? el('div', {class: 'card'}, el('h3', {}, title), rows.map((row) => item(row))) : null;
    });
    return el('div', {class: 'of-run'}, shownRuns().length > 1 ? el('h3', {class: 'soft'}, el('span', {class: 'dot ' + colourOf(run.key)}), run.name) : null, el('div', {class: 'samples'}, lists));
  });
  if (!blocks.length) return null;
  return el('section', {'aria-label': 'Episodes to read', id: 'samples'}, el('div', {class: 'section-head'}, el('h2', {}, 'Episodes to read'),
    el('span', {class: 'soft small'}, 'Surprising: an outcome that the other attempts at the task (or, without any, the other episodes) made unlikely.')), blocks);
}

function item(row) {
  return el('a', {class: 'item', href: `#/episode/${row.run}/${row.number}`}, el('span', {class: 'dot ' + dotKind(row.outcome)}), el('span', {class: 'name'}, row.task),
    el('span', {class: 'value'}, figure(row.reward)), el('span', {class: 'sub'}, subtitle(row)));
}
function subtitle(row) {
  const words = [row.outcome, row.part, row.step !== null ? `step ${row.step}` : '', `attempt ${row.attempt}`, plural(row.turns, 'turn'), plural(row.tokens, 'token')];
  return words.filter(Boolean).join(' · ');
}

function faultsSection() {
  const faults = shownRuns().flatMap((run) => [...(run.fault ? [{path: run.folder, reason: run.fault}] : []), ...run.unreadable.map((entry) => ({...entry, path: `${run.folder}/${entry.path}`})),
    ...run.curves.flatMap((curve) => [['metrics.jsonl', curve.unreadable], ['health.jsonl', curve.unreadable_events]].filter(([, count]) => count)
      .map(([file, count]) => ({path: `${run.folder}/${curve.name ? curve.name + '/' : ''}${file}`, reason: `${plural(count, 'line')} cannot be read`})))]);
  const counted = shownRuns().reduce((sum, run) => sum + Math.max(0, run.unreadable_count - run.unreadable.length), 0);
  const configs = shownRuns().filter((run) => run.config);
  const config = configs.length ? el('section', {'aria-label': 'Configuration'}, el('h2', {}, 'Configuration'),
    configs.map((run) => el('details', {}, el('summary', {}, run.name), el('pre', {class: 'mono'}, run.config)))) : null;
  if (!faults.length) return config;
  return [el('section', {'aria-label': 'Not readable', id: 'faults'}, el('div', {class: 'section-head'}, el('h2', {}, 'Not readable'), el('span', {class: 'soft small'}, 'These files are damaged or no episodes; all others are shown.')),
    el('div', {class: 'card scroll'}, el('table', {}, el('tbody', {}, faults.slice(0, 200).map((fault) => el('tr', {}, el('td', {class: 'mono'}, fault.path), el('td', {class: 'soft'}, fault.reason)))))),
    counted ? el('p', {class: 'soft small'}, `… and ${counted} more.`) : null), config];
}
