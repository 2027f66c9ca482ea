// Where the parts of the graph lie. Each group is laid out by itself, and is one large node of the graph around it.

const NODE_HEIGHT = 40,
  HEADER = 34,
  MARGIN = 12,
  PORT = 9;
const unfolded = new Map(); // group name → "kernels" or "operators"
const layouts = new Map();

function laidOut(nodes, edges) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    nodesep: 14,
    ranksep: 26,
    marginx: 0,
    marginy: 0,
    ranker: nodes.length > 150 ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { width: node.width, height: node.height });
  for (const [from, to] of edges) if (from !== to) graph.setEdge(from, to);
  dagre.layout(graph);
  const placed = new Map(nodes.map((node) => [node.id, graph.node(node.id)]));
  const lines = graph.edges().map((edge) => graph.edge(edge).points);
  const { width = 0, height = 0 } = graph.graph();
  return { placed, lines, width, height };
}

// What a group is inside: nodes, edges by their ids.
function insideOf(group, kind) {
  const specialisation = ranOf(group);
  const shown = specialisation?.kernels.map((_, number) => kernelOf(specialisation, number)) ?? [];
  // A device may tell of no kernels.
  if (kind === "kernels" && shown.some(Boolean)) {
    const nodes = shown.flatMap((kernel, number) =>
      kernel ? [{ id: `k${number}`, kernel, ...sizeOf(kernel.name) }] : [],
    );
    const edges = shown.flatMap((kernel, number) =>
      kernel ? kernel.after.filter((other) => shown[other]).map((other) => [`k${other}`, `k${number}`]) : [],
    );
    const reading = nodes.filter((node) => node.kernel.after.includes(-1)).map((node) => node.id);
    return withPorts(
      nodes,
      edges,
      reading,
      nodes.filter((node) => node.kernel.is_result).map((node) => node.id),
    );
  }
  const operators = group.graph.operators;
  const nodes = operators.map((operator, number) => ({
    id: `o${number}`,
    operator,
    number,
    ...sizeOf(plainName(operator.op)),
  }));
  const edges = operators.flatMap((operator, number) =>
    operator.inputs.filter(([from]) => from >= 0).map(([from]) => [`o${from}`, `o${number}`]),
  );
  const reading = operators.flatMap((operator, number) =>
    operator.inputs.some(([from]) => from < 0) ? [`o${number}`] : [],
  );
  return withPorts(
    nodes,
    edges,
    reading,
    group.graph.results.filter(([from]) => from >= 0).map(([from]) => `o${from}`),
  );
}

// A dot for what comes in and one for what goes out.
function withPorts(nodes, edges, reading, results) {
  const port = (id) => ({ id, width: PORT, height: PORT, isPort: true });
  return {
    nodes: [port("in"), ...nodes, port("out")],
    edges: [...reading.map((id) => ["in", id]), ...edges, ...results.map((id) => [id, "out"])],
  };
}

// An edge over more ranks than this is drawn as a reference to where it comes from.
const LONGEST_EDGE = 8;

// The nodes' distances from the top, by the longest way: every edge goes to a later node.
function withReferences({ nodes, edges }) {
  const ranks = new Map(nodes.map((node) => [node.id, 0]));
  const leaving = new Map(nodes.map((node) => [node.id, []]));
  for (const [from, to] of edges) leaving.get(from).push(to);
  for (const { id } of nodes)
    for (const to of leaving.get(id)) ranks.set(to, Math.max(ranks.get(to), ranks.get(id) + 1));
  const names = new Map(nodes.map((node) => [node.id, node]));
  const made = [],
    kept = [];
  for (const [from, to] of edges) {
    const isLong =
      ranks.get(to) - ranks.get(from) > LONGEST_EDGE &&
      leaving.get(from).some((other) => ranks.get(other) < ranks.get(to));
    if (!isLong) kept.push([from, to]);
    else if (from === "in" || to === "out") {
      const id = `${from}>${to}`;
      made.push({ id, width: PORT, height: PORT, isPort: true });
      kept.push(from === "in" ? [id, to] : [from, id]);
    } else {
      const id = `${from}>${to}`,
        source = names.get(from),
        title = source.kernel ? source.kernel.name : plainName(source.operator.op);
      made.push({ id, reference: from, title, width: Math.min(title.length * 6.4 + 30, 200), height: 20 });
      kept.push([id, to]);
    }
  }
  return { nodes: [...nodes, ...made], edges: kept };
}

const plainName = (op) => op.replace(/^aten::/, "").replace(/\.\w+$/, "");
const sizeOf = (name) => ({ width: Math.min(Math.max(name.length * 7.2 + 22, 118), 260), height: NODE_HEIGHT });

function groupLayout(group, kind) {
  const key = `${kind} ${group.name}`;
  if (!layouts.has(key)) {
    const { nodes, edges } = withReferences(insideOf(group, kind));
    layouts.set(key, { nodes, ...laidOut(nodes, edges) });
  }
  return layouts.get(key);
}

function outerNodes() {
  return report.graph.operators.map((operator, number) => {
    const group = groups.get(operator.group),
      kind = unfolded.get(operator.group);
    if (!group || !kind) return { id: `n${number}`, operator, group, number, ...sizeOf(titleOf(operator, group)) };
    const inside = groupLayout(group, kind);
    const width = Math.max(inside.width + 2 * MARGIN, 420),
      height = inside.height + HEADER + 2 * MARGIN;
    return { id: `n${number}`, operator, group, number, inside, width, height };
  });
}

const titleOf = (operator, group) => (group ? groupTitle(group) : plainName(operator.op));

function groupTitle(group) {
  const count = ranOf(group)?.kernels.length ?? 0;
  return `group · ${plural(group.graph.operators.length, "operator")}, ${plural(count, "kernel")}`;
}
