// Elements, tables, numbers as text, keys. Text from the model becomes text nodes alone: nothing of it is read as HTML.

const began = performance.now();
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const drawn = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

// `numbers`: the columns that are aligned to the right.
function table(head, rows, numbers = []) {
  const cell = (kind, content, column) =>
    element(kind, { class: numbers.includes(column) ? "number" : null, scope: kind === "th" ? "col" : null }, content);
  return element(
    "div",
    { class: "scroll" },
    element(
      "table",
      null,
      element(
        "thead",
        null,
        element(
          "tr",
          null,
          head.map((text, column) => cell("th", text, column)),
        ),
      ),
      element(
        "tbody",
        null,
        rows.map((row) =>
          element(
            "tr",
            null,
            row.map((content, column) => cell("td", content, column)),
          ),
        ),
      ),
    ),
  );
}

function scaled(number, units) {
  for (const [unit, scale] of units) if (number >= scale) return `${Number((number / scale).toPrecision(3))} ${unit}`;
  const [unit, scale] = units[units.length - 1];
  return `${Number((number / scale).toPrecision(2))} ${unit}`;
}

const timeText = (seconds) =>
  scaled(seconds, [
    ["s", 1],
    ["ms", 1e-3],
    ["µs", 1e-6],
    ["ns", 1e-9],
  ]);
const bytesText = (bytes) =>
  scaled(bytes, [
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
    ["bytes", 1],
  ]);
const countText = (count) =>
  scaled(count, [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
    ["", 1],
  ]).trim();
const shareText = (share) => (share && share < 0.0005 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// Of any number of numbers: arguments there can be but so many.
const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, number), -Infinity);

const fileOf = (source) => source.slice(source.lastIndexOf("/") + 1);
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

const isTyping = (target) => target instanceof HTMLInputElement;

// The one of `items` in the direction of an arrow key from `from`: near, and rather ahead than aside.
// `box` gives an item's centre and size.
function inDirection(items, from, key, box) {
  const ahead = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[key];
  if (!ahead) return null;
  const start = box(from);
  let best = null,
    least = Infinity;
  for (const item of items) {
    if (item === from) continue;
    const at = box(item),
      dx = at.x - start.x,
      dy = at.y - start.y;
    const forward = dx * ahead[0] + dy * ahead[1],
      aside = Math.abs(dx * ahead[1]) + Math.abs(dy * ahead[0]);
    if (forward <= 1) continue;
    const distance = forward + 2 * aside;
    if (distance < least) [best, least] = [item, distance];
  }
  return best;
}

// One item of several is in the order of Tab: the one that was focused last.
function rove(items, current) {
  for (const item of items) item.setAttribute("tabindex", item === current ? "0" : "-1");
}

// "Larger", "smaller", "all" as buttons and keys. `zoom` takes a factor, null for all.
function zoomButtons(zoom) {
  const button = (text, label, factor) =>
    element("button", { "aria-label": label, title: label, onclick: () => zoom(factor) }, text);
  return [button("+", "Larger", 1.4), button("−", "Smaller", 1 / 1.4), button("⤢", "All of it", null)];
}

function zoomKey(event, zoom) {
  const factor = { "+": 1.4, "=": 1.4, "-": 1 / 1.4, 0: null }[event.key];
  if (factor === undefined || event.ctrlKey || event.metaKey || event.altKey) return false;
  zoom(factor);
  event.preventDefault();
  return true;
}
