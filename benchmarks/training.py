"""Compare steps of training: forward, loss, backward and optimiser, with equal losses.

Each row trains one model with all systems in turn, in a process of its own. Each system has a copy of the model with
the same weights. Times are the minimum and the median of the rounds, in milliseconds for one step. The gain is the
best peer's minimum time over torchmdla's. First steps include compiling. A system that ends the first steps with
another loss than eager is reported, and not timed.

The memory of a step, in MiB, is the largest resident set during the step, without what was resident before it. The step
runs on a new thread, so that memory which a system keeps for a thread is counted. Linux only.

With --level x86-64-v3 all systems are held to AVX2. zentorch takes part if it is installed. The exit status is 1 if
torchmdla fails or its loss differs.
"""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import os
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import children, output
from harness.charts import save_charts

if TYPE_CHECKING:
    import torch
    from torch import nn

Row = dict[str, Any]
Step = Callable[[], float]

OURS = ("torchmdla", "torchscript", "lazy", "acap")
PEERS = ("eager", "inductor", "zentorch")
SYSTEMS = (*PEERS, *OURS)

# Systems that need a package which may be missing.
OPTIONAL = ("zentorch",)

COLOURS = {
    "eager": "midnightblue",
    "inductor": "lightsteelblue",
    "zentorch": "darkgrey",
    "torchmdla": "crimson",
    "torchscript": "lightcoral",
    "lazy": "sandybrown",
    "acap": "peachpuff",
}

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

# Systems that are backends of torch.compile, and systems that are devices of PyTorch.
BACKENDS = ("inductor", "zentorch", "torchmdla")
DEVICES = ("lazy", "acap")

_STEPS = 20  # before losses are compared
_TOLERANCE = 1e-2  # of the losses, relative


class Task(NamedTuple):
    """Model of :data:`torchmdla.testing.models.MODELS`, or of :func:`_architectures`, with its batch and loss."""

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
    "vit_s": Task("vit_b16", 4),
    "gpt2": Task("gpt", 1, "next_token", 128),
    "lstm": Task("lstm", 8, "mse"),
    "gru": Task("gru", 8, "mse"),
    "schnet": Task("schnet", 1, "forces", 216),
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
    parser.add_argument(
        "--compile-optimiser", action="store_true", help="compile the optimiser's step by torch.compile"
    )
    parser.add_argument("--plot", type=output.new_file, metavar="FILE", help="draw speeds and memory into this PNG")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    present = [name for name in SYSTEMS if name not in OPTIONAL or importlib.util.find_spec(name)]
    output.fill_in(
        options,
        {
            False: {"models": list(TASKS), "systems": present, "threads": [1, 2], "rounds": 7},
            True: {"models": ["mlp", "lstm"], "systems": ["eager", *OURS], "threads": [1], "rounds": 2},
        },
    )
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.threads), "row") as bar:
        for threads in options.threads:
            for model in options.models:
                bar.set_postfix_str(f"{model}, {threads} thread(s)")
                task = {"model": model, "systems": options.systems, "threads": threads, "rounds": options.rounds}
                task |= {
                    name: getattr(options, name) for name in ("optimiser", "compile_optimiser", "precision", "quick")
                }
                variables = {**LEVELS[options.level], "OMP_NUM_THREADS": str(threads)}
                rows.append(children.run("training:measure", task, variables, bar.set_postfix_str))
                bar.update()
    settings = {
        name: getattr(options, name) for name in ("quick", "optimiser", "compile_optimiser", "precision", "level")
    }
    output.write_json(options.json, {"benchmark": "training", **settings, "rows": rows})
    if options.plot:
        plot(rows, options.plot)
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], options, threads)
    return int(any(system in OURS for row in rows for system in row["faults"]))


def measure(
    model: str,
    systems: list[str],
    threads: int,
    rounds: int,
    optimiser: str,
    compile_optimiser: bool,
    precision: str,
    quick: bool,
) -> Row:
    """Return the times of one row's systems, their first steps, losses and memory."""
    import torch
    import torch._inductor.config

    import torchmdla
    from torchmdla.testing import timing

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch._inductor.config.fallback_random = True
    program = build(TASKS[model], quick)
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
                steps[system] = step_of(system, program, optimiser, compile_optimiser, precision)
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
        children.step(f"{model}: memory")
        memory = {system: peak for system, step in calls.items() if (peak := peak_of(step)) is not None}
    stats = torchmdla.stats()
    return {
        "model": model,
        "threads": threads,
        "times": {system: {**timing.summary(of), "rounds_s": of} for system, of in times.items()},
        "first_s": first,
        "losses": losses,
        "memory_mib": memory,
        "faults": faults,
        "groups": stats.groups,
        "fallbacks": {**stats.fallbacks, **stats.left_out},
    }


