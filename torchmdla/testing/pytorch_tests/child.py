"""Process that runs the tests of one of PyTorch's test files on one device.

``python -m torchmdla.testing.pytorch_tests.child FILE DEVICE MEMORY`` prints the file's tests as one line of JSON. Then
it reads the name of a test from each line of standard input, runs it, and prints its result as a line of JSON.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchmdla.support.limits import limit_memory

# Parameters by which PyTorch's databases of operators, modules and optimisers make tests.
_SUBJECTS = ("op", "module_info", "optim_info")


def main() -> None:
    """Serve one parent process until it closes standard input."""
    file, device, memory = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    limit_memory(memory)
    # A test file reads the arguments of its own command line when PyTorch's helpers are imported.
    sys.argv = [str(file)]
    try:
        tests = dict(_tests(_import(file, device), device))
    except BaseException as error:
        print(json.dumps({"error": _describe(error)}), file=answers, flush=True)
        return
    print(json.dumps({name: group for name, (_, group) in tests.items()}), file=answers, flush=True)
    for line in sys.stdin:
        case, _ = tests[line.strip()]
        print(json.dumps(_run(case)), file=answers, flush=True)
    # Threads that a test left behind must not keep the process.
    os._exit(0)


def _import(file: Path, device: str) -> ModuleType:
    """Return the test file as a module, with its tests made for ``device`` only."""
    import torch

    torch.set_num_threads(1)
    if device != "cpu":
        import torchmdla

        torchmdla.acap_device()
    sys.path[:0] = [str(file.parent)]
    return importlib.import_module(file.stem)


def _tests(module: ModuleType, device: str) -> Iterator[tuple[str, tuple[unittest.TestCase, str]]]:
    """Yield each test of the device: its name without the device's, the test, and the group that it is a sample of."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    for kind in vars(module).values():
        if not (isinstance(kind, type) and issubclass(kind, DeviceTypeTestBase) and kind.__module__ == module.__name__):
            continue
        # Newer versions of PyTorch classify test classes. Tests of the framework itself are not for accelerators.
        classification = getattr(kind, "hw_classification", None)
        if classification is not None and classification.name != "ACCELERATOR":
            continue
        family = kind.__bases__[1].__name__
        for method in dir(kind):
            if not (method.startswith("test") and callable(getattr(kind, method))):
                continue
            before, _, after = method.rpartition(f"_{device}")
            subject = _subject(getattr(kind, method))
            yield f"{family}.{before}{after}", (kind(method), f"{family}.{subject or before}")


def _subject(test: Any) -> str:
    """Return the name of the operator, module or optimiser that a test is made for; empty for another test."""
    parameter = inspect.signature(test, follow_wrapped=False).parameters.get("param_kwargs")
    known: dict[str, Any] = parameter.default if parameter else {}
    for key in _SUBJECTS:
        if subject := known.get(key):
            return str(getattr(subject, "full_name", getattr(subject, "name", subject)))
    return ""


class _Result(unittest.TestResult):
    """Result of one test: its status, one line about it, and the trace of its first error."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.detail, self.trace = "ok", "", ""

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        """Note an error."""
        if not self.trace:
            self.status, self.detail = "failed", _describe(err[1])
            self.trace = "".join(traceback.format_exception(*err))

    addFailure = addError  # noqa: N815 - unittest's name

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Note the error of a part of the test."""
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Note that the test skips itself."""
        if not self.trace:
            self.status, self.detail = "skipped", reason

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Note a failure that PyTorch expects. It is not a pass."""
        self.status, self.detail = "skipped", "PyTorch expects a failure"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Note that a test passes although PyTorch expects a failure."""
        self.status, self.detail = "failed", "it passes, and PyTorch expects a failure"


def _run(case: unittest.TestCase) -> dict[str, Any]:
    """Return the result of one test. Its class is set up and torn down around it."""
    result, start = _Result(), time.monotonic()
    try:
        unittest.TestSuite([case]).run(result)
    except BaseException as error:
        result.addError(case, (type(error), error, error.__traceback__))
    return {
        "status": result.status,
        "detail": result.detail,
        "trace": result.trace,
        "seconds": round(time.monotonic() - start, 3),
    }


def _describe(error: BaseException) -> str:
    """Return the first line of an error's message behind its class."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


if __name__ == "__main__":
    main()
