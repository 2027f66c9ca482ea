"""Compare algorithms: plain sums, Winograd's convolutions and Strassen's products, forced, and the cost model's choice.

Layers are chains of equal layers, so long that their weights come from memory, as in a model. They have rectifiers and
no bias, because a bias would be large compared with the results. Models are those of the registry. Every algorithm is
compiled in the same process, applied wherever it is possible, and all run in turn. Errors are root mean squares of the
difference from float64, relative to the results.

The exit status is 1 if an algorithm's results differ from eager's beyond tolerance, or if it falls back.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import children, output
from harness.checked import prepare_checked

from torchmdla.testing import timing
from torchmdla.testing.models import MODELS

if TYPE_CHECKING:
    from torch import nn

Row = dict[str, Any]

CONVOLUTIONS = ("direct", "winograd2", "winograd4", "fast")
PRODUCTS = ("direct", "strassen", "fast")
MODEL_ALGORITHMS = ("direct", "winograd", "fast")

# Bytes of weights in a chain, and its maximum number of layers.
_WEIGHTS = 64 << 20
_MOST_LAYERS = 16


@dataclass(frozen=True)
class Convolution:
    """Convolution of ``taps`` × ``taps`` with ``channels`` filters, on images of ``size`` × ``size``."""

    channels: int
    size: int
    taps: int = 3

    def __str__(self) -> str:
        return f"{self.taps}×{self.taps}, {self.channels} @ {self.size}²"

    @property
    def weights(self) -> int:
        return self.channels**2 * self.taps**2

    def modules(self) -> list[nn.Module]:
        from torch import nn

        return [nn.Conv2d(self.channels, self.channels, self.taps, padding=self.taps // 2, bias=False), nn.ReLU()]

    @property
    def shape(self) -> tuple[int, ...]:
        return 1, self.channels, self.size, self.size


@dataclass(frozen=True)
class Product:
    """Linear layers of ``rows`` from ``terms`` to ``columns``, and back if these differ."""

    rows: int
    terms: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows} × {self.terms} × {self.columns}"

    @property
    def weights(self) -> int:
        return self.terms * self.columns * (1 + (self.terms != self.columns))

    def modules(self) -> list[nn.Module]:
        from torch import nn

        there, back = nn.Linear(self.terms, self.columns, bias=False), nn.Linear(self.columns, self.terms, bias=False)
        return [there, nn.ReLU()] if self.terms == self.columns else [there, nn.ReLU(), back, nn.ReLU()]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.terms


LAYERS: tuple[Convolution | Product, ...] = (
    Convolution(64, 56),
    Convolution(128, 28),
    Convolution(256, 14),
    Convolution(512, 7),
    Convolution(256, 56),
    Convolution(64, 28, 5),
    Product(32, 2048, 2048),
    Product(128, 768, 768),
    Product(128, 768, 3072),
    Product(197, 768, 3072),
    Product(384, 512, 2048),
)


def main() -> int:
    options = parse_options()
    jobs = [(name, threads) for threads in options.threads for name in [*options.layers, *options.models]]
    rows: list[Row] = []
    with output.progress(len(jobs), "row") as bar:
        for name, threads in jobs:
            task = {"name": name, "threads": threads, "rounds": options.rounds, "quick": options.quick}
            variables = {"OMP_NUM_THREADS": str(threads)}
            rows.append(children.run("algorithms:measure", task, variables, bar.set_postfix_str))
            bar.update()
            output.write_json(options.json, {"benchmark": "algorithms", "quick": options.quick, "rows": rows})
    for algorithms in (CONVOLUTIONS, PRODUCTS, MODEL_ALGORITHMS):
        show([row for row in rows if tuple(row["ways"]) == algorithms], algorithms)
    faults = [f"{row['name']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    names = list(map(str, LAYERS))
    parser.add_argument("--layers", type=int, metavar="NUMBER", help=f"the first so many of {len(names)} layers (all)")
    parser.add_argument("--models", type=output.one_of(MODELS), metavar="NAMES", help="whole models, too (none)")
    parser.add_argument("--threads", type=output.numbers, metavar="NUMBERS", help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each algorithm (9)")
    options = parser.parse_args()
    options.layers = names[: (1 if options.quick else len(names)) if options.layers is None else options.layers]
    options.models = options.models or []
    options.threads = options.threads or ([1] if options.quick else [1, 2])
    options.rounds = options.rounds or (2 if options.quick else 9)
    return options


def measure(name: str, threads: int, rounds: int, quick: bool) -> Row:
    """Return the row of a layer or a model, measured in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name in MODELS:
        spec = MODELS[name].reduced() if quick else MODELS[name]
        return _measure(name, spec.build(), spec.inputs(), MODEL_ALGORITHMS, threads, rounds, 1, spec.layers)
    layer = next(candidate for candidate in LAYERS if str(candidate) == name)
    count = 1 if quick else min(_MOST_LAYERS, math.ceil(_WEIGHTS / 4 / layer.weights))
    module = torch.nn.Sequential(*(each for _ in range(count) for each in layer.modules())).eval()
    algorithms = CONVOLUTIONS if isinstance(layer, Convolution) else PRODUCTS
    return _measure(name, module, (torch.randn(layer.shape),), algorithms, threads, rounds, count, 2 * count)


def _measure(
    name: str,
    module: nn.Module,
    inputs: tuple[Any, ...],
    algorithms: tuple[str, ...],
    threads: int,
    rounds: int,
    count: int,
    depth: int,
) -> Row:
    """Return the row of ``module`` with the times of each of the ``algorithms``, divided by ``count``.

    The tolerance for the results is that of ``depth`` layers.
    """
    import torch
    from harness.accuracy import exact_results, relative_rms

    import torchmdla

    title = f"{name}, {threads} thread{'s' * (threads > 1)}"
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        preparing = {way: partial(prepare, way) for way in algorithms}
        calls, results, faults = prepare_checked(title, preparing, module, inputs, depth)
        times = timing.time_interleaved(calls, rounds)
        exact = exact_results(module, inputs)
    tensors_of = {way: [r] if isinstance(r, torch.Tensor) else list(r) for way, r in results.items()}
    errors = {way: relative_rms(tensors, exact) for way, tensors in tensors_of.items()}
    faults += [f"fell back: {reason}" for reason in torchmdla.stats().fallbacks]
    ways = {way: timing.summary([t / count for t in taken]) for way, taken in times.items()}
    return {"name": name, "threads": threads, "ways": ways, "errors": errors, "faults": faults}


def prepare(algorithm: str, module: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """Return a call of ``module`` with an algorithm."""
    import torchmdla

    torchmdla.enable(algorithms=algorithm)
    return partial(torchmdla.compile(module, *inputs), *inputs)


def show(rows: list[Row], algorithms: tuple[str, ...]) -> None:
    """Print a table of the rows that have these ``algorithms``, if any."""
    if not rows:
        return
    caption = "ms of a layer or model, least / median; below: rms error against float64; gain: plain sums over fast"
    table = output.table("Algorithms", ("", "threads", *algorithms, "gain"), caption)
    for row in rows:
        gain = row["ways"]["direct"]["min"] / row["ways"]["fast"]["min"]
        times = (output.pair(row["ways"][way]) for way in algorithms)
        table.add_row(row["name"], str(row["threads"]), *times, f"{gain:.2f}")
        table.add_row("", "", *(f"{row['errors'][way]:.1e}" for way in algorithms), "")
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
