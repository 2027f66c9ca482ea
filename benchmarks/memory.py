"""Memory: the largest resident set of a process that runs a model, by eager and by torchmdla. Linux only.

Each way runs in a process of its own: eager; the frozen script without torchmdla, since PyTorch's TorchScript takes
memory of its own; torchmdla cold, its compiler being another process, whose peak is shown beside it; and torchmdla from
the cache. Two peaks are taken: of the whole life of the process, preparing included, and
of calls alone, once prepared. Python, PyTorch and the model's parameters are in all of them. The mark is eager's peak
plus the parameters once more, packed.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from harness import children, output

_CALLS = 3

# What is measured, in order, and how the model runs.
_WAYS = {"eager": "eager", "script": "script", "cold": "torchmdla", "cached": "torchmdla"}

Row = dict[str, Any]


def main() -> int:
    from torchmdla.testing.models import MODELS

    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else list(MODELS))
    rows: list[Row] = []
    with output.progress(len(models) * len(_WAYS), "process") as bar:
        for model in models:
            rows.append(row_of(model, options.threads, options.quick, bar))
            output.write_json(options.json, {"benchmark": "memory", "unit": "MiB", "rows": rows})
    show(rows)
    return 0


def row_of(model: str, threads: int, quick: bool, bar: Any) -> Row:
    found: dict[str, Any] = {"model": model}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for name, way in _WAYS.items():
            bar.set_postfix_str(f"{model}, {name}")
            task = {"model": model, "way": way, "threads": threads, "quick": quick}
            variables = {
                "TORCHMDLA_ENABLE": str(int(way == "torchmdla")),
                "TORCHMDLA_CACHE_DIR": folder,
                "OMP_NUM_THREADS": str(threads),
            }
            found[name] = children.run("memory:measure", task, variables)
            bar.update()
    found["parameters"] = found["eager"]["parameters"]
    found["mark"] = found["eager"]["calls"] + found["parameters"]
    return found


def measure(model: str, way: str, threads: int, quick: bool) -> dict[str, float]:
    """Peaks in MiB of this process: ``life``, ``calls``, and the ``compiler`` processes'."""
    import torch

    import torchmdla
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    # PyTorch's own weights will do: setting up batch norms would run eager on a larger batch first.
    module, inputs = spec.architecture().eval(), spec.inputs()
    run: Any = module
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) / 2**20
    with torch.no_grad():
        if way == "eager":
            run(*inputs)
        else:
            run = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
            # As one would who serves the compiled model. Script modules are parts of cycles.
            del module
            gc.collect()
        life = peak()
        forget_peak()
        for _ in range(_CALLS):
            run(*inputs)
    return {"life": max(life, peak()), "calls": peak(), "compiler": peak_of_children(), "parameters": parameters}


def peak(process: str = "self") -> float:
    """The largest resident set so far, in MiB. ``getrusage`` would count that of the process it was forked from."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def forget_peak() -> None:
    """The largest resident set is that of now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of_children() -> float:
    """The sum over the processes that this one has, which are the compiler's; 0 where there is none."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(peak(process) for process in found)


def show(rows: list[Row]) -> None:
    table = output.table(
        "Peak memory, MiB",
        (
            "model",
            "parameters",
            "eager",
            "calls",
            "script",
            "calls",
            "cold",
            "calls",
            "compiler",
            "cached",
            "calls",
            "mark",
            "result",
        ),
        "eager, script, cold, cached: of the whole process, then of calls once prepared; compiler: its processes;\n"
        "mark: eager's calls and the parameters once more, for the calls of torchmdla from the cache",
    )
    for row in rows:
        values = [row["parameters"]]
        for name in _WAYS:
            values += [row[name]["life"], row[name]["calls"]] + [row[name]["compiler"]] * (name == "cold")
        values.append(row["mark"])
        cached = row["cached"]
        within = cached["calls"] <= row["mark"]
        table.add_row(row["model"], *(f"{value:.0f}" for value in values), "within" if within else "above")
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
