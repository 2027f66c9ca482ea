// The tables that print(report) has, and what the machine is.

function buildTables() {
  const panel = byId("tables");
  if (report.reasons.length)
    panel.append(
      element("h2", null, "What does not run compiled, and why"),
      table(
        ["reason", "count", "lines", "what to do"],
        report.reasons.map((one) => [
          one.op ? `${one.op}: ${one.reason}` : one.reason,
          String(one.count),
          placesOf(one.sources),
          one.advice,
        ]),
        [1],
      ),
    );
  if (report.outside.length)
    panel.append(
      element("h2", null, "Operators outside of compiled groups, in a call"),
      table(
        ["operator", "calls", "time", "share"],
        report.outside.map((one) => [one.op, String(one.calls), timeText(one.seconds), shareText(one.share)]),
        [1, 2, 3],
      ),
    );
  if (report.device_work.length)
    panel.append(
      element("h2", null, "Work of devices, in a call"),
      table(
        ["stream", "work", "calls", "time"],
        report.device_work.map((one) => [one.stream, one.name, String(one.calls), timeText(one.seconds)]),
        [2, 3],
      ),
    );
  for (const group of report.groups) panel.append(...groupTables(group));
  if (report.errors)
    panel.append(
      element("h2", null, "Largest errors against eager PyTorch"),
      table(
        ["operator", "line", "group", "error", "beyond the tolerance"],
        report.errors.map((one) => [
          one.op,
          fileOf(one.source),
          one.group,
          one.error === null ? "not finite" : one.error.toPrecision(2),
          one.difference,
        ]),
        [3],
      ),
    );
  panel.append(element("h2", null, "Machine and versions"), table(["what", "which"], Object.entries(data.environment)));
}

const placesOf = (sources) =>
  element(
    "ul",
    { class: "plain" },
    sources.map((source) => element("li", { title: source }, fileOf(source))),
  );

function groupTables(group) {
  const ops = Object.entries(group.ops)
    .map(([op, count]) => (count > 1 ? `${op} × ${count}` : op))
    .join(", ");
  const fallbacks = Object.values(group.fallbacks).reduce((sum, count) => sum + count, 0);
  return [
    element(
      "h2",
      null,
      group.name,
      element("span", { class: "quiet" }, ` ${timeText(group.seconds)}, ${shareText(group.share)} of the time`),
    ),
    element("p", null, ops),
    element(
      "p",
      { class: "quiet" },
      `${group.compiled_calls} calls compiled, ${group.recorded_calls} recorded, ${group.training_calls} with gradients, ${fallbacks} in PyTorch's interpreter`,
    ),
    table(
      ["for", "because of", "came from", "after", "kernels", "packed weights", "workspace"],
      group.specialisations.map((one) =>
        one.origin
          ? [
              `${one.is_dynamic ? "any sizes, as " : ""}${one.inputs.join(", ")}`,
              one.cause,
              one.origin === "compiled" ? "the compiler" : one.origin,
              timeText(one.seconds),
              String(one.kernels.length),
              bytesText(one.packed_bytes),
              bytesText(one.workspace_bytes),
            ]
          : [`not compiled: ${one.failure}`, "", "", "", "", "", ""],
      ),
      [3, 4, 5, 6],
    ),
    kernelTable(group),
  ];
}

function kernelTable(group) {
  const own = kernels.filter((kernel) => kernel.group === group);
  if (!own.length) return "";
  const open = (kernel) => element("button", { class: "link", onclick: () => openKernel(kernel) }, kernel.name);
  const rate = (reached, best) =>
    reached ? `${reached.toPrecision(3)} (${Math.round((reached / best) * 100)} %)` : "-";
  return element(
    "details",
    { open: own.length <= 20 },
    element("summary", null, plural(own.length, "kernel")),
    table(
      ["kernel", "loops", "line", "time", "share", "GFLOP/s", "GB/s"],
      own.map((kernel) => [
        open(kernel),
        kernel.loops,
        fileOf(kernel.source),
        timeText(kernel.seconds),
        shareText(kernel.share),
        rate(kernel.gflops, report.peak.gflops),
        rate(kernel.gigabytes, report.peak.gigabytes),
      ]),
      [3, 4, 5, 6],
    ),
  );
}
