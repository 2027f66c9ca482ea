"""Parent's side of the process that measures the kernels of one program."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch

from torchmdla.compile_service.lower import Origin
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import Record, TunedKernel
from torchmdla.devices.capabilities import Progress
from torchmdla.errors import CompileError
from torchmdla.support.sharing import describe_exit

_CHILD = Path(__file__).with_name("child.py")

# Extra seconds for a process that starts, or is stuck; most replacements of a crashed process; bytes that are kept of
# its output.
_GRACE = 90.0
_MAX_RESTARTS = 3
_KEPT_OUTPUT_BYTES = 2048


class _ProcessDied(Exception):
    """Error of a process that ended early, while it measured ``kernel``."""

    def __init__(self, kernel: str, diagnostic: str) -> None:
        super().__init__(diagnostic)
        self.kernel = kernel


def measure_kernels(
    program: Program, places: Sequence[float], seconds: float, known: Mapping[str, Record], progress: Progress
) -> Iterator[TunedKernel]:
    """Yield the kernels of :meth:`torchmdla.devices.Tuning.tune`, and again when more is known of one.

    A kernel that ends the process is skipped by the next process.

    Raises:
        CompileError: the program cannot be compiled, or the process ends before any kernel is measured.
    """
    until, done, skip = time.monotonic() + seconds, dict[str, TunedKernel](), list[str]()
    known = dict(known)
    for _ in range(_MAX_RESTARTS):
        left = max(0.0, until - time.monotonic())
        try:
            for kernel in _run(program, places, left, known, skip, progress):
                if kernel.record is not None:
                    known[kernel.kernel] = kernel.record
                if done.get(kernel.kernel) != kernel:
                    done[kernel.kernel] = kernel
                    yield kernel
            return
        except _ProcessDied as death:
            if not death.kernel or death.kernel in skip:
                # The decisions that were found may be the cause, so none of them are kept.
                for kernel in done.values():
                    if kernel.record is not None:
                        yield replace(kernel, record=kernel.record.without_decisions)
                raise CompileError("the tuner's process died", diagnostic=str(death)) from None
            skip.append(death.kernel)


def _run(
    program: Program,
    places: Sequence[float],
    seconds: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Iterator[TunedKernel]:
    request = {
        "path": sys.path,
        "devices": list(map(astuple, Origin.all_of(program))),
        "program": program.to_json(),
        "places": list(places),
        "seconds": seconds,
        "known": [record.to_raw() for record in known.values()],
        "skip": list(skip),
        "threads": torch.get_num_threads(),
    }
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [sys.executable, str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, text=True
        )
        watchdog = threading.Timer(seconds + _GRACE, child.kill)
        watchdog.daemon = True
        watchdog.start()
        under_way = ""
        try:
            assert child.stdin and child.stdout
            with contextlib.suppress(BrokenPipeError), child.stdin as requests:
                requests.write(json.dumps(request))
            for line in child.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "end" in answer:
                    return
                if "error" in answer:
                    raise CompileError(**answer["error"])
                if "step" in answer:
                    kernel = TunedKernel.from_raw(answer["step"])
                    under_way = kernel.kernel
                    progress(kernel, answer["tried"], answer["gain"])
                else:
                    under_way = ""
                    yield TunedKernel.from_raw(answer["kernel"])
            printed.seek(0)
            words = printed.read()[-_KEPT_OUTPUT_BYTES:].decode(errors="replace").strip()
            raise _ProcessDied(under_way, f"{describe_exit(child.wait())}\n{words}".strip())
        finally:
            watchdog.cancel()
            child.kill()
            child.wait()
