"""Runs of PyTorch's tests in separate processes, on the CPU and on the device."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEVICE = "acap"

# The time in which a process must import a test file. PyTorch makes tens of thousands of tests of some files.
_IMPORT_SECONDS = 600.0


class NotImportedError(RuntimeError):
    """A test file cannot be imported."""


@dataclass(frozen=True)
class Limits:
    """Limits of the processes: ``seconds`` of one test, and ``memory`` of a process in bytes; 0: no limit."""

    seconds: float
    memory: int


@dataclass(frozen=True)
class Result:
    """Result of one test on one device.

    Attributes:
        file: path of the test file in the folder of tests.
        test: name of the class and of the test, without the device's name.
        device: ``cpu`` or ``acap``.
        status: ``ok``, ``skipped``, ``failed``, ``crash`` or ``time-out``.
        detail: one line about it.
        seconds: wall time.
        trace: the trace of the error.
    """

    file: str
    test: str
    device: str
    status: str
    detail: str = ""
    seconds: float = 0.0
    trace: str = ""


# Function that chooses, from the tests of a file (name → group), those to run.
Choice = Callable[[Mapping[str, str]], Sequence[str]]


def run_tests(folder: Path, file: str, device: str, choose: Choice, limits: Limits) -> Iterator[Result]:
    """Yield the result of each test of a file that ``choose`` returns, on one device.

    The tests run in one process. A new one replaces it after a crash or a time-out.

    Raises:
        NotImportedError: the file cannot be imported.
    """
    left: list[str] | None = None
    while left is None or left:
        with _Child(folder / file, device, limits) as child:
            if left is None:
                left = list(reversed(choose(child.tests)))
            while left:
                name = left.pop()
                answer = child.run(name)
                yield Result(file, name, device, **answer)
                if answer["status"] in ("crash", "time-out"):
                    break


def sample(tests: Mapping[str, str], count: int | None) -> list[str]:
    """Return at most ``count`` tests of each group, in the order of ``tests``; None: all.

    A group has the tests of one operator, module or optimiser in a class, or else of one test function. The names with
    the lowest checksums are chosen.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name, group in tests.items():
        groups[group].append(name)
    chosen = {name for names in groups.values() for name in sorted(names, key=_checksum)[:count]}
    return [name for name in tests if name in chosen]


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())


class _Child:
    """Process of :mod:`torchmdla.testing.pytorch_tests.child`; a context manager that ends it.

    Raises:
        NotImportedError: the file cannot be imported, or not in time.
    """

    def __init__(self, file: Path, device: str, limits: Limits) -> None:
        self._limits = limits
        command = [sys.executable, "-m", f"{__package__}.child", str(file.resolve()), device, str(limits.memory)]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **_environment(file, device)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        answer = self._answer(_IMPORT_SECONDS)
        error = answer.get("detail") if "status" in answer else answer.get("error")
        if error is not None:
            self._end()
            raise NotImportedError(error)
        # test → the group that it is a sample of
        self.tests: Mapping[str, str] = answer

    def run(self, name: str) -> dict[str, Any]:
        """Run one test. Return its status and detail, and unless it crashed or took too long, its trace and seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return self._answer(self._limits.seconds)

    def _answer(self, seconds: float) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], seconds)[0]:
            return {"status": "time-out", "detail": f"not ready after {seconds:g} s"}
        line = stream.readline()
        if not line:
            return {"status": "crash", "detail": _cause_of_death(self._process.wait())}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """End the process and what its tests started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass


def _environment(file: Path, device: str) -> dict[str, str]:
    """Return the variables with which PyTorch makes tests for one device, and which make a run repeatable."""
    path = os.pathsep.join(filter(None, [str(file.resolve().parent), os.environ.get("PYTHONPATH", "")]))
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCHMDLA_CHECK_SPEED": "0"}
    if device == "cpu":
        return {**variables, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
    # PyTorch calls the device "privateuse1" until the first class is set up, and by its own name afterwards.
    names = f"privateuse1,{device}"
    return {**variables, "PYTORCH_TESTING_DEVICE_FOR_CUSTOM": names, "PYTORCH_TESTING_DEVICE_ONLY_FOR": names}


def _cause_of_death(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"the process ended with status {code}"
