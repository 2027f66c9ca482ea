"""Compare steps of training: forward, loss, backward and optimiser, with equal losses.

Each row trains one model with all systems in turn, in a process of its own. Each system has a copy of the model with
the same weights. Times are the minimum and the median of the rounds, in milliseconds for one step. The gain is the
best peer's minimum time over torchmdla's. First steps include compiling. A system that ends the first steps with
another loss than eager is reported, and not timed.

With --level x86-64-v3 all systems are held to AVX2. The exit status is 1 if torchmdla fails or its loss differs.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import children, output

if TYPE_CHECKING:
    import torch
    from torch import nn

Row = dict[str, Any]
Step = Callable[[], float]

OURS = ("torchmdla", "torchscript")
SYSTEMS = ("eager", "inductor", *OURS)

# Variables that hold each system to the instructions of a level.
LEVELS: Mapping[str, Mapping[str, str]] = {
    "native": {},
    "x86-64-v3": {
        "TORCHMDLA_PROCESSOR": "x86-64-v3",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}

# Systems that are backends of torch.compile.
BACKENDS = ("inductor", "torchmdla")

_STEPS = 20  # before losses are compared
_TOLERANCE = 1e-2  # of the losses, relative


class Task(NamedTuple):
    """Model of :data:`torchmdla.testing.models.MODELS`, or of ``ARCHITECTURES`` below, with its batch and loss."""

    model: str
    batch: int
    loss: str = "cross_entropy"
    size: int | None = None


TASKS: Mapping[str, Task] = {
    "mlp": Task("mlp", 64, "mse"),
    "resnet18": Task("resnet18", 4),
    "resnet50": Task("resnet50", 4),
    "mobilenet_v2": Task("mobilenet_v2", 4),
    "unet": Task("unet", 1, "mse"),
    "bert": Task("bert", 4, "mse", 128),
    "vit": Task("vit_b16", 4),
    "gpt": Task("gpt", 1, "cross_entropy", 128),
    "lstm": Task("lstm", 8, "mse"),
    "gru": Task("gru", 8, "mse"),
}

OPTIMISERS = ("sgd", "adamw")


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(TASKS), help=f"of {','.join(TASKS)} (all)")
    parser.add_argument("--systems", type=output.one_of(SYSTEMS), help=f"of {','.join(SYSTEMS)} (all)")
    parser.add_argument("--threads", type=output.numbers, help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, help="timed rounds of each system (7)")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="sgd", help="(%(default)s)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16: by autocast")
    parser.add_argument("--level", choices=LEVELS, default="native", help="instructions to use (%(default)s)")
    options = parser.parse_args()
    output.fill_in(
        options,
        {
            False: {"models": list(TASKS), "systems": list(SYSTEMS), "threads": [1, 2], "rounds": 7},
            True: {"models": ["mlp", "lstm"], "systems": ["eager", *OURS], "threads": [1], "rounds": 2},
        },
    )
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.threads), "row") as bar:
        for threads in options.threads:
            for model in options.models:
                bar.set_postfix_str(f"{model}, {threads} thread(s)")
                task = {"model": model, "systems": options.systems, "threads": threads, "rounds": options.rounds}
                task |= {"optimiser": options.optimiser, "precision": options.precision, "quick": options.quick}
                variables = {**LEVELS[options.level], "OMP_NUM_THREADS": str(threads)}
                rows.append(children.run("training:measure", task, variables, bar.set_postfix_str))
                bar.update()
    settings = {name: getattr(options, name) for name in ("quick", "optimiser", "precision", "level")}
    output.write_json(options.json, {"benchmark": "training", **settings, "rows": rows})
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], options, threads)
    return int(any(system in OURS for row in rows for system in row["faults"]))


def measure(
    model: str, systems: list[str], threads: int, rounds: int, optimiser: str, precision: str, quick: bool
) -> Row:
    """Return the times of one row's systems, their first steps and losses."""
    import torch
    import torch._inductor.config

    import torchmdla
    from torchmdla.testing import timing

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch._inductor.config.fallback_random = True
    module, inputs, loss = build(TASKS[model], quick)
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    losses: dict[str, float] = {}
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
        for system in systems:
            children.step(f"{model}: first steps of {system}")
            try:
                steps[system] = step_of(system, copy.deepcopy(module), loss, inputs, optimiser, precision)
                torch.manual_seed(0)  # of dropout; a trace draws numbers, too
                start = time.perf_counter()
                steps[system]()
                first[system] = time.perf_counter() - start
                losses[system] = [steps[system]() for _ in range(_STEPS)][-1]
            except Exception as error:
                faults[system] = f"{type(error).__name__}: {str(error)[:200]}"
        reference = losses["eager"]
        for system, last in losses.items():
            if not abs(last - reference) <= _TOLERANCE * abs(reference):
                faults[system] = f"loss {last:.6g} after {_STEPS} steps, eager's is {reference:.6g}"
        calls = {system: step for system, step in steps.items() if system not in faults}
        times = timing.time_interleaved(
            calls, rounds, on_round=lambda k: children.step(f"{model}: round {k + 1} of {rounds}")
        )
    stats = torchmdla.stats()
    return {
        "model": model,
        "threads": threads,
        "times": {system: {**timing.summary(of), "rounds_s": of} for system, of in times.items()},
        "first_s": first,
        "losses": losses,
        "faults": faults,
        "groups": stats.groups,
        "fallbacks": {**stats.fallbacks, **stats.left_out},
    }


