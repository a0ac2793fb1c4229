// Under the sentence of the result: what fails, which tool errs, the gravest bad sign and what differs, a line each that leads to its section.
function showSection(id) {
  const node = document.getElementById(id);
  if (!node) return;
  node.scrollIntoView({block: 'start', behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'});
  node.setAttribute('tabindex', '-1');
  node.focus({preventScroll: true});
}
const MAX_GLANCE_CHARACTERS = 160, MAX_VALUE_CHARACTERS = 32;
const brief = (text) => (text.length > MAX_GLANCE_CHARACTERS ? text.slice(0, MAX_GLANCE_CHARACTERS) + ' …' : text);
const ending = (text) => (text.length > MAX_VALUE_CHARACTERS ? '…' + text.slice(-MAX_VALUE_CHARACTERS) : text || '–'); // of a path the end says the most
const ofStage = (cohort) => (cohort ? shortLabel(cohort.stage) : 'all parts');

// The best of the held-out results, and whether it is shown to be better than the next one.
function bestGlance() {
  const lines = shownLines(resultGroups())[0] || [];
  // Of those with tasks in common: a rate on other tasks says nothing about these.
  const [best, next] = lines.filter((line) => lines.some((other) => comparisonOf(other, line))).sort((a, b) => b.rate - a.rate || lines.indexOf(b) - lines.indexOf(a));
  if (!next || isSecondary(best)) return null;
  const found = comparisonOf(next, best), kind = verdictKind(found);
  return ['result', 'Best', [el('b', {}, shortLabel(best.label)), ` ${percent(best.rate)}${isNumber(best.low) ? ` ${interval(best.low, best.high)}` : ''}; next ${shortLabel(next.label)} ${percent(next.rate)}`,
    found ? [': ', badge(found.verdict, kind), found.changes.length ? ` ${apartText(found)}` : ''] : null], ''];
}

function failingGlance(cohort, rows) {
  if (!rows.length) return null;
  if (rows.every((row) => row.outcome === 'success')) return ['failures', 'Fails', `no episode of ${plural(rows.length, 'episode')}`, ofStage(cohort)];
  const kind = usualCause(rows), [worst] = clustersBy(rows, kind), count = (value) => value.toLocaleString('en');
  const text = kind === 'kind' ? `most often ${worst.cause}: ${count(worst.count)} of ${count(worst.of)} (${percent(worst.count / worst.of)})`
    : `${count(worst.count)} of ${plural(rows.length, 'episode')} by ${CAUSES[kind][0]} ‘${worst.cause}’ (${worst.outcome})`;
  return ['failures', 'Fails', brief(text), ofStage(cohort)];
}

function toolsGlance(cohort, rows) {
  const text = (list) => {
    const totals = new Map();
    for (const {name, calls, errors} of toolsOf(list)) { const [a, b] = totals.get(name) || [0, 0]; totals.set(name, [a + calls, b + errors]); }
    const failing = [...totals].filter(([, [, errors]]) => errors).sort(([, a], [, b]) => b[1] - a[1]), calls = [...totals.values()].reduce((sum, [num]) => sum + num, 0);
    // The most frequent error of the tool that errs most often.
    const mostFrequent = (name) => { const worst = toolErrorsOf(list).find((error) => error.name === name); return worst ? `, most often ‘${worst.text}’ (${worst.calls.toLocaleString('en')})` : ''; };
    const shown = failing.slice(0, 3).map(([name, [of, errors]], index) => `${name} ${errors.toLocaleString('en')} of ${plural(of, 'call')} (${percent(errors / of)})${index ? '' : mostFrequent(name)}`).join('; ');
    return {calls, failing: failing.length, text: failing.length ? shown + (failing.length > 3 ? ` and ${plural(failing.length - 3, 'further tool')}` : '') : `no error in ${plural(calls, 'call')}`};
  };
  const own = text(rows), all = cohort ? text(allRows()) : own;
  if (!all.calls) return null;
  const more = cohort && !own.failing && all.failing ? `; over all stages: ${all.text}` : '';
  return ['failures', 'Tool errors', brief((own.calls ? own.text : 'no tool was called') + more), ofStage(cohort)];
}

function healthGlance() {
  const lines = linesOf(), signs = signsOf(lines);
  if (!lines.length) return null;
  if (!signs.length) return ['health', 'Health', 'no bad sign was seen', ''];
  const [worst] = signs, rest = signs.length - 1; // the gravest, of those the first
  return ['health', 'Health', [badge(`${worst.severity}: ${worst.sign}`, worst.severity), ` ${['adjusted', 'stopped'].includes(worst.sign) ? whenText(worst) : `since step ${worst.since}`}${lines.length > 1 ? ` of ${worst.line.label}` : ''}${rest ? `, and ${plural(rest, 'further sign')}` : ''}`], ''];
}

// Settings first: names and paths of runs differ anyhow.
const BOOKKEEPING = /(name|path|dir|folder|out)$/;
function differencesGlance() {
  const {runs, facts, keys} = differencesOf();
  if (runs.length < 2) return null;
  const settings = [...keys.filter(([name]) => !BOOKKEEPING.test(name)), ...facts.filter(([name]) => name !== 'last success' && name !== 'steps'), ...keys.filter(([name]) => BOOKKEEPING.test(name))];
  const texts = settings.map(([name, values]) => (runs.length === 2 ? `${name} ${values.map(ending).join(' → ')}` : name));
  let count = texts.length ? 1 : 0;
  while (count < texts.length && texts.slice(0, count + 1).join(', ').length <= MAX_GLANCE_CHARACTERS) count += 1;
  return ['differences', 'Runs differ in', texts.length ? texts.slice(0, count).join(', ') + (count < texts.length ? ` and ${texts.length - count} more` : '') : 'no key of their configurations', runs.length === 2 ? runs.map((run) => run.name).join(' → ') : ''];
}

function glance() {
  const cohort = lastCohort(), rows = cohort ? cohort.rows : allRows();
  const lines = [bestGlance(), failingGlance(cohort, rows), toolsGlance(cohort, rows), healthGlance(), differencesGlance()].filter(Boolean);
  if (!lines.length) return null;
  return el('dl', {class: 'glance', id: 'glance'}, lines.map(([id, title, text, where]) => el('div', {}, el('dt', {}, el('button', {type: 'button', class: 'as-link', 'data-section': id, title: 'Show the details', on: {click: () => showSection(id)}}, title)),
    el('dd', {}, text, where ? el('span', {class: 'faint'}, ` · ${where}`) : null))));
}
