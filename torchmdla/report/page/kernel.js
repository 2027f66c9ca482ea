// A kernel that is opened: the line that caused it, numbers, and what each stage of the compiler made of it.

// What was chosen for one kernel holds for the next: stages that are not shown, and one that is shown alone.
const hiddenStages = new Set(["LLVM IR"]);
let aloneStage = null;
const LONGEST_WHOLE = 3000; // lines; of longer texts the kernel's part is shown first

function openKernel(kernel) {
  const dialog = byId("kernel");
  dialog.replaceChildren(
    kernelHead(kernel),
    element("div", { class: "kernel-body" }, kernelFacts(kernel), kernelStages(kernel)),
  );
  dialog.onkeydown = (event) => {
    const step = { "[": -1, "]": 1 }[event.key];
    if (step) stepKernel(kernel, step);
  };
  if (!dialog.open) dialog.showModal();
  dialog.querySelector(".close").focus();
}

function stepKernel(kernel, step) {
  const next = kernels[kernels.indexOf(kernel) + step];
  if (next) openKernel(next);
}

function kernelHead(kernel) {
  const place = kernels.indexOf(kernel);
  const move = (text, label, step) =>
    element(
      "button",
      { "aria-label": label, title: label, disabled: !kernels[place + step], onclick: () => stepKernel(kernel, step) },
      text,
    );
  return element(
    "header",
    null,
    element("h2", { id: "kernel-title" }, kernel.name),
    element(
      "span",
      { class: "badge", "--heat": heat(kernel.share) },
      `${timeText(kernel.seconds)} · ${shareText(kernel.share)}`,
    ),
    element("span", { class: "quiet" }, `kernel ${place + 1} of ${kernels.length}`),
    element("div", { class: "spacer" }),
    move("‹", "The kernel before", -1),
    move("›", "The kernel after", 1),
    element(
      "button",
      { class: "close", "aria-label": "Close", title: "Close (Esc)", onclick: () => byId("kernel").close() },
      "✕",
    ),
  );
}

function kernelFacts(kernel) {
  const { peak } = report;
  const rate = (reached, best, unit) =>
    reached ? `${reached.toPrecision(3)} ${unit} (${Math.round((reached / best) * 100)} % of the peak)` : "-";
  const facts = [
    ["loops", kernel.loops || "-"],
    ["operations", kernel.flops ? countText(kernel.flops) : "none"],
    ["bytes", bytesText(kernel.bytes)],
    ["speed", rate(kernel.gflops, peak.gflops, "GFLOP/s")],
    ["memory", rate(kernel.gigabytes, peak.gigabytes, "GB/s")],
    ["symbol", kernel.symbol],
    ["group", kernel.group.name],
  ];
  const link = (other) =>
    element(
      "button",
      { class: "link", onclick: () => openKernel(other) },
      `${other.name} (${timeText(other.seconds)})`,
    );
  const others = (label, list) =>
    list.length
      ? [
          element("h3", null, label),
          element(
            "ul",
            { class: "links" },
            list.map((other) => element("li", null, link(other))),
          ),
        ]
      : [];
  const of = (numbers) => numbers.map((number) => kernelOf(kernel.specialisation, number)).filter(Boolean);
  const readers = kernels.filter(
    (other) => other.specialisation === kernel.specialisation && other.after.includes(kernel.number),
  );
  return element(
    "div",
    { class: "kernel-facts" },
    sourceOf(kernel),
    element(
      "dl",
      { class: "facts" },
      facts.flatMap(([name, value]) => [element("dt", null, name), element("dd", null, value)]),
    ),
    others("reads from", of(kernel.after)),
    others("read by", readers),
  );
}

function sourceOf(kernel) {
  const found = data.sources[kernel.source];
  const title = element("h3", { title: kernel.source }, kernel.source ? fileOf(kernel.source) : "source line unknown");
  if (!found) return [title, element("p", { class: "quiet" }, kernel.source ? "The file cannot be read here." : "")];
  const [first, lines] = found,
    wanted = Number(kernel.source.slice(kernel.source.lastIndexOf(":") + 1));
  const shown = lines.map((line, k) =>
    element(
      first + k === wanted ? "mark" : "span",
      { class: "line" },
      element("span", { class: "number" }, String(first + k)),
      `${line}\n`,
    ),
  );
  return [title, element("pre", { class: "source", tabindex: 0, "aria-label": "Source" }, shown)];
}

