// What each thread was at while the model was explained, and the memory meanwhile, on one axis.

const LANE = 15,
  LABEL = 150,
  KINDS = {
    explain: "explain",
    specialise: "specialise",
    import: "import",
    compile: "compile, or find what was compiled",
    lower: "lower",
    stage: "stage of the compiler",
    pass: "pass over the loop program",
    load: "load",
    record: "first run, recorded",
    pack: "pack weights",
    run: "call of a group",
    device: "work of a device",
    "fall back": "fall back",
    operator: "operator outside of groups",
  };

function buildTimeline() {
  const panel = byId("timeline"),
    activities = report.timeline;
  if (!activities.length) return panel.append(element("p", { class: "quiet" }, "Nothing was recorded."));
  const end = largest([
    ...activities.map((one) => one.start + one.seconds),
    ...report.memory.map((one) => one.seconds),
  ]);
  const threads = lanesOf(activities);
  const whole = [0, end];
  let shown = whole;
  const picture = drawn("svg", {
    tabindex: 0,
    role: "img",
    "aria-label": "Timeline; arrow keys move, + and - change the scale, 0 shows all. The table below has the sums.",
  });
  const set = (from, to) => {
    const length = Math.min(Math.max(to - from, 1e-6), end);
    const start = Math.min(Math.max(from, 0), end - length);
    shown = [start, start + length];
    draw(picture, threads, shown);
  };
  const zoom = (factor, at = (shown[0] + shown[1]) / 2) =>
    factor === null ? set(...whole) : set(at - (at - shown[0]) / factor, at + (shown[1] - at) / factor);
  const parts = activities.filter((one) => one.kind === "explain");
  const jumps = parts.map((part) =>
    element(
      "button",
      { onclick: () => set(part.start - part.seconds * 0.02, part.start + part.seconds * 1.02) },
      part.name,
    ),
  );
  panel.append(
    element("h2", null, "Timeline"),
    element(
      "div",
      { class: "bar" },
      element(
        "div",
        { class: "choice", role: "group", "aria-label": "Show" },
        element("button", { onclick: () => zoom(null) }, "all"),
        jumps,
      ),
      element("div", { class: "spacer" }),
      zoomButtons(zoom),
    ),
    picture,
    legend(activities),
    element("h2", null, "Time by kind"),
    element(
      "p",
      { class: "quiet" },
      "One may be a part of another: the first call of a group holds what compiling it took.",
    ),
    sums(activities),
  );
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    if (step) set(shown[0] + step * (shown[1] - shown[0]), shown[1] + step * (shown[1] - shown[0]));
    else if (!zoomKey(event, zoom)) return;
    event.preventDefault();
  });
  picture.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const { left, width } = picture.getBoundingClientRect();
      const at = shown[0] + ((event.clientX - left - LABEL) / (width - LABEL)) * (shown[1] - shown[0]);
      if (event.ctrlKey) zoom(event.deltaY < 0 ? 1.3 : 1 / 1.3, at);
      else
        set(
          shown[0] + Math.sign(event.deltaY) * 0.1 * (shown[1] - shown[0]),
          shown[1] + Math.sign(event.deltaY) * 0.1 * (shown[1] - shown[0]),
        );
    },
    { passive: false },
  );
  new ResizeObserver(() => draw(picture, threads, shown)).observe(panel);
}

// The activities of each thread, each in the first lane below what it is in.
function lanesOf(activities) {
  const threads = new Map();
  for (const one of activities) {
    if (!threads.has(one.thread)) threads.set(one.thread, { name: one.thread, ends: [], placed: [] });
    const thread = threads.get(one.thread);
    let lane = 0;
    for (const [depth, end] of thread.ends.entries()) if (one.start < end - 1e-9) lane = depth + 1;
    thread.ends.length = lane;
    thread.ends.push(one.start + one.seconds);
    thread.placed.push({ ...one, lane });
  }
  for (const thread of threads.values()) thread.depth = 1 + largest(thread.placed.map((one) => one.lane));
  return [...threads.values()];
}

