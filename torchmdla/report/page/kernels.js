// The list of kernels, the slowest first, and the search in it.

function buildKernels() {
  const search = element("input", {
    type: "search",
    id: "search",
    placeholder: "Search kernels",
    "aria-label": "Search kernels",
    autocomplete: "off",
    spellcheck: "false",
  });
  const count = element("p", { class: "quiet", id: "found", "aria-live": "polite" });
  const list = element("ul", { id: "kernels" });
  const sorted = [...kernels].sort((one, other) => other.seconds - one.seconds);
  const rows = sorted.map((kernel) => [kernel, kernelRow(kernel)]);
  list.append(...rows.map(([, row]) => row.parentNode));
  byId("side").append(
    element("div", { class: "search" }, search, element("kbd", { "aria-hidden": "true" }, "/")),
    count,
    list,
  );

  const shown = () => rows.filter(([, row]) => !row.parentNode.hidden).map(([, row]) => row);
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Set();
    for (const [kernel, row] of rows) {
      // Not its group: the name of one has the operators of all its kernels.
      const text = `${kernel.name} ${kernel.symbol} ${kernel.source} ${kernel.loops}`.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      row.parentNode.hidden = !fits;
      if (fits) found.add(kernel);
    }
    const spent = [...found].reduce((sum, kernel) => sum + kernel.share, 0);
    count.textContent = `${plural(found.size, "kernel")}, ${shareText(spent)} of the time`;
    markFound(words.length ? found : null);
    rove(
      rows.map(([, row]) => row),
      shown()[0],
    );
  };
  search.addEventListener("input", update);
  search.addEventListener("keydown", (event) => {
    const first = shown()[0];
    if (event.key === "Enter" && first) first.click();
    else if (event.key === "ArrowDown" && first) first.focus();
    else if (event.key === "Escape") {
      search.value = "";
      update();
      search.blur();
    } else return;
    event.preventDefault();
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = shown(),
      next = all[all.indexOf(document.activeElement) + step];
    (next ?? search).focus();
    if (next) rove(all, next);
    event.preventDefault();
  });
  update();
}

function kernelRow(kernel) {
  const row = element(
    "button",
    { class: "row", "--heat": heat(kernel.share), "--share": kernel.share / most, onclick: () => openKernel(kernel) },
    element("span", { class: "name" }, kernel.name),
    element("span", { class: "time" }, timeText(kernel.seconds)),
    element("span", { class: "quiet" }, kernel.loops || kernel.symbol),
    element("span", { class: "quiet time" }, shareText(kernel.share)),
    element("span", { class: "bar", "aria-hidden": "true" }),
  );
  row.title = kernel.source;
  element("li", null, row);
  return row;
}
