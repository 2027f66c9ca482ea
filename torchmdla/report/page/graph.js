// The graph: operators outside of groups and groups, which unfold to kernels or operators.

const MOST_UNFOLDED = 800; // operators of a group that is unfolded unasked
let graphZoom = 1,
  graphNodes = [],
  graphView,
  unfoldTo = "kernels";

function buildGraph() {
  const choice = (what) =>
    element(
      "button",
      {
        "aria-pressed": String(unfoldTo === what),
        onclick: (event) => {
          unfoldTo = what;
          for (const other of event.currentTarget.parentNode.children)
            other.setAttribute("aria-pressed", String(other === event.currentTarget));
          for (const name of unfolded.keys()) unfolded.set(name, what);
          drawGraph();
        },
      },
      what,
    );
  graphView = element("div", { id: "graph-view" });
  byId("graph").append(
    element(
      "div",
      { class: "bar" },
      element("span", null, "groups unfold to"),
      element(
        "div",
        { class: "choice", role: "group", "aria-label": "Groups unfold to" },
        choice("kernels"),
        choice("operators"),
      ),
      element("button", { id: "fold-all", onclick: foldAll }, "Fold all"),
      element("div", { class: "spacer" }),
      element(
        "span",
        { class: "legend" },
        "0 %",
        element("span", { class: "scale" }),
        `${shareText(most)} of the time`,
      ),
      zoomButtons(zoomGraph),
    ),
    graphView,
  );
  if (report.graph.is_sequence)
    graphView.before(
      element(
        "p",
        { class: "quiet" },
        "Python runs between the parts of this model, so that it has no graph: operators and groups stand in the order of a call.",
      ),
    );
  graphView.addEventListener("keydown", graphKey);
  dragToScroll(graphView);
  // A group that is all there is has nothing to show while it is folded.
  const [first, ...others] = report.graph.operators;
  if (first?.group && !others.length && groups.get(first.group)?.graph.operators.length <= MOST_UNFOLDED)
    unfolded.set(first.group, unfoldTo);
  drawGraph();
  graphZoom = Math.min(Math.max(graphView.clientWidth / graphView.firstChild.dataset.width, 0.8), 1);
  sizeGraph();
}

// --- drawing ----------------------------------------------------------------------------------------------------