function kernelStages(kernel) {
  const stages = data.code[kernel.specialisation.key] ?? [];
  if (!stages.length) return element("p", { class: "quiet" }, "What the compiler made of it is not known.");
  const panes = element("div", { class: "panes" });
  const show = () => {
    const alone = stages.filter((stage) => stage.name === aloneStage);
    const shown = alone.length ? alone : stages.filter((stage) => !hiddenStages.has(stage.name));
    panes.dataset.count = shown.length;
    panes.replaceChildren(...shown.map((stage) => stagePane(stage, kernel, show)));
  };
  const toggles = stages.map((stage) =>
    element(
      "button",
      {
        "aria-pressed": !hiddenStages.has(stage.name) ? "true" : "false",
        onclick: (event) => {
          aloneStage = null;
          if (!hiddenStages.delete(stage.name)) hiddenStages.add(stage.name);
          event.currentTarget.setAttribute("aria-pressed", String(!hiddenStages.has(stage.name)));
          show();
        },
      },
      stage.name,
    ),
  );
  show();
  return element(
    "div",
    { class: "kernel-stages" },
    element("div", { class: "toggles", role: "group", "aria-label": "Stages shown" }, toggles),
    panes,
  );
}

function stagePane(stage, kernel, showPanes) {
  const parts = stage.lines[kernel.number] ?? [];
  const note = element("span", { class: "quiet" });
  const button = element("button", { class: "link" });
  const text = element("pre", { tabindex: 0, "aria-label": stage.name });
  const pane = element(
    "section",
    { class: "pane", "data-stage": stage.name },
    element("header", null, element("h3", null, stage.name), note, button, aloneButton(stage, showPanes)),
    text,
  );
  textOf(stage.text).then((whole) => {
    const lines = whole.split("\n");
    const count = parts.reduce((sum, [first, behind]) => sum + behind - first, 0);
    let isWhole = !parts.length || lines.length <= LONGEST_WHOLE;
    note.textContent = parts.length
      ? `${count} of ${plural(lines.length, "line")}`
      : stage.name === "assembly"
        ? "a part of the entry: all of it"
        : "all of the group";
    note.title = note.textContent;
    const show = () => {
      button.textContent = isWhole ? "only the kernel" : "whole group";
      text.replaceChildren(...(isWhole ? wholeText(lines, parts) : partsOf(lines, parts)));
      const first = text.querySelector("mark");
      text.scrollTop = isWhole && first ? Math.max(first.offsetTop - 40, 0) : 0;
    };
    button.hidden = !parts.length;
    button.onclick = () => {
      isWhole = !isWhole;
      show();
    };
    show();
  });
  return pane;
}

function aloneButton(stage, showPanes) {
  const isAlone = aloneStage === stage.name;
  const label = isAlone ? "All stages" : `Only ${stage.name}`;
  return element(
    "button",
    {
      class: "link alone",
      "aria-label": label,
      title: label,
      onclick: () => {
        aloneStage = isAlone ? null : stage.name;
        showPanes();
        const again = [...document.querySelectorAll(".pane")].find((pane) => pane.dataset.stage === stage.name);
        again?.querySelector(".alone").focus();
      },
    },
    isAlone ? "⤡" : "⤢",
  );
}

function wholeText(lines, parts) {
  const shown = [];
  let done = 0;
  for (const [first, behind] of parts) {
    shown.push(`${lines.slice(done, first).join("\n")}${first > done ? "\n" : ""}`);
    shown.push(element("mark", null, `${lines.slice(first, behind).join("\n")}\n`));
    done = behind;
  }
  return [...shown, lines.slice(done).join("\n")];
}

function partsOf(lines, parts) {
  return parts
    .flatMap(([first, behind], k) => [
      k ? element("span", { class: "gap" }, "⋯\n") : null,
      `${lines.slice(first, behind).join("\n")}\n`,
    ])
    .filter((one) => one !== null);
}
