// Building the page. Text only ever becomes a text node: nothing here reads markup out of a string.
const SVG = 'http://www.w3.org/2000/svg';

function put(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// el('button', {class: 'x', on: {click: f}}, 'text', otherNode)
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') for (const [kind, heard] of Object.entries(value)) node.addEventListener(kind, heard);
    else if (name === 'value' || name === 'checked') node[name] = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  return put(node, children);
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, String(value));
  return put(node, children);
}

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

function figure(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  if (!isNumber(value)) return String(value);
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(digits)));
}

const signed = (value, digits = 3) => (isNumber(value) && value > 0 ? '+' : '') + figure(value, digits).replace('-', '−');
// A number is rounded as Python does, so that it is the same here and on the terminal: a tie goes to the even digit.
function fixed(value, digits) {
  const rest = Math.abs(value).toFixed(60).split('.')[1].slice(digits);
  if (!/^50*$/.test(rest)) return value.toFixed(digits);
  const below = Math.abs(value).toFixed(60).slice(0, digits - 60);
  const even = '02468'.includes(below[below.length - 1]);
  return even ? (value < 0 ? '-' : '') + below.replace(/\.$/, '') : value.toFixed(digits);
}
const inPercent = (value) => fixed(100 * value, 1);
const percent = (value) => (isNumber(value) ? inPercent(value) + ' %' : '–');
const interval = (low, high) => `[${inPercent(low)}, ${inPercent(high)}]`;
const plural = (count, one, many) => `${count.toLocaleString('en')} ${count === 1 ? one : many || one + 's'}`;

const csvCell = (value) => { const text = value === null || value === undefined ? '' : String(value); return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
function saveFile(name, type, text) {
  const link = el('a', {href: URL.createObjectURL(new Blob([text], {type})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const tip = document.getElementById('tip');
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(x + 12, innerWidth - box.width - 6)) + 'px';
  tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16) + 'px';
}
function hideTip() { tip.hidden = true; }

function badge(text, kind) { return el('span', {class: 'badge ' + (kind || text)}, text); }
const dotKind = (outcome) => (outcome === 'success' || outcome === 'failure' ? outcome : 'other');
