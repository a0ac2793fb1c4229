// One episode, turn by turn, its tokens coloured by origin, log-prob or advantage.
const look = {by: 'origin', view: 'tokens'};
const STEP = 4000;

const LEGENDS = {
  origin: () => [el('span', {class: 't sampled'}, 'sampled: written by the policy, and trained'), el('span', {class: 't observation'}, 'observation'), el('span', {class: 't template'}, 'chat template')],
  logprob: () => ['log-prob of sampled tokens:', ...[0, -0.2, -0.7, -1.5, -3, -5].map((from, place) => el('span', {class: 't h' + place}, place === 0 ? '0' : `≤ ${String(from).replace('-', '−')}`))],
  advantage: (rows, found) => [el('span', {class: 't d3'}, '≤ −1'), el('span', {class: 't d1'}, 'below 0'), el('span', {class: 't u0'}, '0'), el('span', {class: 't u1'}, 'above 0'), el('span', {class: 't u3'}, '≥ 1'),
    el('span', {id: 'advantage-source'}, advantageSource(rows, found.filter(Boolean)))],
};

// Where advantages are from: the run that trained with them, or this page.
function advantageSource(rows, found) {
  const kept = rows.filter((row) => isNumber(row.credit)).length;
  const here = 'computed for this page: (reward − mean) / deviation over the group’s scored episodes as listed here; the run left none beside the episode';
  if (!kept) return here + '.';
  const names = [...new Set(found.map((one) => one.estimator).filter(Boolean))].join(', ');
  const each = found.some((one) => (one.turns || []).some((turn) => turn.spans.some((span) => span.advantages))) ? 'token by token' : 'one number for all tokens of an episode';
  return `as the run trained with them${names ? ` (${names})` : ''}, ${each}` + (kept < rows.length ? `; of the other ${rows.length - kept} here, ${here}.` : '.');
}

function heat(value) {
  if (!isNumber(value)) return 'hx';
  const size = -value;
  return 'h' + (size >= 5 ? 5 : size >= 3 ? 4 : size >= 1.5 ? 3 : size >= 0.7 ? 2 : size >= 0.2 ? 1 : 0);
}
function lean(value) {
  if (!isNumber(value)) return '';
  const size = Math.abs(value);
  if (size < 0.05) return 'u0';
  return (value > 0 ? 'u' : 'd') + (size >= 1 ? 3 : size >= 0.5 ? 2 : 1);
}

function controls(again, rows, found) {
  const choice = (name, options) => el('span', {class: 'segmented', role: 'group', 'aria-label': name}, options.map(([value, title, key]) => el('button', {type: 'button', 'data-choice': value, title: `Key ${key}`,
    'aria-pressed': String(look[name] === value), on: {click: () => { look[name] = value; remember(); again(); }}}, title)));
  return [choice('view', [['tokens', 'Tokens', 't'], ['messages', 'Messages', 't']]),
    look.view === 'tokens' ? choice('by', [['origin', 'Origin', 'o'], ['logprob', 'Log-prob', 'l'], ['advantage', 'Advantage', 'a']]) : null,
    look.view === 'tokens' ? el('span', {class: 'legend'}, LEGENDS[look.by](rows, found)) : null];
}

let shownEpisode = null;

