"""Measure memory: the peak resident set of a process that runs a model, with eager and with torchmdla. Linux only.

Each variant runs in a separate process: eager; the frozen script without torchmdla, because PyTorch's TorchScript needs
memory itself; torchmdla cold; and torchmdla from the cache. torchmdla's compiler is another process, whose peak is in
its own column. There are two peaks: of the whole life of the process, including preparation, and of calls only, after
preparation. All peaks contain Python, PyTorch and the model's parameters. The mark is eager's peak plus one packed copy
of the parameters.
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

# The measured variants, in order, and how each runs the model.
_VARIANTS = {"eager": "eager", "script": "script", "cold": "torchmdla", "cached": "torchmdla"}

Row = dict[str, Any]


def main() -> int:
    from torchmdla.testing.models import MODELS

    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else list(MODELS))
    rows: list[Row] = []
    with output.progress(len(models) * len(_VARIANTS), "process") as bar:
        for model in models:
            rows.append(row_of(model, options.threads, options.quick, bar))
            output.write_json(options.json, {"benchmark": "memory", "unit": "MiB", "rows": rows})
    show(rows)
    return 0


def row_of(model: str, threads: int, quick: bool, bar: Any) -> Row:
    row: dict[str, Any] = {"model": model}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for name, way in _VARIANTS.items():
            bar.set_postfix_str(f"{model}, {name}")
            task = {"model": model, "way": way, "threads": threads, "quick": quick}
            variables = {
                "TORCHMDLA_ENABLE": str(int(way == "torchmdla")),
                "TORCHMDLA_CACHE_DIR": folder,
                "OMP_NUM_THREADS": str(threads),
            }
            row[name] = children.run("memory:measure", task, variables)
            bar.update()
    row["parameters"] = row["eager"]["parameters"]
    row["mark"] = row["eager"]["calls"] + row["parameters"]
    return row


def measure(model: str, way: str, threads: int, quick: bool) -> dict[str, float]:
    """Return peaks in MiB: ``life`` and ``calls`` of this process, and that of the ``compiler`` processes."""
    import torch

    import torchmdla
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    # PyTorch's initial weights suffice: setting up batch norms would first run eager on a larger batch.
    module, inputs = spec.architecture().eval(), spec.inputs()
    run: Any = module
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) / 2**20
    with torch.no_grad():
        if way == "eager":
            run(*inputs)
        else:
            run = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
            # A server of the compiled model would free the module, too. Script modules are parts of reference cycles.
            del module
            gc.collect()
        life = peak()
        forget_peak()
        for _ in range(_CALLS):
            run(*inputs)
    return {"life": max(life, peak()), "calls": peak(), "compiler": peak_of_children(), "parameters": parameters}


def peak(process: str = "self") -> float:
    """Return the largest resident set so far, in MiB.

    ``getrusage`` would include that of the parent before the fork.
    """
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def forget_peak() -> None:
    """Reset the peak of the resident set to its current size."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of_children() -> float:
    """Return the sum over the child processes of this one, which are the compiler's; 0 without child processes."""
    processes = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(peak(process) for process in processes)


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
        for name in _VARIANTS:
            values += [row[name]["life"], row[name]["calls"]] + [row[name]["compiler"]] * (name == "cold")
        values.append(row["mark"])
        cached = row["cached"]
        within = cached["calls"] <= row["mark"]
        table.add_row(row["model"], *(f"{value:.0f}" for value in values), "within" if within else "above")
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
