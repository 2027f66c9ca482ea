"""Measure memory: the peak resident set of a process that runs a model, with eager and with torchmdla. Linux only.

Each variant runs in a separate process: eager; the frozen script without torchmdla, because PyTorch's TorchScript needs
memory itself; torchmdla cold; from the cache; the same with mapped weights; and a package with packed weights. The
compiler of torchmdla is another process, whose peak is in its own column. There are two peaks: of the whole life of the
process, including preparation, and of calls only, after preparation. All peaks contain Python, PyTorch and the model's
parameters. The mark is eager's peak plus the parameters once more.
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
_VARIANTS = {
    "eager": "eager",
    "script": "script",
    "cold": "torchmdla",
    "cached": "torchmdla",
    "mapped": "mapped",
    "package": "package",
}

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
            task = {"model": model, "way": way, "threads": threads, "quick": quick, "folder": folder}
            variables = {
                "TORCHMDLA_ENABLE": str(int(way not in ("eager", "script"))),
                "TORCHMDLA_CACHE_DIR": folder,
                "OMP_NUM_THREADS": str(threads),
            }
            if way == "package":
                children.run("memory:save", {"model": model, "quick": quick, "folder": folder}, variables)
            row[name] = children.run("memory:measure", task, variables)
            bar.update()
    row["parameters"] = row["eager"]["parameters"]
    row["mark"] = row["eager"]["calls"] + row["parameters"]
    return row


def save(model: str, quick: bool, folder: str) -> None:
    """Write a package of the model."""
    import torchmdla

    module, inputs = build(model, quick)
    torchmdla.save(module, package_in(folder), [inputs], pack_weights=True)


def package_in(folder: str) -> Path:
    return Path(folder) / "model.pt"


def build(model: str, quick: bool) -> tuple[Any, Any]:
    """Return the module and its inputs.

    PyTorch's initial weights suffice: setting up batch norms would first run eager on a larger batch.
    """
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    spec = MODELS[model].reduced() if quick else MODELS[model]
    return spec.architecture().eval(), spec.inputs()


def measure(model: str, way: str, threads: int, quick: bool, folder: str) -> dict[str, float]:
    """Return peaks in MiB: ``life`` and ``calls`` of this process, and that of the ``compiler`` processes."""
    import torch

    import torchmdla

    torch.set_num_threads(threads)
    module, inputs = build(model, quick)
    run: Any = module
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values()) / 2**20
    with torch.no_grad():
        if way == "eager":
            run(*inputs)
        elif way == "package":
            del module, run
            gc.collect()
            run = torchmdla.load(package_in(folder))
            run(*inputs)  # compares its groups with eager
        else:
            traced = torch.jit.trace(module, inputs, check_trace=False)
            run = torchmdla.compile(traced, *inputs, map_weights=way == "mapped")
            # A server of the compiled model would free the module, too. Script modules are parts of reference cycles.
            del module, traced
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
            "mapped",
            "calls",
            "package",
            "calls",
            "mark",
            "result",
        ),
        "eager to package: of the whole process, then of calls once prepared; compiler: its processes;\n"
        "mark: eager's calls and the parameters once more, for the calls with mapped weights and of a package",
    )
    for row in rows:
        values = [row["parameters"]]
        for name in _VARIANTS:
            values += [row[name]["life"], row[name]["calls"]] + [row[name]["compiler"]] * (name == "cold")
        values.append(row["mark"])
        within = max(row[name]["calls"] for name in ("mapped", "package")) <= row["mark"]
        table.add_row(row["model"], *(f"{value:.0f}" for value in values), "within" if within else "above")
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
