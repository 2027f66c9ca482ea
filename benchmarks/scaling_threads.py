"""Show how threads share each kernel of whole models, and time the models where the processors exist.

The partition of kernels between threads is computed from the schedules, so it is exact for any number of threads on any
machine. The program is compiled for each number of threads, up to its schedules. Work is in cycles of the cost model.

For each kernel, the table has its calls, its part of the work, the blocks that threads share, and the fewest blocks in
a task (the grain). It also has the number of tasks, and the imbalance: the largest share of a thread over the mean,
minus one. Kernels with one task are serial. Those that lose the most time are first. "lost" is the time of the busiest
thread beyond the mean, relative to the time of the whole model on threads that are always busy.

The last table has the imbalance of all shared kernels together, and the serial part of the work (packing in calls,
small kernels, copies and the entry). It also has how often threads are started and joined, the barriers without a join,
and the kernels before which some threads wait for some others. Times of kernels and models are measured for as many
threads as the process has CPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from harness import children, output
from harness.rows import KNOWN, ROW_NAMES, rows_by_name

Row = dict[str, Any]


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    faults = []
    with output.progress(len(options.models), "model") as bar:
        for model in options.models:
            bar.set_postfix_str(model)
            task = {"model": model, "threads": options.threads, "processor": options.processor}
            task |= {"timed": not options.untimed, "quick": options.quick}
            try:
                rows += children.run("scaling_threads:measure", task, {"OMP_NUM_THREADS": str(max_threads())})
            except children.ChildFailed as failure:
                faults.append(f"{model}: {failure}")
            bar.update()
            output.write_json(options.json, {"benchmark": "scaling_threads", "quick": options.quick, "rows": rows})
    for row in rows:
        show(row, options.most)
    show_all(rows)
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    models = output.one_of(KNOWN)
    parser.add_argument(
        "--models", type=models, metavar="NAMES", help=f"of {','.join(KNOWN)} (the first {len(ROW_NAMES)})"
    )
    parser.add_argument("--threads", type=output.numbers, metavar="NUMBERS", help="(1,2,4,8,16,32,64)")
    parser.add_argument("--processor", metavar="NAME", help="schedule for a level such as x86-64-v3, without times")
    parser.add_argument("--untimed", action="store_true", help="only compute the partition")
    parser.add_argument(
        "--most", type=output.number, metavar="NUMBER", default=8, help="rows of a table of kernels (8)"
    )
    options = parser.parse_args()
    output.fill_in(
        options,
        {
            True: {"models": ["mlp", "norms_64x256"], "threads": [1, 4]},
            False: {"models": list(ROW_NAMES), "threads": [1, 2, 4, 8, 16, 32, 64]},
        },
    )
    return options


def max_threads() -> int:
    return len(os.sched_getaffinity(0))


# --- one model ---------------------------------------------------------------------------------------------------


def measure(model: str, threads: Sequence[int], processor: str | None, timed: bool, quick: bool) -> list[Row]:
    """Return a row for each number of threads, computed and measured in this process."""
    import torch

    from torchmdla.devices import get
    from torchmdla.devices.cpu.target.machine import share_between

    warnings.filterwarnings("ignore")
    spec = rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    children.step("building the model")
    module, inputs = spec.build(), spec.inputs()
    rows = []
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        program = import_program(module, inputs)
        for number in threads:
            children.step(f"scheduling for {number} threads")
            target = share_between(get("cpu").target_for(processor or "native"), number)
            row = partition(replace(program, target=target), number)
            if timed and not processor and number <= max_threads():
                children.step(f"timing {number} threads")
                add_times(row, module, inputs, number)
            rows.append({"model": model, **row})
    return rows


def import_program(module: Any, inputs: Sequence[Any]) -> Any:
    """Return the program that a model's group is compiled from, without compiling it."""
    import torch

    import torchmdla
    from torchmdla.compile_service import service
    from torchmdla.errors import CompileError

    programs = []

    def refuse(program: Any) -> None:
        programs.append(program)
        raise CompileError("only its schedules are wanted")

    with mock.patch.object(service, "compile_program", refuse):
        torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
    # Parts of the group follow, which torchmdla tries in place of the whole.
    return programs[0]


