"""Measure on whole models how soon torchmdla notices writes to weights that PyTorch does not record.

Writes through ``.data`` do not change a tensor's version. Each call compares some lines of each weight with their
values when it was packed. The benchmark counts the calls until one notices a write to a row of a weight (an output
channel), to a column (an input channel), and to one element. Places are drawn from a fixed seed, among the weights of
convolutions and products. The table also shows the processor time of a call, on one thread.

The exit status is 1 if a write is not noticed.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from harness import children, output

MODELS = ("resnet50", "mobilenet_v2", "bert", "mlp")
KINDS = ("row", "column", "element")

# Every line is compared at least once within this number of calls.
MOST_CALLS = 4096
_CALLS_TO_WARM_UP = 20

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), metavar="NAMES", help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--writes", type=output.number, metavar="NUMBER", help="of each kind (15)")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else list(MODELS))
    writes = options.writes or (2 if options.quick else 15)
    rows: list[Row] = []
    with output.progress(len(models), "model") as bar:
        for model in models:
            task = {"model": model, "writes": writes, "quick": options.quick}
            rows.append(
                {"model": model}
                | children.run("written_weights:measure", task, {"OMP_NUM_THREADS": "1"}, bar.set_postfix_str)
            )
            bar.update()
            output.write_json(options.json, {"benchmark": "written_weights", "quick": options.quick, "rows": rows})
    show(rows)
    missed = [row["model"] for row in rows if any(None in row["calls"][kind] for kind in KINDS)]
    output.show(*(f"{model}: a write was not noticed in {MOST_CALLS} calls" for model in missed))
    return int(bool(missed))


def measure(model: str, writes: int, quick: bool) -> Row:
    """Return the calls until each write of each kind is noticed, and the minimum seconds of a call."""
    import torch

    import torchmdla  # noqa: F401  (switches on)
    from torchmdla.testing.models import MODELS as SPECS

    torch.set_num_threads(1)
    torch.manual_seed(0)
    spec = SPECS[model].reduced() if quick else SPECS[model]
    module, inputs = spec.build(), spec.inputs()
    calls: dict[str, list[int | None]] = {kind: [] for kind in KINDS}
    seconds = []
    with torch.no_grad():
        traced = torch.jit.trace(module, inputs, check_trace=False)
        for _ in range(_CALLS_TO_WARM_UP):
            start = time.thread_time()
            traced(*inputs)
            seconds.append(time.thread_time() - start)
        layers = [part.weight for part in module.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Linear)]
        for kind in KINDS:
            for number in range(writes):
                children.step(f"{model}: {kind} {number + 1} of {writes}")
                weight = layers[int(torch.randint(len(layers), ()))]
                calls[kind].append(_calls_until_noticed(traced, inputs, _part(weight, kind)))
    return {"calls": calls, "seconds": min(seconds)}


def _part(weight: Any, kind: str) -> Any:
    """Return a random part of a weight to write to."""
    import torch

    place = [int(torch.randint(size, ())) for size in weight.shape]
    data = weight.data
    return {"row": data[place[0]], "column": data[:, place[1]], "element": data[tuple(place)]}[kind]


def _calls_until_noticed(traced: Any, inputs: Any, part: Any) -> int | None:
    """Return the number of calls until a write is noticed; None for no call.

    The write is reverted, and the weights are packed again at the end.
    """
    import torch

    import torchmdla

    before, original = _first(traced(*inputs)), part.clone()
    part.copy_(torch.full_like(part, torch.nan))
    try:
        return next((n for n in range(1, MOST_CALLS + 1) if not torch.equal(_first(traced(*inputs)), before)), None)
    finally:
        part.copy_(original)
        torchmdla.refresh()
        for _ in range(_CALLS_TO_WARM_UP):
            traced(*inputs)


def _first(results: Any) -> Any:
    return (
        results if hasattr(results, "dtype") else next(iter(results.values() if isinstance(results, dict) else results))
    )


def show(rows: list[Row]) -> None:
    note = f"median / most of the writes; none noticed within {MOST_CALLS} calls: −"
    table = output.table("Calls until a write is noticed", ("model", "one call, ms", *KINDS), note)
    for row in rows:
        counts = ([MOST_CALLS + 1 if n is None else n for n in row["calls"][kind]] for kind in KINDS)
        table.add_row(
            row["model"],
            f"{row['seconds'] * 1e3:.2f}",
            *(f"{statistics.median(numbers):.0f} / {max(numbers)}" for numbers in counts),
        )
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
