// The page of a run on a device: its score, operators, frontends, reasons, programs.

const data = JSON.parse(byId("data").textContent);
const operators = Object.entries(data.score.operators);
const main = byId("main");

function section(title, ...content) {
  main.append(element("h2", null, title), ...content);
}

const list = (texts) =>
  element(
    "ul",
    { class: "plain" },
    texts.map((text) => element("li", null, text)),
  );
const counted = (counts) => list(Object.entries(counts).map(([text, count]) => `${text} (${count})`));

byId("line").textContent = data.line;
byId("facts").textContent = data.definition;

if (data.changes)
  section(
    "Changes since the baseline",
    table(
      ["change", "programs"],
      Object.entries(data.changes).map(([kind, names]) => [`${kind}: ${names.length}`, list(names)]),
    ),
  );
section(
  "Declared operators",
  table(
    ["operator", "samples", "compiled", "right", "why the others are not right on the device"],
    operators.map(([op, entry]) => [
      op,
      String(entry.samples),
      String(entry.compiled),
      String(entry.right),
      entry.samples ? counted(entry.reasons) : "it does not have a sample",
    ]),
    [1, 2, 3],
  ),
);
if (Object.keys(data.score.ways).length)
  section(
    "Programs on the device, without samples",
    table(
      ["way", ...data.ways.map((name) => name.replace("_", " "))],
      Object.entries(data.score.ways).map(([way, entry]) => [way, ...data.ways.map((name) => String(entry[name]))]),
      data.ways.map((_, column) => column + 1),
    ),
  );
section(
  "Why declared operators did not run on the device",
  table(
    ["programs", "operator and reason"],
    Object.entries(data.score.reasons).map(([reason, count]) => [String(count), reason]),
    [0],
  ),
);

// The text of a row is searched as it is shown.
const search = element("input", { id: "search", type: "search", "aria-label": "Search programs", placeholder: "search" });
const count = element("p", { class: "quiet", role: "status" });
const programs = table(
  ["program", "way", "ended as", "formed", "compiled", "calls on the device", "right on it", "reasons"],
  data.programs.map((cells) => cells.map((cell) => (Array.isArray(cell) ? list(cell) : String(cell)))),
  [3, 4, 5],
);
const rows = [...programs.querySelectorAll("tbody tr")];
const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" "));

function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  rows.forEach((row, index) => (row.hidden = !words.every((word) => texts[index].includes(word))));
  count.textContent = plural(rows.filter((row) => !row.hidden).length, "program");
}

search.addEventListener("input", find);
find();
section("Programs", element("div", { class: "search" }, search), count, programs);
section("Machine and versions", table(["what", "which"], Object.entries(data.environment)));
document.documentElement.dataset.ready = `${Math.round(performance.now() - began)} ms`;
