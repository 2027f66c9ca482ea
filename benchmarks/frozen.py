"""Compare a model whose parameters may change between calls with the frozen model, where they are constants.

A call of a module that is not frozen reads its attributes, and checks whether its packed weights are still valid. In
grad mode it also saves its inputs for a backward pass that does not happen. Each variant is prepared on its own copy of
the module. All are timed in turn, by the processor time of their single thread, so that other processes disturb little.
The mark is a ratio of at most 1.03.

Memory addresses change a model's time by a few per cent between processes. --processes sets the number of processes for
each model, of which the minimum times count.

The exit status is 1 if a result differs from eager's beyond tolerance, or if a variant falls back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import children, one_thread, output

from torchmdla.testing import timing

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large")
VARIANTS = ("frozen", "traced", "scripted", "in grad mode")

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), metavar="NAMES", help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (30)")
    parser.add_argument("--processes", type=output.number, metavar="NUMBER", help="for each model (3)")
    options = parser.parse_args()
    models = options.models or (["mobilenet_v2"] if options.quick else list(MODELS))
    rounds = options.rounds or (2 if options.quick else 30)
    processes = options.processes or (1 if options.quick else 3)
    rows: list[Row] = []
    with output.progress(len(models) * processes, "process") as bar:
        for model in models:
            results = []
            for _ in range(processes):
                task = {"model": model, "rounds": rounds, "quick": options.quick}
                results.append(children.run("frozen:measure", task, {"OMP_NUM_THREADS": "1"}, bar.set_postfix_str))
                bar.update()
            rows.append(row_of(model, results))
            output.write_json(options.json, {"benchmark": "frozen", "quick": options.quick, "rows": rows})
    show(rows)
    faults = [f"{row['model']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def row_of(model: str, results: list[Row]) -> Row:
    """Merge the results of the processes into one row: milliseconds and ratios."""
    times = {way: timing.summary([t for each in results for t in each["seconds"][way]]) for way in VARIANTS}
    ratios = {way: times[way]["min"] / times["frozen"]["min"] for way in VARIANTS[1:]}
    faults = sorted({fault for each in results for fault in each["faults"]})
    return {"model": model, "ways": times, "ratios": ratios, "faults": faults}


def measure(model: str, rounds: int, quick: bool) -> Row:
    """Return the seconds of each round of each variant, measured in this process."""
    return one_thread.measure(model, {way: partial(prepare, way) for way in VARIANTS}, rounds, quick)


def prepare(way: str, module: Any, inputs: Any) -> Callable[[], Any]:
    """Return a call of ``module`` in a variant, by its name."""
    import torch

    if way == "scripted":
        return partial(torch.jit.script(module), *inputs)
    traced = torch.jit.trace(module, inputs, check_trace=False)
    if way == "in grad mode":
        return partial(in_grad_mode, traced, *inputs)
    return partial(torch.jit.freeze(traced) if way == "frozen" else traced, *inputs)


def in_grad_mode(module: Any, *inputs: Any) -> Any:
    """Return the detached result of a call that autograd records."""
    import torch

    with torch.enable_grad():
        return module(*inputs).detach()


def show(rows: list[Row]) -> None:
    columns = ("model", *(f"{way}, ms" for way in VARIANTS), *(f"{way} ÷ frozen" for way in VARIANTS[1:]))
    table = output.table("One call on one thread", columns, "times: least / median; ratios are of the least")
    for row in rows:
        table.add_row(
            row["model"],
            *(output.pair(row["ways"][way]) for way in VARIANTS),
            *(f"{row['ratios'][way]:.3f}" for way in VARIANTS[1:]),
        )
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
