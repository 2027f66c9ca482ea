// The page as a whole: views, keys that hold everywhere.

const TABS = ["graph", "roofline", "timeline", "tables"];
const builders = { graph: buildGraph, roofline: buildRoofline, timeline: buildTimeline, tables: buildTables };
const built = new Set();

function showTab(name) {
  for (const other of TABS) {
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    byId(other).hidden = other !== name;
  }
  if (!built.has(name)) builders[name]();
  built.add(name);
}

byId("model").textContent = report.model || "model";
byId("summary").textContent = report.summary;
byId("facts").textContent =
  `${timeText(report.seconds)} a call, the fastest of ${report.calls}; with ${plural(report.peak.threads, "thread")} this machine reaches ` +
  `${Math.round(report.peak.gflops)} GFLOP/s and ${report.peak.gigabytes.toFixed(1)} GB/s`;

for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => showTab(name));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const current = TABS.findIndex((name) => byId(`tab-${name}`) === document.activeElement);
  const next = TABS[(current + step + TABS.length) % TABS.length];
  showTab(next);
  byId(`tab-${next}`).focus();
  event.preventDefault();
});

byId("help-button").addEventListener("click", () => byId("help").showModal());
addEventListener("keydown", (event) => {
  if (
    isTyping(event.target) ||
    document.querySelector("dialog[open]") ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey
  )
    return;
  if (event.key === "/") byId("search").focus();
  else if (event.key === "?") byId("help").showModal();
  else return;
  event.preventDefault();
});

buildKernels();
showTab("graph");
document.documentElement.dataset.ready = `${Math.round(performance.now() - began)} ms`;
