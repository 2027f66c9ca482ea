"""How soon it is noticed that weights were written to behind PyTorch's back, on whole models.

Writes through ``.data`` give no other version. A call compares some lines of each weight with what they were when it
was packed; this counts the calls until one sees a write: of a row of a weight (an output channel), of a column (an
input channel), of one element. Places are drawn by a fixed seed, among the weights of convolutions and products. The
processor time of a call is shown beside, on one thread.

Ends with status 1 where a write is not noticed.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from harness import children, output

MODELS = ("resnet50", "mobilenet_v2", "bert", "mlp")
KINDS = ("row", "column", "element")

# Every line is looked at in this many calls.
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
    """Calls until each write of each kind is noticed, and the least seconds of a call."""
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
    """A part of a weight to write to, somewhere."""
    import torch

    place = [int(torch.randint(size, ())) for size in weight.shape]
    data = weight.data
    return {"row": data[place[0]], "column": data[:, place[1]], "element": data[tuple(place)]}[kind]


def _calls_until_noticed(traced: Any, inputs: Any, part: Any) -> int | None:
    """Of a write that is taken back; and the weights are packed anew in the end."""
    import torch

    import torchmdla

    before, kept = _first(traced(*inputs)), part.clone()
    part.copy_(torch.full_like(part, torch.nan))
    try:
        return next((n for n in range(1, MOST_CALLS + 1) if not torch.equal(_first(traced(*inputs)), before)), None)
    finally:
        part.copy_(kept)
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
            *(f"{statistics.median(found):.0f} / {max(found)}" for found in counts),
        )
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
