"""Measure sizes that change between calls: BERT at twenty sequence lengths, ResNet-18 at ten batch sizes.

One compiled program runs at all sizes, one after the other, as in a server. For each size, the table shows the first
call (which may compile), later calls in turn with eager's, and the numbers of specialisations and fallbacks. Nothing
should compile after the third size from 2 on. With --specialised, the program is also compared with one that was
compiled for this size only; the mark is 10 % more time.

The exit status is 1 if a result differs from eager's beyond tolerance.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from functools import partial
from typing import Any

from harness import children, output

from torchmdla.testing import timing

# The model, its varying size, and the values.
CASES: dict[str, tuple[str, str, list[int]]] = {
    "bert": ("bert", "size", [128, 16, 64, 37, 100, 50, 7, 90, 77, 24, 112, 5, 60, 120, 33, 84, 96, 48, 71, 11]),
    "resnet18": ("resnet18", "batch", [1, 2, 4, 3, 8, 5, 6, 10, 7, 9]),
}
_COUNTS = ("specialisations", "dynamic", "compiled", "fallbacks")
_NAMES = {"size": "sequence length", "batch": "batch size"}

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    names = list(CASES)
    parser.add_argument("--models", type=output.one_of(names), default=names, help=f"of {','.join(names)} (all)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    parser.add_argument("--rounds", type=output.number, help="timed rounds of each size (3)")
    parser.add_argument("--sizes", type=output.numbers, help="instead of the model's own")
    parser.add_argument("--specialised", action="store_true", help="compare with a program for each size alone")
    options = parser.parse_args()
    results: dict[str, list[Row]] = {}
    faults = []
    sizes = {name: chosen_sizes(name, options) for name in options.models}
    with output.progress(len(options.models), "model") as bar:
        for name in options.models:
            task = {
                "name": name,
                "sizes": sizes[name],
                "threads": options.threads,
                "rounds": options.rounds or (1 if options.quick else 3),
                "specialised": options.specialised,
                "quick": options.quick,
            }
            try:
                results[name] = children.run(
                    "dynamic:measure", task, {"OMP_NUM_THREADS": str(options.threads)}, bar.set_postfix_str
                )
            except children.ChildFailed as failure:
                faults.append(f"{name}: {failure}")
            bar.update()
            output.write_json(options.json, {"benchmark": "dynamic", "quick": options.quick, "models": results})
    for name, rows in results.items():
        show(name, rows)
        faults += [f"{name}, {row['size']}: {row['fault']}" for row in rows if row["fault"]]
    output.show(*faults)
    return int(bool(faults))


def chosen_sizes(name: str, options: Any) -> list[int]:
    if options.sizes:
        return list(options.sizes)
    # Reduced models support shorter sequences only. A few sizes up to 24 suffice for a quick run.
    return [size for size in CASES[name][2] if size <= 24][:3] if options.quick else CASES[name][2]


def measure(name: str, sizes: list[int], threads: int, rounds: int, specialised: bool, quick: bool) -> list[Row]:
    """Return the rows of one model, one for each size, measured in this process."""
    import torch

    import torchmdla
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    model, varies, _ = CASES[name]
    spec = MODELS[model].reduced() if quick else MODELS[model]
    module = spec.build()
    rows = []
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        first = spec.inputs(**{varies: sizes[0]})
        compiled = torchmdla.compile(torch.jit.trace(module, first, check_trace=False), *first)
        for size in sizes:
            children.step(f"{name}, {_NAMES[varies]} {size}")
            inputs = spec.inputs(**{varies: size})
            counts, row = first_calls(module, compiled, inputs, spec.layers)
            ways = {"eager": module, "torchmdla": compiled}
            if specialised:
                ways["alone"] = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
            calls = {way: partial(run, *inputs) for way, run in ways.items()}
            times = timing.time_interleaved(calls, rounds)
            rows.append({"size": size, **row, **counts, **{way: timing.summary(times[way]) for way in ways}})
    return rows


def first_calls(module: Any, compiled: Any, inputs: Any, layers: int) -> tuple[dict[str, int], Row]:
    """Return the counts and times of two calls at a new size, the first of which may record a run of eager ops."""
    import torchmdla
    from torchmdla.testing.compare import assert_matches

    torchmdla.reset_stats()
    start = time.perf_counter()
    results = [compiled(*inputs)]
    first = time.perf_counter() - start
    results.append(compiled(*inputs))
    stats = torchmdla.stats()
    counts = {
        "specialisations": stats.specialisations,
        "dynamic": stats.dynamic,
        "compiled": stats.compiled,
        "fallbacks": sum(stats.fallbacks.values()),
    }
    fault = None
    for result in results:
        try:
            assert_matches(result, module(*inputs), layers=layers)
        except AssertionError as difference:
            fault = str(difference)
    return counts, {"first_ms": first * 1e3, "fault": fault}


def show(name: str, rows: list[Row]) -> None:
    compared = "alone" in rows[0]
    columns = [_NAMES[CASES[name][1]], "first call, ms", "eager, ms", "torchmdla, ms", "speed"]
    columns += ["over its own"] * compared + list(_COUNTS)
    caption = "times: least / median; counts are of the first two calls of a size, dynamic ones are specialisations too"
    table = output.table(f"{name} at changing sizes", columns, caption)
    for row in rows:
        over = f"{row['torchmdla']['min'] / row['alone']['min'] - 1:+.0%}" if compared else ""
        table.add_row(
            str(row["size"]),
            output.digits(row["first_ms"]),
            output.pair(row["eager"]),
            output.pair(row["torchmdla"]),
            f"{row['eager']['min'] / row['torchmdla']['min']:.2f}",
            *[over] * compared,
            *(str(row[count]) for count in _COUNTS),
        )
    table.add_section()
    table.add_row("sum", *[""] * (4 + compared), *(str(sum(row[count] for row in rows)) for count in _COUNTS))
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
