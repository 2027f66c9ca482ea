// How fast kernels are, by how many operations they do for each byte: both axes logarithmic.

function buildRoofline() {
  const computing = kernels.filter((kernel) => kernel.flops > 0 && kernel.bytes > 0);
  const moving = kernels.length - computing.length;
  const panel = byId("roofline");
  panel.append(
    element("h2", null, "Roofline"),
    element(
      "p",
      { class: "quiet" },
      `The roof is what this machine reached with ${plural(report.peak.threads, "thread")}: ${Math.round(report.peak.gflops)} GFLOP/s in a product ` +
        `of matrices, ${report.peak.gigabytes.toFixed(1)} GB/s in a copy in memory; above the slope the data came from a cache. A circle is a kernel, its ` +
        `area its time.${moving ? ` ${plural(moving, "kernel")} without operations ${moving === 1 ? "is" : "are"} left out.` : ""}`,
    ),
  );
  if (!computing.length) return;
  const width = 1000,
    height = 560,
    left = 70,
    right = 20,
    top = 20,
    bottom = 50;
  const { gflops, gigabytes } = report.peak;
  const intensities = computing.map((kernel) => kernel.flops / kernel.bytes);
  const xs = range([...intensities, gflops / gigabytes]),
    ys = range([...computing.map((kernel) => kernel.gflops), gflops]);
  const x = (value) => left + ((Math.log10(value) - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
  const y = (value) => height - bottom - ((Math.log10(value) - ys[0]) / (ys[1] - ys[0])) * (height - top - bottom);
  const ridge = gflops / gigabytes,
    start = Math.max(10 ** xs[0], 10 ** ys[0] / gigabytes);
  const picture = drawn("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "group",
    "aria-label": "Roofline; arrow keys walk from kernel to kernel",
  });
  for (const [axis, [low, high]] of [
    ["x", xs],
    ["y", ys],
  ])
    for (let power = low; power <= high; power++) {
      const at = axis === "x" ? x(10 ** power) : y(10 ** power);
      const line =
        axis === "x"
          ? { x1: at, x2: at, y1: top, y2: height - bottom }
          : { x1: left, x2: width - right, y1: at, y2: at };
      const label =
        axis === "x"
          ? { x: at, y: height - bottom + 18, "text-anchor": "middle" }
          : { x: left - 8, y: at + 4, "text-anchor": "end" };
      picture.append(
        drawn("line", { ...line, class: "grid" }),
        drawn("text", label, String(Number((10 ** power).toPrecision(3)))),
      );
    }
  picture.append(
    drawn(
      "text",
      { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
      "operations for each byte",
    ),
    drawn(
      "text",
      { x: 16, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 16 ${height / 2})` },
      "GFLOP/s",
    ),
    drawn("path", {
      class: "roof",
      d: `M${x(start)},${y(start * gigabytes)}L${x(ridge)},${y(gflops)}L${width - right},${y(gflops)}`,
    }),
  );
  const circles = new Map();
  for (const kernel of [...computing].sort((one, other) => other.share - one.share)) {
    const at = { cx: x(kernel.flops / kernel.bytes), cy: y(kernel.gflops), r: 4 + 22 * Math.sqrt(kernel.share / most) };
    const said = `${kernel.name}: ${kernel.gflops.toPrecision(3)} GFLOP/s, ${(kernel.flops / kernel.bytes).toPrecision(3)} operations a byte, ${timeText(kernel.seconds)}, ${shareText(kernel.share)}`;
    const circle = drawn(
      "circle",
      {
        ...at,
        class: "point",
        role: "button",
        tabindex: -1,
        "aria-label": said,
        "--heat": heat(kernel.share),
        onclick: () => openKernel(kernel),
      },
      drawn("title", null, said),
    );
    circles.set(circle, kernel);
    picture.append(circle);
  }
  const all = [...circles.keys()];
  rove(all, all[0]);
  const box = (circle) => ({ x: Number(circle.getAttribute("cx")), y: Number(circle.getAttribute("cy")) });
  picture.addEventListener("keydown", (event) => {
    const current = document.activeElement;
    if (event.key === "Enter" || event.key === " ") openKernel(circles.get(current));
    else {
      const next = inDirection(all, current, event.key, box);
      if (!next) return;
      rove(all, next);
      next.focus();
    }
    event.preventDefault();
  });
  panel.append(picture);
}

// Whole powers of ten around all values.
function range(values) {
  const low = Math.floor(Math.log10(Math.min(...values))),
    high = Math.ceil(Math.log10(Math.max(...values) * 1.05));
  return [low, Math.max(high, low + 1)];
}