function episodePane(row) {
  const body = el('div', {});
  const tools = el('div', {class: 'tools'});
  const group = groupOf(row);
  const others = sameTask(row);
  const advantage = advantageOf(row);
  const node = el('div', {class: 'episode'},
    el('a', {class: 'back', href: addressOf('episodes')}, '‹ episodes'),
    el('div', {class: 'episode-head'}, el('h2', {}, row.task), badge(row.outcome)),
    el('div', {class: 'facts'}, fact('reward', figure(row.reward)), advantage === null ? null : fact(isNumber(row.credit) ? 'advantage' : 'advantage (computed here)', signed(advantage)), fact('turns', row.turns), fact('sampled tokens', row.tokens),
      row.logprob === null ? null : fact('mean log-prob', figure(row.logprob)), row.invalid ? fact('unusable replies', row.invalid) : null,
      el('span', {}, el('span', {class: 'dot ' + colourOf(row.run)}), runAndPart(row.run, row.part), row.step !== null ? ` · step ${row.step}` : '')),
    group.length > 1 ? el('div', {class: 'group'}, el('span', {class: 'soft small'}, `Its group of ${group.length}:`), group.slice(0, 32).map((one) => el('button', {type: 'button', class: 'chip ' + one.outcome,
      'aria-current': one === row, title: `attempt ${one.attempt}, ${one.outcome}`, on: {click: () => { go(`episode/${one.run}/${one.number}`); }}}, figure(one.reward))),
      el('button', {type: 'button', class: 'small-button', id: 'group-side', on: {click: () => side(group)}}, 'Side by side')) : null,
    others.length ? el('div', {class: 'group'}, el('span', {class: 'soft small'}, 'The same task elsewhere:'), others.slice(0, 12).map((one) => el('button', {type: 'button', class: 'chip ' + one.outcome, title: one.outcome,
      on: {click: () => { go(`episode/${one.run}/${one.number}`); }}}, el('span', {class: 'dot ' + colourOf(one.run)}), `${runAndPart(one.run, one.part)} ${figure(one.reward)}`)),
      el('button', {type: 'button', class: 'small-button', id: 'task-side', on: {click: () => side([row, ...others])}}, 'Side by side')) : null,
    tools, body);
  const again = () => { tools.replaceChildren(...put(el('div', {}), controls(again, [row], [node.found])).childNodes); if (node.found) body.replaceChildren(...turnsOf(node.found, row)); };
  again();
  shownEpisode = {row, again, group};
  body.append(el('p', {class: 'faint'}, 'Opening …'));
  episodeAt(row.run, row.number).then((found) => { node.found = found; again(); }).catch((error) => body.replaceChildren(el('p', {class: 'unusable'}, `It cannot be opened: ${error.message}`)));
  return node;
}

function side(rows) { location.hash = '#/side/' + rows.slice(0, 8).map((row) => `${row.run}.${row.number}`).join(','); }

// The same task in other parts and runs, one attempt each.
function sameTask(row) {
  const seen = new Set([row.run + '\u0000' + row.part]);
  const found = [];
  for (const one of allRows()) {
    const place = one.run + '\u0000' + one.part;
    if (one.hash === row.hash && one.task === row.task && !seen.has(place)) { seen.add(place); found.push(one); }
  }
  return found;
}

function turnsOf(found, row) {
  if (found.absent) return [el('p', {class: 'card note'}, 'This episode is listed here but its text is not in this file. ', el('br', {}), 'Make the report with a larger --episodes-mb, or look at the run’s folder with `practicum ui`.')];
  if (found.fault) return [el('p', {class: 'card note'}, `It cannot be shown: ${found.fault}. `, el('br', {}), el('span', {class: 'mono small'}, found.path || ''))];
  const advantage = advantageOf(row);
  const nodes = [];
  if (look.view === 'tokens' && !found.tokenizer) nodes.push(el('p', {class: 'faint small'}, found.named ? `The tokenizer of '${found.named}' is not on this machine: messages are shown instead of tokens.` : 'It has no tokens on record: messages are shown instead.'));
  if (look.view === 'tokens' && look.by === 'advantage' && advantage === null) nodes.push(el('p', {class: 'faint small'}, 'No advantage: its group has no second scored episode here.'));
  if (found.drawing) nodes.push(drawingNode(found));
  found.turns.forEach((turn, place) => nodes.push(turnNode(turn, place, found, advantage)));
  if (found.more_turns) nodes.push(el('p', {class: 'cut'}, `${plural(found.more_turns, 'more turn')} in its file.`));
  if (found.closing.length) nodes.push(el('div', {class: 'turn card'}, el('div', {class: 'turn-head'}, el('b', {}, 'Closing')), found.closing.map(messageNode)));
  if (found.error) nodes.push(el('p', {class: 'unusable'}, textNodes(found.error)));
  nodes.push(el('details', {class: 'small'}, el('summary', {}, 'Task, seeds and provenance'), el('pre', {class: 'mono'}, JSON.stringify({task: found.task, parts: found.parts, seeds: found.seeds, provenance: found.provenance, file: found.path}, null, 1))));
  return nodes;
}

// As an image an SVG runs no script and loads nothing.
function drawingNode(found) {
  if (!found.drawing.svg) return el('p', {class: 'faint small'}, `No drawing: ${found.drawing.fault}`);
  return el('div', {class: 'card drawing'}, el('img', {alt: 'Drawing of the episode', src: 'data:image/svg+xml,' + encodeURIComponent(found.drawing.svg)}));
}

