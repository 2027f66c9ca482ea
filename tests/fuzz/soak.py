"""Soak test with changing models, shapes and threads, killed compilers and cleared caches: ``make soak``.

Every call is compared with eager. Memory, threads, descriptors, mappings and children of this process are sampled.
They are drawn at the end, and must be flat: about equal in the last quarter and in the second. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tqdm import tqdm

# Allowed growth of each sampled quantity: a fraction, and an amount in its own unit.
LIMITS: Mapping[str, tuple[float, float]] = {
    "memory, MiB": (0.10, 32),
    "compiler's memory, MiB": (0.25, 128),
    "threads": (0.0, 2),
    "descriptors": (0.0, 8),
    "mappings": (0.10, 64),
    "children": (0.0, 1),
}

_LIVE_MODELS = 5
_SECONDS_BETWEEN_SAMPLES = 2.0


def sample() -> dict[str, float]:
    """Return the current resources of this process and its children."""
    children = _children()
    return {
        "memory, MiB": _resident("self"),
        "compiler's memory, MiB": sum(_resident(str(pid)) for pid in children),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "children": len(children),
    }


def _children() -> list[int]:
    pids = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids


def _resident(process: str) -> float:
    with suppress(OSError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


class Watch(threading.Thread):
    """Thread that samples until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[dict[str, float]] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_SAMPLES):
            self.samples.append(sample())

    def stop(self) -> None:
        """Stop sampling and wait for the last sample."""
        self._over.set()
        self.join()


# --- the work ----------------------------------------------------------------------------------------------------


@dataclass
class Live:
    """Model that is called with changing shapes by changing numbers of threads."""

    name: str
    eager: Callable[..., Any]
    compiled: Callable[..., Any]
    draw: Callable[[int], tuple[Any, ...]]
    layers: int


# A function that creates a model, a function that draws its inputs for a number, and the number of layers of the
# tolerance.
Kind = tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]], int]

WIDTHS = (8, 24, 48)


def kinds(width: int) -> dict[str, Kind]:
    """Return the kinds of models of a width, by name."""
    import torch
    from torch import nn

    from fuzz.recurrent import Recurrent

    return {
        "mlp": (
            lambda: nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10), nn.Softmax(-1)),
            lambda n: (torch.randn(n, width),),
            4,
        ),
        "convolutions": (
            lambda: nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
            lambda n: (torch.randn(1 + n % 3, 3, 8 + n % 5, 16),),
            4,
        ),
        "recurrent": (lambda: Recurrent(width, 16), lambda n: (torch.randn(2, 1 + n % 9, width),), 16),
        "attention": (
            lambda: nn.TransformerEncoderLayer(width, 2, 32, batch_first=True),
            lambda n: (torch.randn(2, 1 + n % 17, width),),
            16,
        ),
    }


def _made(choice: random.Random) -> Live:
    """Return a random model with new weights.

    The classes are always the same, because PyTorch keeps every class that it scripted.
    """
    import torch

    name, (make, draw, layers) = choice.choice(list(kinds(choice.choice(WIDTHS)).items()))
    model = make().eval().requires_grad_(False)
    scripted = torch.jit.script(model)
    # PyTorch's forward of an LSTM is overloaded. A frozen one does not have a method of that name.
    if choice.random() < 0.2:
        scripted = torch.jit.freeze(scripted)
    return Live(name, model, scripted, draw, layers)


class Soak:
    """Work of a soak test. :attr:`done` counts the actions, and :attr:`wrong` describes differences from eager."""

    def __init__(self, seed: int, is_switched_off: bool = False) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._choice = random.Random(seed)
        self._live: list[Live] = []
        self._is_off = is_switched_off
        self._actions: dict[Callable[[], None], int] = {
            self._call: 40,
            self._call_by_threads: 8,
            self._replace: 8,
            self._kill_compiler: 1,
            self._clear_cache: 1,
            self._change_threads: 2,
            self._switch: 1,
        }

    def step(self) -> None:
        """Run one random action."""
        while len(self._live) < _LIVE_MODELS:
            self._live.append(self.make())
        (action,) = self._choice.choices(list(self._actions), list(self._actions.values()))
        action()
        self.done[action.__name__.strip("_").replace("_", " ")] += 1

    def make(self) -> Live:
        """Return a new model."""
        return _made(self._choice)

    def _check(self, live: Live, size: int) -> None:
        import torch

        from torchmdla.testing.compare import assert_matches

        with torch.no_grad():
            inputs = live.draw(size)
            try:
                assert_matches(live.compiled(*inputs), live.eager(*inputs), layers=live.layers)
            except Exception as error:
                self.wrong.append(f"{live.name}, size {size}: {type(error).__name__}: {error}")

    def _call(self) -> None:
        live = self._choice.choice(self._live)
        for _ in range(self._choice.randint(1, 5)):
            self._check(live, self._choice.choice([1, 2, 3, 5, 8, 13, 40]))

    def _call_by_threads(self) -> None:
        live = self._choice.choice(self._live)
        sizes = [self._choice.randint(1, 20) for _ in range(12)]
        with ThreadPoolExecutor(self._choice.randint(2, 6)) as pool:
            list(pool.map(lambda size: self._check(live, size), sizes))

    def _replace(self) -> None:
        self._live.pop(self._choice.randrange(len(self._live)))
        gc.collect()

    def _kill_compiler(self) -> None:
        # The compiler may be compiling or idle. Only children of this process are killed.
        children = _children()
        live = self._choice.choice(self._live)
        caller = threading.Thread(target=self._check, args=(live, self._choice.randint(20, 60)))
        caller.start()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        caller.join()

    def _clear_cache(self) -> None:
        from torchmdla.compile_service.cache import DiskCache

        DiskCache().clear()

    def _change_threads(self) -> None:
        import torch

        torch.set_num_threads(self._choice.randint(1, 3))

    def _switch(self) -> None:
        import torchmdla

        with torchmdla.enabled(self._is_off and torchmdla.is_enabled()):
            self._call()