# Blocks from this size on leave the process when they are freed, so that the resident set shows what is in use.
_LEAST_MAPPED = 64 << 10
_M_MMAP_THRESHOLD = -3  # of mallopt


def peak_of(step: Step) -> float | None:
    """Return the MiB by which the resident set grows in a step on a new thread; None where this is not measured."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)
    peaks = []
    for _ in range(3):
        step()  # memory that the previous step left is freed
        library.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present resident set
        before = _status("VmRSS")
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        peaks.append(_status("VmHWM") - before)
    return min(peaks)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


class Program(NamedTuple):
    """Model in training mode, with its inputs and target.

    ``loss`` is a function from the model, or its compiled form, the inputs and the target to the loss.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor
    loss: Callable[..., torch.Tensor]

    def to(self, device: Any) -> Program:
        """Return a copy on ``device``."""
        module = copy.deepcopy(self.module).to(device)
        return self._replace(
            module=module, inputs=tuple(x.to(device) for x in self.inputs), target=self.target.to(device)
        )


def build(task: Task, quick: bool) -> Program:
    """Return the program of a task, reduced if ``quick``."""
    import torch

    from torchmdla.testing.models import MODELS, SCHNET

    spec = {**MODELS, "schnet": SCHNET}[task.model]
    spec = spec.reduced() if quick else replace(spec, architecture=_architectures().get(task.model, spec.architecture))
    module = spec.build().train()
    inputs = spec.inputs(batch=8 if quick else task.batch, size=None if quick else task.size)
    generator = torch.Generator().manual_seed(1)
    if task.loss == "forces":
        return Program(module, inputs, torch.randn(inputs[0].shape, generator=generator), _loss_of_forces)
    with torch.no_grad():
        result = _first(copy.deepcopy(module)(*inputs))
    targets = {
        "mse": lambda: torch.randn(result.shape, generator=generator),
        "cross_entropy": lambda: torch.randint(
            result.shape[-1], (result.numel() // result.shape[-1],), generator=generator
        ),
        "next_token": lambda: inputs[0][:, 1:].flatten(),
    }
    return Program(module, inputs, targets[task.loss](), _LOSSES[task.loss])


def _architectures() -> Mapping[str, Callable[[], nn.Module]]:
    """Return the models that are smaller here than those whose inference is measured."""
    from torchmdla.testing.architectures import Bert, Vit

    return {"bert": lambda: Bert(30522, 512, 4, 768, 12), "vit_b16": lambda: Vit(224, 16, 12, 384, 6, 1000)}


def _first(results: Any) -> torch.Tensor:
    """Return the first result of a model, which has one or several."""
    tensor: torch.Tensor = results[0] if isinstance(results, tuple) else results
    return tensor


def _mse(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.mse_loss(_first(model(*inputs)).float(), target)


def _cross_entropy(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.cross_entropy(_first(model(*inputs)).flatten(0, -2).float(), target)


def _next_token(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    logits = _first(model(*inputs))[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), target)


def _loss_of_forces(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Return the error of the forces, the negative gradient of the energy with respect to positions."""
    import torch

    positions = inputs[0].detach().requires_grad_()
    energy = model(positions, *inputs[1:])
    (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
    return torch.nn.functional.mse_loss(-gradient.float(), target)


_LOSSES = {"mse": _mse, "cross_entropy": _cross_entropy, "next_token": _next_token}


def step_of(system: str, program: Program, optimiser: str, compile_optimiser: bool, precision: str) -> Step:
    """Return a function that trains a copy of the program's model by one step of ``system``, and returns the loss."""
    import torch

    module, inputs, target, loss = program.to(_device(system))
    updating = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimiser](module.parameters(), lr=1e-3)
    update: Any = updating.step
    forward: Any = module
    if system in BACKENDS:
        forward = torch.compile(_with_own_code(module), backend=system)
        update = torch.compile(update, backend=system) if compile_optimiser else update
    elif system == "torchscript":
        forward = torch.jit.trace(module, inputs, check_trace=False)
    # PyTorch has no autocast for the lazy device.
    autocast = "cpu" if system == "lazy" else inputs[0].device.type

    def step() -> float:
        with torch.autocast(autocast, torch.bfloat16, enabled=precision == "bfloat16"):
            value = loss(forward, inputs, target)
        updating.zero_grad()
        value.backward()
        update()
        _SYNCHRONISE.get(system, _nothing)()
        return float(value.detach())

    return step


def _with_own_code(module: nn.Module) -> nn.Module:
    """Let ``module`` run a copy of its code: Dynamo skips code for all backends after one of them breaks its graph."""
    kind = type(module)
    forward: Any = kind.forward
    copied = types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", forward.__defaults__, forward.__closure__
    )
    module.__class__ = type(kind.__name__, (kind,), {"forward": copied})
    return module


def _device(system: str) -> Any:
    """Return the device of a system, and prepare it."""
    import torchmdla
    from torchmdla import lazy

    if system == "acap":
        return torchmdla.acap_device()
    if system == "lazy":
        lazy.initialize()
        return "lazy"
    return "cpu"


def _mark_lazy() -> None:
    import torch._lazy

    torch._lazy.mark_step()


def _mark_acap() -> None:
    import torchmdla.acap

    torchmdla.acap.mark_step()


def _nothing() -> None:
    """Do nothing: most systems compute at once."""


_SYNCHRONISE: Mapping[str, Callable[[], None]] = {"lazy": _mark_lazy, "acap": _mark_acap}


def show(rows: list[Row], options: Any, threads: int) -> None:
    """Print the tables of rows with one number of threads: times, first steps and memory."""
    whole = "compiled " * options.compile_optimiser + options.optimiser
    title = f"A step of training, {whole}, {options.precision}, {options.level}, {threads} thread(s)"
    gains = [gain(row) for row in rows]
    mean = output.geometric_mean([value for value in gains if value == value])
    times = output.table(title, ["model", *(f"{s}, ms" for s in options.systems), "gain"], f"mean gain {mean:.2f}")
    others = output.table("First step, s; memory of a step, MiB", ["model", *options.systems, *options.systems])
    for row, value in zip(rows, gains, strict=True):
        least = {system: of["min"] for system, of in row["times"].items()}
        times.add_row(row["model"], *_cells(least, options.systems), f"{value:.2f}")
        cells = (*_cells(row["first_s"], options.systems), *_cells(row["memory_mib"], options.systems))
        others.add_row(row["model"], *cells)
    faults = [f"{row['model']}, {system}: {why}" for row in rows for system, why in row["faults"].items()]
    fallbacks = [f"{row['model']}: {count} × {why}" for row in rows for why, count in row["fallbacks"].items()]
    output.show(times, others, *faults, *fallbacks)


def _cells(values: Mapping[str, float], systems: Sequence[str]) -> list[str]:
    return [f"{values[system]:.3g}" if system in values else "–" for system in systems]


def plot(rows: list[Row], file: Path) -> None:
    """Draw speed and memory relative to eager as bars, one chart for each quantity and number of threads."""
    charts: list[tuple[str, int, Callable[[Row, str], float]]] = []
    for threads in sorted({row["threads"] for row in rows}):
        charts.append(
            ("speed", threads, lambda row, system: row["times"]["eager"]["min"] / row["times"][system]["min"])
        )
        charts.append(("memory", threads, lambda row, system: row["memory_mib"][system] / row["memory_mib"]["eager"]))

    def draw(chart: tuple[str, int, Callable[[Row, str], float]], axes: Any) -> None:
        quantity, threads, relative = chart
        shown = [row for row in rows if row["threads"] == threads]
        systems = [name for name in SYSTEMS if any(name in row["times"] for row in shown)]
        width = 0.85 / max(len(systems), 1)
        for index, system in enumerate(systems):
            places = [place + (index - (len(systems) - 1) / 2) * width for place in range(len(shown))]
            bars = [relative(row, system) if system in row["times"] and row["memory_mib"] else 0 for row in shown]
            axes.bar(places, bars, width, label=system, color=COLOURS[system])
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(shown)), [row["model"] for row in shown], fontsize="small")
        better = "higher" if quantity == "speed" else "lower"
        axes.set_title(f"{quantity} of a step, eager = 1, {threads} thread(s); {better} is better", fontsize="medium")
        axes.legend(fontsize="small", ncols=len(systems))

    save_charts(charts, draw, file, across=1, height=3.2)


def gain(row: Row) -> float:
    """Return the best peer's minimum time over that of the best of torchmdla's systems; NaN if one is missing."""
    ours = [of["min"] for system, of in row["times"].items() if system in OURS]
    peers = [of["min"] for system, of in row["times"].items() if system not in OURS]
    return float(min(peers) / min(ours)) if ours and peers else float("nan")


if __name__ == "__main__":
    sys.exit(main())
