"""Measure pipelining on the mdla device: batches as one inference and in parts, and calls of several threads.

Cycles are those that the library counts (by default the emulator's model of the board), including transfers between
host and card. Times are those of the emulator on this machine. The exit status is 1 if the results of parts are not
bit-identical to those of the whole batch.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from harness import children, output

CASES = ("resnet18", "alexnet", "unet", "upscale")
HOW = ("whole", "items", None)

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(CASES), default=list(CASES), help=f"of {','.join(CASES)} (all)")
    parser.add_argument("--batch", type=output.number, default=8, help="images in a batch (%(default)s)")
    parser.add_argument("--clusters", type=output.number, default=4, help="of the device (%(default)s)")
    options = parser.parse_args()
    rounds = 2 if options.quick else 30
    rows: list[Row] = []
    with output.progress(len(options.models), "model") as bar:
        for model in options.models:
            bar.set_postfix_str(model)
            task = {"model": model, "batch": options.batch, "clusters": options.clusters, "rounds": rounds}
            rows.append(children.run("mdla_pipeline:measure", task))
            bar.update()
            output.write_json(options.json, {"benchmark": "mdla_pipeline", "rows": rows})
    show(rows)
    return int(not all(row["same"] for row in rows))


def measure(model: str, batch: int, clusters: int, rounds: int) -> Row:
    import torch

    import torchmdla
    from torchmdla.devices.mdla.batches import compile_batches
    from torchmdla.devices.mdla.options import Options
    from torchmdla.mdla.measuring import FLOAT, Networks
    from torchmdla.mdla.recording import recording

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    module, draw = _subject(model)
    inputs = torch.cat([draw(seed)[0] for seed in range(batch)])
    row: Row = {"model": model, "batch": batch, "ways": {}}
    with torch.no_grad():
        with Networks(FLOAT) as networks, recording(networks.run) as recorder:
            (call,) = recorder.calls_of(torch.jit.trace(module, inputs, check_trace=False), (inputs,))[1]
        results, calls = [], []
        for how in HOW:
            settings: dict[str, Any] = {"clusters": clusters, "batches": how}
            torchmdla.enable(device="mdla", strict=True, **settings)
            compiled = torchmdla.compile(module, inputs)
            results.append(compiled(inputs))
            calls.append(compiled)
            arrangement = compile_batches(call.group.model, call.group.program, Options(**settings).with_library(), [])
            row["ways"][how or "default"] = {"parts": arrangement.parts, "cycles": arrangement.cycles}
        row["same"] = all(torch.equal(result, results[0]) for result in results)
        times = [min(series) for series in zip(*(_round(calls, inputs) for _ in range(rounds)), strict=True)]
        for way, seconds in zip(row["ways"].values(), times, strict=True):
            way["milliseconds"] = seconds * 1e3
        row["threads"] = {
            str(count): min(_threads(calls[0], inputs, count) for _ in range(rounds // 2)) * 1e3 for count in (1, 2, 4)
        }
    return row


def _round(calls: list[Any], inputs: Any) -> list[float]:
    seconds = []
    for call in calls:
        start = time.perf_counter()
        call(inputs)
        seconds.append(time.perf_counter() - start)
    return seconds


def _threads(call: Any, inputs: Any, count: int, turns: int = 12) -> float:
    """Return the seconds for each call, if ``count`` threads call as fast as they can."""
    import torch

    def work() -> None:
        torch.set_num_threads(1)  # a setting of each thread
        with torch.no_grad():
            for _ in range(turns // count):
                call(inputs)

    threads = [threading.Thread(target=work) for _ in range(count)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start) / (turns // count * count)


def _subject(model: str) -> tuple[Any, Callable[[int], Any]]:
    """Return a module in eval mode, and a function that draws its inputs."""
    import torch
    from torch import nn

    import mdla

    if model != "upscale":
        return mdla._subject(model, False)[:2]
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2))

    def draw(seed: int) -> Any:
        return (torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(seed)),)

    return network.eval(), draw


def show(rows: list[Row]) -> None:
    batches = output.table("Batches in parts", ("model", "batch", "run as", "parts", "cycles", "ms on the emulator"))
    for row in rows:
        for place, (way, result) in enumerate(row["ways"].items()):
            first = ("", "") if place else (row["model"], str(row["batch"]))
            batches.add_row(*first, way, str(result["parts"]), f"{result['cycles']:,}", f"{result['milliseconds']:.2f}")
        batches.add_section()
    threads = output.table("Calls of threads, ms for each call on the emulator", ("model", "1", "2", "4"))
    for row in rows:
        threads.add_row(row["model"], *(f"{milliseconds:.2f}" for milliseconds in row["threads"].values()))
    output.show(batches, threads)
    for row in rows:
        if not row["same"]:
            output.show(f"{row['model']}: parts give other bits than the whole batch")


if __name__ == "__main__":
    sys.exit(main())