function turnNode(turn, place, found, advantage) {
  const parts = Object.entries(turn.parts).map(([name, value]) => fact(name, figure(value)));
  const head = el('div', {class: 'turn-head'}, el('b', {}, `Turn ${place + 1}`), turn.role ? el('b', {}, turn.role) : null, el('span', {}, turn.source), fact('tokens', turn.tokens), fact('stopped by', turn.stop), fact('reward', figure(turn.reward)), parts,
    turn.progress === null ? null : fact('progress', figure(turn.progress)), turn.version ? fact('version', turn.version) : null, turn.restart && place > 0 ? el('span', {}, 'prompt begins anew') : null,
    turn.continues !== null && turn.continues !== place - 1 ? el('span', {}, `continues turn ${turn.continues + 1}`) : null,
    turn.reason ? el('span', {class: 'faint'}, `(${turn.reason})`) : null, turn.compared ? badge(turn.compared, turn.compared === 'same reply' ? '' : 'warn') : null);
  const asTokens = look.view === 'tokens' && found.tokenizer && turn.spans.length;
  const body = asTokens ? tokensNode(turn, advantage) : [turn.messages.map(messageNode), messageNode({role: 'assistant', text: turn.reply})];
  const calls = turn.calls.map((call) => el('div', {class: 'call'}, el('span', {class: 'faint'}, 'calls '), el('code', {}, call.name), ' ', el('code', {class: 'soft'}, JSON.stringify(call.arguments))));
  const info = Object.keys(turn.info).length ? el('details', {class: 'small'}, el('summary', {}, 'Info'), el('pre', {class: 'mono'}, JSON.stringify(turn.info, null, 1))) : null;
  return el('div', {class: 'turn card', 'data-turn': place}, head, body, calls, turn.unusable ? el('p', {class: 'unusable'}, 'Unusable reply: ', textNodes(turn.unusable)) : null, info);
}

function messageNode(message) {
  return el('div', {class: 'message ' + (message.role === 'assistant' ? 'assistant' : '')}, el('div', {class: 'role'}, message.role, message.name ? ` (${message.name})` : '', message.images ? ` with ${plural(message.images, 'picture')}` : ''),
    el('div', {class: 'text'}, textNodes(message.text)));
}
function textNodes(text) {
  if (text === null || typeof text !== 'object') return [String(text)];
  return [text.head, el('span', {class: 'cut'}, `… ${plural(text.left, 'letter')} not shown …`), text.tail];
}

function tokensNode(turn, advantage) {
  const node = el('div', {class: `tokens by-${look.by}`, tabindex: '0'});
  const all = [];
  let written = 0;
  for (const span of turn.spans) {
    span.texts.forEach((text, place) => { all.push([span, place, text, span.origin === 'sampled' && isNumber(turn.apart) && written >= turn.apart ? ' apart' : '']); if (span.origin === 'sampled') written += 1; });
    if (span.left) all.push([span, -1, '']);
  }
  let done = 0;
  const more = () => {
    const piece = document.createDocumentFragment();
    for (const [span, place, text, apart] of all.slice(done, done + STEP)) {
      if (place < 0) { piece.append(el('span', {class: 'cut'}, `… ${plural(span.left, 'more token')} (${span.origin}) in its file …`)); continue; }
      const kind = span.origin !== 'sampled' ? '' : look.by === 'logprob' ? (span.logprobs ? heat(span.logprobs[place]) : '') : look.by === 'advantage' ? lean(span.advantages ? span.advantages[place] : advantage) : '';
      const token = el('span', {class: `t ${span.origin} ${kind}${apart}`}, text);
      token.told = [span, place];
      piece.append(token);
    }
    done += STEP;
    if (done < all.length) {
      const button = el('button', {type: 'button', class: 'small-button'}, `Show ${Math.min(STEP, all.length - done).toLocaleString('en')} more of ${(all.length - done).toLocaleString('en')}`);
      button.addEventListener('click', () => { button.remove(); more(); });
      piece.append(button);
    }
    node.append(piece);
  };
  more();
  const tell = (event) => {
    const token = event.target.told ? event.target : null;
    if (!token) { hideTip(); return; }
    const [span, place] = token.told;
    const lines = [`${JSON.stringify(span.texts[place])}  id ${[].concat(span.ids[place]).join(' ')}`, span.origin];
    if (span.logprobs) { const value = span.logprobs[place]; lines.push(`log-prob ${figure(value)}` + (isNumber(value) ? `, probability ${figure(Math.exp(value))}` : '')); }
    const credit = span.advantages ? span.advantages[place] : span.origin === 'sampled' ? advantage : null;
    if (isNumber(credit)) lines.push(`advantage ${signed(credit)}`);
    showTip(lines.join('\n'), event.clientX, event.clientY);
  };
  node.addEventListener('pointermove', tell);
  node.addEventListener('click', tell);
  node.addEventListener('pointerleave', hideTip);
  return node;
}
