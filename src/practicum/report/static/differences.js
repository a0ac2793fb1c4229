// What differs between the runs: results, code, machine, configuration.
// Texts of YAML (`a: {b: 1}` as [['a.b', '1']]; enough for files that this package wrote) or JSON.
function flatConfig(text) {
  const found = new Map(), path = [];
  if (text.trimStart().startsWith('{')) {
    const walk = (value, name) => { if (value && typeof value === 'object' && !Array.isArray(value)) for (const [key, one] of Object.entries(value)) walk(one, name ? `${name}.${key}` : key); else found.set(name, JSON.stringify(value)); };
    try { walk(JSON.parse(text), ''); } catch { /* a damaged file has no keys */ }
    return found;
  }
  for (const line of text.split('\n')) {
    const match = /^(\s*)([^\s#:-][^:]*):\s*(.*)$/.exec(line);
    if (!match) { if (path.length && /^\s*- /.test(line)) { const name = path.map(([, one]) => one).join('.'); found.set(name, [found.get(name), line.trim().slice(2)].filter(Boolean).join(', ')); } continue; }
    while (path.length && path[path.length - 1][0] >= match[1].length) path.pop();
    path.push([match[1].length, match[2]]);
    if (match[3]) found.set(path.map(([, name]) => name).join('.'), match[3]);
  }
  return found;
}
function keysOf(run) {
  const found = new Map();
  for (const [name, text] of run.configs || []) for (const [key, value] of flatConfig(text)) found.set(name ? `${name}: ${key}` : key, value);
  return found;
}
// The code that trained a run: several versions where it was resumed by another.
const VERSION_ROWS = [
  ['commit', (one) => (one.commit ? one.commit.slice(0, 9) + (one.changed ? ' with changes' : '') : '')],
  ['practicum', (one) => one.practicum || ''], ['Python', (one) => one.python || ''], ['machine', (one) => one.machine || ''],
];
const versionText = (run, form) => [...new Set((run.versions || []).map(form).filter(Boolean))].join(', then ');
function lastResult(run) {
  const rated = run.table.filter((one) => !one.kept && isNumber(one.success_rate));
  const line = rated.filter((one) => one.part !== 'validation').pop() || rated.pop();
  return line ? `${percent(line.success_rate)}${isNumber(line.success_low) ? ` ${interval(line.success_low, line.success_high)}` : ''} (${shortLabel(line.label, run.name)})` : '';
}
const lengthText = (run) => run.curves.map((curve) => `${curve.name ? curve.name + ' ' : ''}${curve.step}`).join(', ');

const MAX_DIFFERING_RUNS = 8, MAX_DIFFERING_KEYS = 60;
// Trainings of one kind: keys of SFT are none of RL. Runs with several stages come first.
const TRAINING_KINDS = ['several', 'rl', 'dpo', 'sft', 'other'];
const trainingKind = (run) => (run.curves.length > 1 || run.table.filter((line) => !line.kept && line.part !== 'validation').length > 1 ? 'several' : run.curves.length ? stageOf(run.curves[0]) : 'other');
// Of the runs that keep a configuration or a version: plain episodes say nothing about either, and their results are above.
function differencesOf() {
  const all = shownRuns().map((run) => [run, keysOf(run)]).filter(([run, config]) => config.size || (run.versions || []).length);
  const kept = TRAINING_KINDS.map((kind) => all.filter(([run]) => trainingKind(run) === kind)).find((list) => list.length > 1) || all.slice(0, 1);
  const shown = kept.slice(0, MAX_DIFFERING_RUNS), runs = shown.map(([run]) => run), configs = shown.map(([, config]) => config);
  const facts = [['last success', lastResult], ['steps', lengthText], ...VERSION_ROWS.map(([name, form]) => [name, (run) => versionText(run, form)])].map(([name, form]) => [name, runs.map(form)]);
  const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))].map((name) => [name, configs.map((config) => config.get(name) ?? '')]);
  const differ = ([, values]) => new Set(values).size > 1;
  const keysDiffer = ([, values]) => new Set(values.filter((value, place) => configs[place].size)).size > 1; // a run without a configuration says nothing about its keys
  return {runs, left: kept.length - runs.length, configured: configs.filter((config) => config.size).length, facts: facts.filter(differ), same: facts.filter((one) => !differ(one) && one[1][0] && one[0] !== 'last success'), keys: keys.filter(keysDiffer)};
}
function differencesSection() {
  const {runs, left, configured, facts, same, keys} = differencesOf();
  if (runs.length < 2) return null;
  const told = [...facts, ...keys.slice(0, MAX_DIFFERING_KEYS)];
  const count = configured < 2 ? (configured ? 'Only one of these runs keeps its configuration' : 'No configuration is kept')
    : keys.length ? `${plural(keys.length, 'key')} of the configuration ${keys.length === 1 ? 'differs' : 'differ'}` : 'All keys of the configuration have the same values';
  const notes = [same.length ? `The same in all: ${same.map(([name, values]) => `${name} ${values[0]}`).join('; ')}.` : '', left ? `The first ${runs.length} of ${runs.length + left} runs.` : ''].filter(Boolean).map((text) => ' ' + text).join('');
  return el('section', {'aria-label': 'What differs between the runs', id: 'differences'}, el('div', {class: 'section-head'}, el('h2', {}, 'What differs between the runs'),
    el('span', {class: 'soft small'}, `${count}.${notes}`)),
    told.length ? el('div', {class: 'card scroll', tabindex: '0'}, el('table', {id: 'config-differences'}, el('thead', {}, el('tr', {}, el('td', {}), runs.map((run) => el('th', {}, el('span', {class: 'dot ' + colourOf(run.key)}), run.name)))),
      el('tbody', {}, told.map(([name, values], place) => el('tr', {}, el('th', {scope: 'row', class: place < facts.length ? '' : 'mono'}, name), values.map((value) => el('td', {}, value || '–'))))))) : null,
    keys.length > MAX_DIFFERING_KEYS ? el('p', {class: 'soft small'}, `… and ${keys.length - MAX_DIFFERING_KEYS} more keys.`) : null);
}