# --- the report --------------------------------------------------------------------------------------------------


def growth(samples: Sequence[Mapping[str, float]], name: str) -> tuple[float, float]:
    """Return the medians of the second quarter and of the last quarter."""
    values = [row[name] for row in samples]
    quarter = max(1, len(values) // 4)
    return statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])


def is_flat(samples: Sequence[Mapping[str, float]], name: str) -> bool:
    """Return whether the growth of a quantity is within its limit."""
    before, after = growth(samples, name)
    part, amount = LIMITS[name]
    return after <= before * (1 + part) + amount


def drawn_line(values: Sequence[float], width: int = 60) -> str:
    """Return a line of block characters whose heights show the values."""
    width = min(width, len(values))
    points = [max(values[len(values) * i // width : len(values) * (i + 1) // width]) for i in range(width)]
    low, high = min(points), max(points)
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (point - low) / ((high - low) or 1))] for point in points)


def plot(samples: Sequence[Mapping[str, float]], path: Path) -> None:
    """Plot the samples with matplotlib."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(LIMITS), 1, sharex=True, figsize=(9, 2 * len(LIMITS)))
    for axis, name in zip(axes, LIMITS, strict=True):
        axis.plot([index * _SECONDS_BETWEEN_SAMPLES / 60 for index in range(len(samples))], [s[name] for s in samples])
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = argparse.ArgumentParser(
        prog="make soak",
        description=__doc__,
        epilog="exit status: 0 all flat and as eager, 1 not, 2 the command line is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command_line.add_argument("--minutes", type=float, default=60, metavar="N", help="for how long; 60")
    command_line.add_argument("--seed", type=int, default=0, metavar="N", help="of what is done; 0")
    command_line.add_argument(
        "--serving",
        action="store_true",
        help="models come from files, which are replaced and reloaded, with a store and a limit on memory: nothing of "
        "them is PyTorch's to keep",
    )
    command_line.add_argument(
        "--off", action="store_true", help="with torchmdla switched off: what PyTorch alone keeps"
    )
    command_line.add_argument("--json", type=Path, metavar="FILE", help="write the samples here")
    command_line.add_argument("--plot", type=Path, metavar="FILE", help="draw them here; needs matplotlib")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    options = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="torchmdla-soak-") as folder:
        os.environ["TORCHMDLA_CACHE_DIR"] = str(Path(folder) / "cache")
        if options.serving:
            from fuzz.serving import Serving, set_up

            set_up(Path(folder))
        import torchmdla

        warnings.simplefilter("ignore")
        torchmdla.enable(not options.off)
        watch = Watch()
        soak = Serving(options.seed, Path(folder)) if options.serving else Soak(options.seed, options.off)
        watch.start()
        begin = monotonic()
        with tqdm(total=round(60 * options.minutes), unit="s", file=sys.stderr, leave=False) as bar:
            while (passed := monotonic() - begin) < 60 * options.minutes:
                soak.step()
                bar.n = round(passed)
                bar.set_postfix_str(f"{sum(soak.done.values())} steps, {len(soak.wrong)} wrong")
        watch.stop()
    if options.json:
        options.json.write_text(json.dumps(watch.samples))
    if options.plot:
        plot(watch.samples, options.plot)
    return report(soak, watch.samples)


def report(soak: Soak, samples: Sequence[Mapping[str, float]]) -> int:
    """Print the actions and the samples, and return the exit status."""
    print(", ".join(f"{name}: {count}" for name, count in soak.done.most_common()))
    for name in LIMITS:
        before, after = growth(samples, name)
        verdict = "flat" if is_flat(samples, name) else "GROWS"
        print(f"{name:<24}{drawn_line([row[name] for row in samples])} {before:.0f} → {after:.0f} {verdict}")
    for line in list(dict.fromkeys(soak.wrong))[:20]:
        print(f"wrong: {line}"[:400])
    return int(bool(soak.wrong) or not all(is_flat(samples, name) for name in LIMITS))


if __name__ == "__main__":
    raise SystemExit(main())