def partition(program: Any, threads: int) -> Row:
    """Return the partition of each kernel of a program between threads."""
    from torch_mlir import ir

    from torchmdla.compiler.mlir import new_context
    from torchmdla.devices.cpu.codegen.entry.waits import find_waits, is_shareable
    from torchmdla.devices.cpu.lowering import plan_program
    from torchmdla.devices.cpu.schedule.scaling import scaling_of
    from torchmdla.devices.cpu.target.machine import Machine

    with new_context(), ir.Location.unknown():
        steps, plan = plan_program(program, {})
    waits = find_waits(steps, plan) if is_shareable(steps, plan) else []
    scaling = scaling_of(steps, plan, Machine.of(program.target, program.options), threads, waits)
    work = sum(kernel.cycles for kernel in scaling.kernels)
    kernels = [
        {
            "kind": kernel.kind,
            "loops": kernel.loops,
            "calls": kernel.calls,
            "part": kernel.cycles / work,
            "blocks": [list(block) for block in kernel.blocks],
            "grain": kernel.grain,
            "tasks": kernel.tasks,
            "imbalance": kernel.imbalance,
            "lost": kernel.cycles / work * kernel.imbalance,
        }
        for kernel in scaling.kernels
    ]
    return {
        "threads": threads,
        "cycles": work,
        "imbalance": scaling.imbalance,
        "serial_share": scaling.serial_share,
        "joins": scaling.joins,
        "barriers": scaling.barriers,
        "waits": scaling.partial_waits,
        "speed_up": scaling.speed_up,
        "kernels": kernels,
    }


def add_times(row: Row, module: Any, inputs: Sequence[Any], threads: int) -> None:
    """Add the time of a call, and that of each kernel in it, to a row."""
    import torch

    import torchmdla

    torch.set_num_threads(threads)
    compiled = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
    explanation = torchmdla.explain(compiled, *inputs)
    row["seconds"] = explanation.seconds
    measured = [kernel for group in explanation.groups for each in group.specialisations for kernel in each.kernels]
    if [kernel.loops for kernel in measured] == [kernel["loops"] for kernel in row["kernels"]]:
        for kernel, times in zip(row["kernels"], measured, strict=True):
            kernel["seconds"] = times.seconds


# --- tables ------------------------------------------------------------------------------------------------------


def show(row: Row, most: int) -> None:
    """Print the kernels of one model that lose the most time on one number of threads."""
    if row["threads"] == 1:
        return
    table = output.table(
        f"{title(row)}: {len(row['kernels'])} kernels",
        ("kernel", "loops", "calls", "of work", "blocks", "grain", "tasks", "imbalance", "lost", "µs"),
    )
    table.columns[1].max_width, table.columns[1].overflow, table.columns[1].no_wrap = 50, "ellipsis", True
    for kernel in sorted(row["kernels"], key=lambda kernel: -kernel["lost"])[:most]:
        blocks = "×".join(str(-(-size // step)) for size, step in kernel["blocks"]) or "1"
        table.add_row(
            kernel["kind"],
            kernel["loops"],
            str(kernel["calls"]),
            percent(kernel["part"]),
            blocks,
            str(kernel["grain"]),
            str(kernel["tasks"]),
            percent(kernel["imbalance"]) if kernel["tasks"] > 1 else "serial",
            percent(kernel["lost"]),
            output.digits(kernel["seconds"] * 1e6) if kernel.get("seconds") else "–",
        )
    output.show(table)


def show_all(rows: Sequence[Row]) -> None:
    table = output.table(
        "how threads share the work of each model",
        ("model", "threads", "Mcycles", "imbalance", "serial", "joins", "barriers", "waits", "speed-up", "ms"),
        "speed-up: by the cost model, with the time of joins, barriers and waits",
    )
    for row in rows:
        table.add_row(
            row["model"],
            str(row["threads"]),
            output.digits(row["cycles"] * 1e-6),
            percent(row["imbalance"]),
            percent(row["serial_share"]) if row["threads"] > 1 else "–",
            str(row["joins"]),
            str(row["barriers"]),
            str(row["waits"]),
            f"{row['speed_up']:.1f}",
            output.digits(row["seconds"] * 1e3) if row.get("seconds") else "–",
        )
    output.show(table)


def percent(part: float) -> str:
    return f"{part * 100:.1f} %"


def title(row: Row) -> str:
    return f"{row['model']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


if __name__ == "__main__":
    sys.exit(main())