function draw(picture, threads, [from, to]) {
  const width = picture.parentNode.clientWidth - 34;
  if (width < LABEL * 2) return;
  const x = (seconds) => LABEL + ((seconds - from) / (to - from)) * (width - LABEL);
  const content = [],
    bottom = 24 + threads.reduce((sum, thread) => sum + thread.depth * LANE + 10, 0);
  content.push(...axis(x, from, to, bottom));
  let y = 24;
  for (const thread of threads) {
    content.push(drawn("text", { x: 0, y: y + 11, class: "thread" }, shortened(thread.name, 22)));
    const drawnTo = [];
    for (const one of thread.placed) {
      const left = Math.max(x(one.start), LABEL),
        right = Math.min(x(one.start + one.seconds), width);
      if (right < LABEL || left > width || right <= left) continue;
      // What is narrower than a pixel is drawn once for all of it.
      if (right - left < 1 && right < (drawnTo[one.lane] ?? 0) + 1) continue;
      drawnTo[one.lane] = right;
      const at = { x: left, y: y + one.lane * LANE, width: Math.max(right - left - 0.5, 0.75), height: LANE - 2 };
      content.push(
        drawn(
          "rect",
          { ...at, rx: 2, class: `kind ${one.kind.replace(" ", "-")}` },
          drawn("title", null, `${one.name}\n${KINDS[one.kind]}, ${timeText(one.seconds)}`),
        ),
      );
      const room = Math.floor((right - left - 6) / 6.2);
      if (room > 3)
        content.push(drawn("text", { x: left + 3, y: at.y + 10, class: "inside" }, shortened(one.name, room)));
    }
    y += thread.depth * LANE + 10;
  }
  content.push(...memory(x, from, to, width, y + 14));
  const height = y + 14 + (report.memory.length > 1 ? 150 : 0);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.replaceChildren(...content);
}

function axis(x, from, to, bottom) {
  const step = 10 ** Math.floor(Math.log10((to - from) / 4)),
    found = [];
  const wide = [5, 2, 1].find((many) => (to - from) / (step * many) >= 4) * step;
  for (let at = Math.ceil(from / wide) * wide; at <= to; at += wide)
    found.push(
      drawn("line", { x1: x(at), x2: x(at), y1: 14, y2: bottom, class: "grid" }),
      drawn("text", { x: x(at) + 3, y: 11, class: "tick" }, timeText(Math.max(at, 0)) === "0 ns" ? "0" : timeText(at)),
    );
  return found;
}

function memory(x, from, to, width, top) {
  const samples = report.memory;
  if (samples.length < 2) return [];
  const height = 130,
    series = [
      ["resident", "resident set"],
      ["packed", "packed weights"],
      ["workspace", "workspace"],
    ];
  const highest = largest([...samples.map((one) => one.resident), ...samples.map((one) => one.packed), 1]);
  const y = (bytes) => top + height - (bytes / highest) * (height - 16);
  const found = [
    drawn("text", { x: 0, y: top + 24, class: "thread" }, "memory"),
    drawn("line", { x1: LABEL, x2: width, y1: top + height, y2: top + height, class: "grid" }),
  ];
  series.forEach(([name, title], k) => {
    const inView = samples.filter((one) => one.seconds >= from && one.seconds <= to);
    const before = samples.filter((one) => one.seconds < from).at(-1),
      after = samples.find((one) => one.seconds > to);
    const points = [before && { ...before, seconds: from }, ...inView, after && { ...after, seconds: to }].filter(
      Boolean,
    );
    const last = largest(samples.map((one) => one[name]));
    if (points.length)
      found.push(
        drawn("path", {
          class: `memory ${name}`,
          d: `M${points.map((one) => `${x(one.seconds).toFixed(1)},${y(one[name]).toFixed(1)}`).join("L")}`,
        }),
      );
    found.push(drawn("text", { x: 0, y: top + 46 + 16 * k, class: `note ${name}` }, `${title}: ${bytesText(last)}`));
  });
  return found;
}

function legend(activities) {
  const used = new Set(activities.map((one) => one.kind));
  return element(
    "ul",
    { class: "kinds" },
    Object.entries(KINDS)
      .filter(([kind]) => used.has(kind))
      .map(([kind, title]) => element("li", null, element("span", { class: `kind ${kind.replace(" ", "-")}` }), title)),
  );
}

function sums(activities) {
  const found = new Map();
  for (const one of activities) {
    const key = one.kind === "stage" || one.kind === "pass" ? `${one.kind}\n${one.name}` : one.kind;
    const sum = found.get(key) ?? { kind: one.kind, name: key.includes("\n") ? one.name : "", count: 0, seconds: 0 };
    found.set(key, { ...sum, count: sum.count + 1, seconds: sum.seconds + one.seconds });
  }
  const rows = [...found.values()]
    .filter((one) => one.kind !== "explain")
    .sort((one, other) => other.seconds - one.seconds);
  return table(
    ["what", "", "count", "time"],
    rows.map((one) => [KINDS[one.kind], one.name, String(one.count), timeText(one.seconds)]),
    [2, 3],
  );
}