def build(task: Task, quick: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[[Any], torch.Tensor]]:
    """Return a model in training mode, its inputs, and a function from its results to the loss."""
    import torch
    from torch.nn import functional

    from torchmdla.testing import architectures
    from torchmdla.testing.models import MODELS

    spec = MODELS[task.model]
    if not quick and task.model == "bert":
        spec = replace(spec, architecture=lambda: architectures.Bert(30522, 512, 4, 768, 12))
    spec = spec.reduced() if quick else spec
    module = spec.build().train()
    inputs = spec.inputs(batch=8 if quick else task.batch, size=None if quick else task.size)
    with torch.no_grad():
        result = _first(copy.deepcopy(module)(*inputs))
    generator = torch.Generator().manual_seed(1)
    if task.loss == "mse":
        target = torch.randn(result.shape, generator=generator)
        return module, inputs, lambda results: functional.mse_loss(_first(results).float(), target)
    labels = torch.randint(result.shape[-1], (result.numel() // result.shape[-1],), generator=generator)
    return module, inputs, lambda results: functional.cross_entropy(_first(results).flatten(0, -2).float(), labels)


def _first(results: Any) -> torch.Tensor:
    """Return the first result of a model, which has one or several."""
    tensor: torch.Tensor = results[0] if isinstance(results, tuple) else results
    return tensor


def step_of(
    system: str,
    module: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    optimiser: str,
    precision: str,
) -> Step:
    """Return a function that trains ``module`` by one step of ``system`` and returns the loss."""
    import torch

    update = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimiser](module.parameters(), lr=1e-3)
    forward: Any = module
    if system in BACKENDS:
        forward = torch.compile(module, backend=system)
    elif system == "torchscript":
        forward = torch.jit.trace(module, inputs, check_trace=False)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            value = loss(forward(*inputs))
        update.zero_grad()
        value.backward()
        update.step()
        return float(value.detach())

    return step


def show(rows: list[Row], options: Any, threads: int) -> None:
    """Print the table of rows with one number of threads."""
    columns = [*(f"{system}, ms" for system in options.systems), "gain", *(f"{s}, first s" for s in options.systems)]
    title = f"A step of training, {options.optimiser}, {options.precision}, {options.level}, {threads} thread(s)"
    gains = [gain(row) for row in rows]
    table = output.table(title, ["model", *columns], f"geometric mean of the gains {output.geometric_mean(gains):.2f}")
    for row in rows:
        times = [f"{row['times'][s]['min']:.3g}" if s in row["times"] else "–" for s in options.systems]
        first = [f"{row['first_s'][s]:.2f}" if s in row["first_s"] else "–" for s in options.systems]
        table.add_row(row["model"], *times, f"{gain(row):.2f}", *first)
    faults = [f"{row['model']}, {system}: {why}" for row in rows for system, why in row["faults"].items()]
    fallbacks = [f"{row['model']}: {count} × {why}" for row in rows for why, count in row["fallbacks"].items()]
    output.show(table, *faults, *fallbacks)


def gain(row: Row) -> float:
    """Return the best peer's minimum time over that of the best of torchmdla's systems; NaN if one is missing."""
    ours = [of["min"] for system, of in row["times"].items() if system in OURS]
    peers = [of["min"] for system, of in row["times"].items() if system not in OURS]
    return float(min(peers) / min(ours)) if ours and peers else float("nan")


if __name__ == "__main__":
    sys.exit(main())
