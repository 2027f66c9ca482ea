"""Compare PyTorch devices that torchmdla implements with the TorchScript frontend: a warm forward pass of a model.

A device records every call of a pass again, finds the program that it compiled for the same graph before, and runs
that. The table shows its cost as a ratio to the traced module's time; the mark is at most 1.3. All variants are timed
in turn in one process. The clock is the processor time of their single thread, so that other processes disturb little.

The exit status is 1 if a result differs from eager's beyond tolerance, or if a variant falls back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import children, one_thread, output

from torchmdla.testing import timing

MODELS = ("resnet18", "bert")
DEVICES = ("lazy", "acap")

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), metavar="NAMES", help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--devices", type=output.one_of(DEVICES), metavar="NAMES", help=f"of {','.join(DEVICES)} (all)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (30)")
    options = parser.parse_args()
    models = options.models or list(MODELS)
    devices = options.devices or list(DEVICES)
    rounds = options.rounds or (2 if options.quick else 30)
    rows: list[Row] = []
    with output.progress(len(models), "model") as bar:
        for model in models:
            task = {"model": model, "devices": devices, "rounds": rounds, "quick": options.quick}
            rows.append(children.run("devices:measure", task, {"OMP_NUM_THREADS": "1"}, bar.set_postfix_str))
            bar.update()
            output.write_json(options.json, {"benchmark": "devices", "quick": options.quick, "rows": rows})
    show(rows, devices)
    faults = [f"{row['model']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def measure(model: str, devices: list[str], rounds: int, quick: bool) -> Row:
    """Return the milliseconds of each variant, and their ratios to TorchScript's, measured in this process."""
    ways = {"torchscript": traced, **{device: partial(move_to_device, device) for device in devices}}
    # Use one call per round: a short round is more likely to be undisturbed.
    result = one_thread.measure(model, ways, rounds, quick, span=0, strides=False)
    times = {way: timing.summary(taken) for way, taken in result["seconds"].items()}
    ratios = {way: times[way]["min"] / times["torchscript"]["min"] for way in devices}
    return {"model": model, "ways": times, "ratios": ratios, "faults": result["faults"]}


def traced(module: Any, inputs: Any) -> Callable[[], Any]:
    import torch

    return partial(torch.jit.trace(module, inputs, check_trace=False), *inputs)


def move_to_device(device: str, module: Any, inputs: Any) -> Callable[[], Any]:
    """Return a call of ``module`` on ``device`` that includes the copy of the results to the CPU."""
    from torch.utils._pytree import tree_map

    import torchmdla
    from torchmdla import lazy

    prepare = {"lazy": lazy.initialize, "acap": torchmdla.acap_device}
    prepare[device]()
    module.to(device)
    arguments = [tensor.to(device) for tensor in inputs]
    return lambda: tree_map(lambda tensor: tensor.cpu(), module(*arguments))


def show(rows: list[Row], devices: list[str]) -> None:
    ways = ("torchscript", *devices)
    columns = ("model", *(f"{way}, ms" for way in ways), *(f"{way} ÷ torchscript" for way in devices))
    table = output.table("One call on one thread", columns, "times: least / median; ratios are of the least")
    for row in rows:
        times = (output.pair(row["ways"][way]) for way in ways)
        table.add_row(row["model"], *times, *(f"{row['ratios'][way]:.3f}" for way in devices))
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
