// What the page is about, read once: kernels with what belongs to them, texts on request.

const data = JSON.parse(byId("data").textContent);
const report = data.report;
const groups = new Map(report.groups.map((group) => [group.name, group]));

// The specialisation of a group that ran longest in a call.
function ranOf(group) {
  const spent = (one) => one.kernels.reduce((sum, kernel) => sum + kernel.seconds, 0);
  return group.specialisations.reduce((best, one) => (best === null || spent(one) > spent(best) ? one : best), null);
}

// A kernel that is of no operator and reads nothing fills a border.
// "_convolution" is what traces call a convolution.
const nameOf = (kernel) =>
  kernel.ops.map((op) => op.replace(/^_/, "")).join(" + ") ||
  (kernel.after.length ? kernel.symbol : `fill (${kernel.symbol})`);

// Every kernel that ran, in order: `number` among the calls of its code.
const kernels = report.groups.flatMap((group) =>
  group.specialisations.flatMap((one) =>
    one.kernels
      .map((kernel, number) => ({ ...kernel, number, group, specialisation: one, name: nameOf(kernel) }))
      .filter((kernel) => kernel.seconds > 0),
  ),
);
for (const kernel of kernels) {
  kernel.gflops = kernel.flops / kernel.seconds / 1e9;
  kernel.gigabytes = kernel.bytes / kernel.seconds / 1e9;
}
// What is as hot as can be. Of a device that tells of no kernels that is a group.
const most = largest([
  ...(kernels.length ? kernels : report.groups).map((one) => one.share),
  ...report.graph.operators.map(operatorShare),
  1e-9,
]);

function operatorShare(operator) {
  return operator.group ? 0 : operator.seconds / report.seconds;
}

// From 0 to 1; by the root, so that what takes little can be told apart, too.
const heat = (share) => Math.sqrt(Math.min(share / most, 1));

const kernelOf = (specialisation, number) =>
  kernels.find((kernel) => kernel.specialisation === specialisation && kernel.number === number);

// Of kernels that compute an operator of a group, the one that takes longest.
function kernelsOfOperator(group, number) {
  return kernels
    .filter((kernel) => kernel.group === group && kernel.operators.includes(number))
    .sort((one, other) => other.seconds - one.seconds);
}

const texts = new Map();

// A text of a stage, a promise.
function textOf(number) {
  if (!texts.has(number)) {
    const bytes = Uint8Array.from(atob(data.texts[number]), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    texts.set(number, new Response(stream).text());
  }
  return texts.get(number);
}