function drawGraph(focusId) {
  const operators = report.graph.operators,
    nodes = outerNodes();
  const ends = [
    { id: "inputs", width: PORT, height: PORT, isPort: true },
    { id: "results", width: PORT, height: PORT, isPort: true },
  ];
  const from = ([number]) => (number < 0 ? "inputs" : `n${number}`);
  const edges = [
    ...operators.flatMap((operator, number) => operator.inputs.map((value) => [from(value), `n${number}`])),
    ...report.graph.results.map((value) => [from(value), "results"]),
  ];
  const layout = laidOut([...ends, ...nodes], edges);
  const picture = drawn("svg", {
    role: "group",
    "aria-label": "Graph of the model; arrow keys walk, Enter unfolds and opens",
  });
  picture.dataset.width = layout.width + 2 * MARGIN;
  picture.dataset.height = layout.height + 2 * MARGIN;
  picture.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${picture.dataset.width} ${picture.dataset.height}`);
  picture.append(
    drawn(
      "defs",
      null,
      drawn(
        "marker",
        { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
        drawn("path", { d: "M0,1L7,4L0,7z" }),
      ),
    ),
  );
  graphNodes = [];
  drawEdges(picture, layout.lines, 0, 0, report.graph.is_sequence);
  for (const node of [...ends, ...nodes]) {
    const at = layout.placed.get(node.id);
    if (node.isPort)
      picture.append(
        drawn("circle", { class: "port", cx: at.x, cy: at.y, r: PORT / 2 }, drawn("title", null, node.id)),
      );
    else if (node.inside) drawGroup(picture, node, at);
    else
      picture.append(
        drawNode(node.id, node.operator.group ? "group" : "operator outside", at, node, describeOuter(node)),
      );
  }
  const focused = graphNodes.find((one) => one.id === focusId) ?? graphNodes[0];
  rove(
    graphNodes.map((one) => one.shape),
    focused?.shape,
  );
  graphView.replaceChildren(picture);
  sizeGraph();
  markFound(foundKernels);
  if (focusId && focused) focusNode(focused);
}

function drawEdges(parent, lines, dx, dy, isDashed) {
  const path = lines.map((points) => {
    const at = points.map(({ x, y }) => [(x + dx).toFixed(1), (y + dy).toFixed(1)]);
    // Through the middles of what dagre gives, so that a line has no corners.
    let text = `M${at[0]}`;
    for (let k = 1; k < at.length - 1; k++) {
      const next = k === at.length - 2 ? at[k + 1] : [(+at[k][0] + +at[k + 1][0]) / 2, (+at[k][1] + +at[k + 1][1]) / 2];
      text += `Q${at[k]} ${next}`;
    }
    return at.length > 2 ? text : `M${at[0]}L${at[at.length - 1]}`;
  });
  parent.append(
    ...path.map((d) => drawn("path", { class: isDashed ? "edge dashed" : "edge", d, "marker-end": "url(#arrow)" })),
  );
}

function drawGroup(picture, node, at) {
  const x = at.x - node.width / 2,
    y = at.y - node.height / 2;
  const text = describeOuter(node);
  const frame = drawNode(node.id, "frame", at, node, text);
  picture.append(frame);
  const dx = x + (node.width - node.inside.width) / 2,
    dy = y + HEADER + MARGIN;
  drawEdges(picture, node.inside.lines, dx, dy, false);
  for (const child of node.inside.nodes) {
    const place = node.inside.placed.get(child.id),
      centre = { x: place.x + dx, y: place.y + dy };
    if (child.isPort) picture.append(drawn("circle", { class: "port", cx: centre.x, cy: centre.y, r: PORT / 2 }));
    else if (child.reference) picture.append(drawReference(node, child, centre));
    else
      picture.append(
        drawNode(
          `${node.id}/${child.id}`,
          child.kernel ? "kernel" : "operator",
          centre,
          child,
          child.kernel ? describeKernel(child.kernel) : describeInner(node.group, child),
          node,
        ),
      );
  }
}

// Two lines of text, the share of the time, what Enter does.
function describeOuter({ operator, group, inside, id }) {
  if (!group) {
    const share = operatorShare(operator);
    return {
      title: plainName(operator.op),
      note: operator.seconds ? `${timeText(operator.seconds)} · outside` : "outside",
      share,
      source: operator.source,
    };
  }
  return {
    title: groupTitle(group),
    note: `${timeText(group.seconds)} · ${shareText(group.share)}`,
    share: group.share,
    source: group.source,
    name: group.name,
    expanded: Boolean(inside),
    act: () => toggleGroup(operator.group, id),
  };
}

function describeKernel(kernel) {
  return {
    title: kernel.name,
    note: `${timeText(kernel.seconds)} · ${shareText(kernel.share)}`,
    share: kernel.share,
    source: kernel.source,
    kernels: [kernel],
    act: () => openKernel(kernel),
  };
}

function describeInner(group, { operator, number }) {
  const own = kernelsOfOperator(group, number);
  const together = own.reduce((sum, kernel) => sum + kernel.share, 0);
  const note = own.length
    ? `in ${plural(own.length, "kernel")} · ${shareText(together)}`
    : kernels.some((kernel) => kernel.group === group)
      ? "costs nothing"
      : "";
  return {
    title: plainName(operator.op),
    note,
    share: together,
    source: operator.source,
    kernels: own,
    act: own.length ? () => openKernel(own[0]) : null,
  };
}

function drawNode(id, kind, at, size, text, parent) {
  const { width, height } = size,
    label = [text.name ?? text.title, text.note, text.source && fileOf(text.source)].filter(Boolean).join(", ");
  const lines =
    kind === "frame"
      ? [
          drawn("text", { x: 14, y: 22, class: "title" }, `▾ ${text.title}`),
          drawn("text", { x: width - 14, y: 22, class: "note", "text-anchor": "end" }, text.note),
        ]
      : [
          drawn(
            "text",
            { x: width / 2, y: 17, class: "title" },
            `${kind === "group" ? "▸ " : ""}${shortened(text.title, 33)}`,
          ),
          drawn("text", { x: width / 2, y: 32, class: "note" }, text.note),
        ];
  const shape = drawn(
    "g",
    {
      class: `node ${kind}`,
      transform: `translate(${(at.x - width / 2).toFixed(1)},${(at.y - height / 2).toFixed(1)})`,
      role: "button",
      tabindex: -1,
      "aria-label": label,
      "aria-expanded": text.expanded === undefined ? undefined : String(text.expanded),
      "--heat": heat(text.share),
      "data-id": id,
    },
    drawn("title", null, `${text.name ?? text.title}\n${text.note}${text.source ? `\n${text.source}` : ""}`),
    drawn("rect", { width, height, rx: kind === "frame" ? 10 : 6 }),
    lines,
  );
  const node = {
    id,
    shape,
    text,
    parent,
    box: { x: at.x, y: kind === "frame" ? at.y - height / 2 + HEADER / 2 : at.y },
  };
  shape.addEventListener("click", () => {
    rove(
      graphNodes.map((one) => one.shape),
      shape,
    );
    shape.focus({ preventScroll: true });
    text.act?.();
  });
  graphNodes.push(node);
  return shape;
}

function drawReference(parent, { id, reference, title, width, height }, at) {
  const target = `${parent.id}/${reference}`;
  const shape = drawn(
    "g",
    {
      class: "node reference",
      transform: `translate(${(at.x - width / 2).toFixed(1)},${(at.y - height / 2).toFixed(1)})`,
      role: "link",
      tabindex: -1,
      "aria-label": `from ${title}, further up`,
    },
    drawn("title", null, `from ${title}, further up`),
    drawn("rect", { width, height, rx: 10 }),
    drawn("text", { x: width / 2, y: 14 }, `↑ ${shortened(title, 27)}`),
  );
  const act = () => focusNode(graphNodes.find((node) => node.id === target));
  shape.addEventListener("click", act);
  graphNodes.push({ id: `${parent.id}/${id}`, shape, text: { act }, parent, box: at });
  return shape;
}

// --- doing ------------------------------------------------------------------------------------------------------

function toggleGroup(name, id) {
  if (!unfolded.delete(name)) unfolded.set(name, unfoldTo);
  drawGraph(id);
}

function foldAll() {
  unfolded.clear();
  drawGraph();
}

function graphKey(event) {
  if (zoomKey(event, zoomGraph)) return;
  const current = graphNodes.find((node) => node.shape === document.activeElement);
  if (!current) return;
  if (event.key === "Enter" || event.key === " ") current.text.act?.();
  else if (event.key === "Escape" && (current.parent || current.text.expanded)) {
    const { operator, id } = current.parent ?? { operator: { group: current.text.name }, id: current.id };
    unfolded.delete(operator.group);
    drawGraph(id);
  } else {
    const next = inDirection(graphNodes, current, event.key, (node) => node.box);
    if (!next) return;
    focusNode(next);
  }
  event.preventDefault();
}

function focusNode(node) {
  rove(
    graphNodes.map((one) => one.shape),
    node.shape,
  );
  node.shape.focus({ preventScroll: true });
  const left = Math.max((graphView.clientWidth - graphView.firstChild.dataset.width * graphZoom) / 2, 0);
  const x = (node.box.x + MARGIN) * graphZoom + left,
    y = (node.box.y + MARGIN) * graphZoom;
  const margin = 60;
  if (y < graphView.scrollTop + margin || y > graphView.scrollTop + graphView.clientHeight - margin)
    graphView.scrollTop = y - graphView.clientHeight / 2;
  if (x < graphView.scrollLeft + margin || x > graphView.scrollLeft + graphView.clientWidth - margin)
    graphView.scrollLeft = x - graphView.clientWidth / 2;
}

function zoomGraph(factor) {
  const { width, height } = graphView.firstChild.dataset;
  const all = Math.min(graphView.clientWidth / width, graphView.clientHeight / height, 1.25);
  const before = graphZoom,
    middle = graphView.scrollTop + graphView.clientHeight / 2;
  graphZoom = factor === null ? all : Math.min(Math.max(graphZoom * factor, Math.min(all, 0.1)), 4);
  sizeGraph();
  graphView.scrollTop = factor === null ? 0 : (middle / before) * graphZoom - graphView.clientHeight / 2;
}

function sizeGraph() {
  const picture = graphView.firstChild,
    width = picture.dataset.width * graphZoom;
  picture.setAttribute("width", width);
  picture.setAttribute("height", picture.dataset.height * graphZoom);
  // The first node in the middle.
  const first = graphNodes.find((node) => !node.text.expanded);
  graphView.scrollLeft = first ? (first.box.x + MARGIN) * graphZoom - graphView.clientWidth / 2 : 0;
}

function dragToScroll(view) {
  let last = null;
  view.addEventListener("pointerdown", (event) => {
    if (event.button === 0) last = [event.clientX, event.clientY];
  });
  addEventListener("pointerup", () => (last = null));
  view.addEventListener("pointermove", (event) => {
    if (!last || !(event.buttons & 1)) return;
    view.scrollBy(last[0] - event.clientX, last[1] - event.clientY);
    last = [event.clientX, event.clientY];
  });
  view.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoomGraph(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    { passive: false },
  );
}

let foundKernels = null;

// What a search has found stays bright. Null: all.
function markFound(found) {
  foundKernels = found;
  for (const { shape, text } of graphNodes) {
    const fits =
      !found ||
      text.expanded ||
      (text.kernels ?? []).some((kernel) => found.has(kernel)) ||
      (text.name && [...found].some((kernel) => kernel.group.name === text.name));
    shape.classList.toggle("faded", !fits);
  }
}
