"""Command ``python -m torchmdla doctor``: check on this machine all components that a compiled call needs."""

from __future__ import annotations

import argparse
import os
import secrets
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from torch import nn

import torchmdla
from torchmdla.cli import Command, argument, report_failure
from torchmdla.compile_service import store as stores
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.records import Records
from torchmdla.compile_service.service import CompilerService
from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.devices import Tuning, get, require
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.errors import CompileError
from torchmdla.report.environment import environment
from torchmdla.report.rendering import new_table
from torchmdla.support import limits


class CheckFailure(Exception):
    """Error: a check failed; the message describes the problem and its fix."""


def _run(options: argparse.Namespace) -> int:
    try:
        torchmdla.enable(processor=options.processor)
        if options.device != "cpu":
            torchmdla.enable(device=options.device)
    except ValueError as error:
        return report_failure(error)
    console, table, is_well = Console(markup=False, highlight=False), Table.grid(padding=(0, 2)), True
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    # Suppress warnings, because a line of the table reports the same.
    with console.status("checking"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, check in CHECKS.items():
            try:
                table.add_row(Text("ok", "green"), name, check())
            except CheckFailure as trouble:
                is_well = False
                table.add_row(Text("no", "red"), name, str(trouble))
    console.print(table)
    if options.calibrate:
        is_well &= _calibrate(console)
    return 0 if is_well else 1


def _calibrate(console: Console) -> bool:
    """Measure the machine's constants and print them. Return whether they are stored."""
    device = get("cpu")
    measured = require(device, Tuning).calibration().values()
    constants = [
        measure()
        for measure in track(measured, "measuring", console=console, transient=True, disable=not console.is_terminal)
    ]
    table = new_table()
    for name in ("constant", "measured", "assumed", "meaning"):
        table.add_column(name)
    for constant in constants:
        table.add_row(constant.name, _number(constant.value), _number(constant.default), constant.meaning)
    console.print(table)
    records = Records(device)
    is_kept = records.calibrate(constants)
    if not is_kept:
        console.print(f"nothing is kept on disk: {records.problem or 'the cache is switched off'}")
    return is_kept


def _number(number: bool | int | float) -> str:
    if isinstance(number, bool):
        return "yes" if number else "no"
    return f"{number:,g}" if isinstance(number, float) else f"{number:,}"


def _versions() -> str:
    facts = environment()
    names = ("torchmdla", "torch", "torch-mlir", "llvmlite", "Python")
    return ", ".join(f"{name} {facts[name]}" for name in names)


# All environment variables that torchmdla reads, including those of the build and the tests.
_VARIABLES = """
CACHE_DIR CACHE_SIZE CHECK_BOUNDS CHECK_SPEED COMPILE_IN_PROCESS COMPILE_MEMORY COMPILE_SECONDS DEVICE_LIBRARIES DUMP
ENABLE LOGS
MDLA_LIBRARY MEMORY PERF_MAP PROCESSOR REQUIRE_SIGNATURE STORE STORE_SECONDS STORE_SECRET STORE_SIGN STORE_TRUST
UNITY_BUILD VERIFY VERIFY_COUNTS
"""
VARIABLES = frozenset(f"TORCHMDLA_{name}" for name in _VARIABLES.split())


def _environment() -> str:
    """Read the variables as torchmdla does, which warns of malformed ones."""
    chosen = sorted(name for name in os.environ if name.startswith("TORCHMDLA_"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DiskCache(), limits.Limits.from_environment()
    wrong = [str(warning.message).removeprefix("torchmdla: ") for warning in caught]
    try:
        limits.variable("TORCHMDLA_MEMORY", limits.size, 0)
    except ValueError as error:
        wrong.append(str(error))
    wrong += [f"{name} is not a variable of torchmdla" for name in chosen if name not in VARIABLES]
    if wrong:
        raise CheckFailure("; ".join(wrong))
    return ", ".join(f"{name}={os.environ[name]}" for name in chosen) or "no variable is set"


def _processor() -> str:
    target = get("cpu").target()
    machine = Machine.of(target)
    description = f"{target.cpu}, vectors of {8 * machine.vector_bytes} bits"
    if machine.vector_bytes == 32:
        description += ": without AVX-512"
    if machine.vector_bytes < 32:
        raise CheckFailure(
            f"{description}: kernels are made for AVX2 and AVX-512; here they may be slower than eager PyTorch's"
        )
    return f"{description}, {'calibrated' if Records(get('cpu')).is_calibrated else 'not calibrated'}"


def _cache() -> str:
    """Check the cache by storing and loading an artifact.

    Write permission of the folder alone does not prove that it works.
    """
    cache, program = DiskCache(), _program()
    problem = cache.info().problem
    if "TORCHMDLA_CACHE_SIZE" in problem:
        raise CheckFailure(f"{problem}: every process compiles anew")
    if cache.limit == 0:
        return "switched off by TORCHMDLA_CACHE_SIZE: every process compiles anew"
    artifact = Artifact(b"", Manifest(program.key, "", program.arguments, program.results, workspace_bytes=0))
    is_kept = cache.store(program.key, artifact) and cache.load(program.key) == artifact
    cache.remove(program.key)
    info = cache.info()
    if not is_kept:
        advice = "every process compiles anew; set TORCHMDLA_CACHE_DIR to a folder of yours"
        raise CheckFailure(f"{info.path}: {info.problem or 'an artifact is not what was kept'}: {advice}")
    return f"{info.path}, {info.entries} artifacts"


def _store() -> str:
    """Check the store by reading an entry, which is written first if possible."""
    if not (url := os.environ.get(stores.URL_VARIABLE)):
        return f"none: {stores.URL_VARIABLE} is not set"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = stores.from_environment()
    if store is None:
        raise CheckFailure("; ".join(str(warning.message).removeprefix("torchmdla: ") for warning in caught))
    # A unique key, because other machines access the store at the same time.
    key = secrets.token_hex(32)
    artifact = Artifact(b"", Manifest(key, "", (), (), workspace_bytes=0))
    is_put = store.put(key, artifact)
    is_there = store.load(key) == artifact
    if is_put:
        store.remove(key)
    counts = store.statistics()
    if problems := [*counts.problems, *counts.refused]:
        raise CheckFailure(f"{url}: {problems[0]}: every machine compiles anew")
    if is_put and not is_there:
        raise CheckFailure(f"{url}: an entry is not what was put there")
    return f"{url}, {store.authentication.description}{'' if store.may_write else '; nothing is put there'}"


def _compiler() -> str:
    service = CompilerService(cache=DiskCache(limit=0), store=None)
    start = time.perf_counter()
    try:
        service.compile(_program())
    except CompileError as error:
        raise CheckFailure(
            f"{error}: nothing is compiled; TORCHMDLA_COMPILE_IN_PROCESS=1 shows where it fails"
        ) from None
    finally:
        service.pool.end(for_good=True)
    place = "in this process" if service.in_process else "in a process of its own"
    return f"a program is compiled {place} in {time.perf_counter() - start:.1f} s, its start included"


def _program() -> Any:
    """Return a program that computes ``relu`` of four numbers."""
    tensor = "!torch.vtensor<[4],f32>"
    text = (
        f"module {{ func.func @forward(%x: {tensor}) -> {tensor} {{\n"
        f"  %y = torch.aten.relu %x : {tensor} -> {tensor}\n  return %y : {tensor} }} }}\n"
    )
    return Program(text, (Argument("input", "float32", (4,)),), (Result("float32", (4,)),), get("cpu").target())


def _self_test() -> str:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    x = torch.randn(2, 3, 8, 8)
    torchmdla.reset_stats()
    with torch.no_grad():
        actual = torchmdla.compile(model, x)(x)
        expected = model(x)
    stats = torchmdla.stats()
    if reasons := [*stats.fallbacks, *stats.left_out]:
        raise CheckFailure(f"a small model is not compiled: {reasons[0]}")
    try:
        torch.testing.assert_close(actual, expected)
    except AssertionError as error:
        raise CheckFailure(f"a small model computes something else than eager: {str(error).splitlines()[0]}") from None
    taken = f"after {stats.compile_seconds:.1f} s in the compiler"
    devices = "".join(
        f"; {name} ran {count.parts} parts of it in all calls, with {count.transfers} transfers of {count.bytes} bytes"
        for name, count in stats.devices.items()
    )
    return f"a small model runs compiled, {taken}, with the results of eager PyTorch{devices}"


CHECKS: Mapping[str, Callable[[], str]] = {
    "versions": _versions,
    "environment": _environment,
    "processor": _processor,
    "cache": _cache,
    "store": _store,
    "compiler": _compiler,
    "self-test": _self_test,
}


COMMAND = Command(
    "doctor",
    "check what compiled calls need: versions, processor, cache, store, compiler, a model",
    _run,
    [
        argument(
            "--processor", default="native", metavar="NAME", help="native (default), x86-64-v2, x86-64-v3 or x86-64-v4"
        ),
        argument("--device", default="cpu", metavar="NAME", help="the device of the model: cpu (default), or npu,cpu"),
        argument(
            "--calibrate", action="store_true", help="measure the machine's constants of the cost model, and keep them"
        ),
    ],
    epilog="""\
examples:
  python -m torchmdla doctor
  python -m torchmdla doctor --processor x86-64-v3     as on a machine without AVX-512
  python -m torchmdla doctor --calibrate               measures what schedules are chosen by

Schedules and algorithms are chosen by costs, some of which are constants of the machine: whether it computes its widest
vectors in halves, how many bytes come from memory in a cycle, the second cache. --calibrate measures these in a few
seconds, on a machine that does nothing else, and keeps them for it. Programs for which something else than was assumed
came out are compiled anew. Calibrate before you tune.

exit status:
  0  all is well
  1  something is not: its line says what to do
  2  the command line is wrong
""",
)
