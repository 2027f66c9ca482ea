"""Functions that run in child processes, so that a measurement does not affect or end the next one.

:func:`run` starts ``python -m harness.children MODULE:FUNCTION TASK`` and waits. The child calls the function with the
task's JSON as keyword arguments. It sends the result as JSON through its original standard output; other output to
standard output goes to standard error instead. :func:`step` reports progress.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

_BENCHMARKS = str(Path(__file__).resolve().parent.parent)
_LOG_TAIL = 3000  # characters

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

_channel: IO[str] | None = None


class ChildFailed(RuntimeError):
    """Error: a child ended without a result. ``step`` is the last step that it reported."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"in step {step!r}: {reason}")
        self.step = step


def run(
    function: str,
    task: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Any:
    """Run ``function``, ``"module:name"`` of this folder, in a child process.

    Args:
        function: has the task as keyword arguments; returns a value that JSON can represent.
        task: keyword arguments that JSON can represent.
        environment: variables to set in addition to those of this process.
        on_step: called with each step that the child reports.

    Raises:
        ChildFailed: the function raised, or the process ended otherwise; the message has the end of its output.
    """
    path = os.pathsep.join(filter(None, (_BENCHMARKS, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "harness.children", function, json.dumps(task)]
    with tempfile.TemporaryFile("w+") as log:
        answer: dict[str, Any] = {}
        last = "start"
        variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                answer = json.loads(line)
                if "step" in answer:
                    last = answer["step"]
                    on_step(last)
        if child.returncode or "result" not in answer:
            log.seek(0)
            raise ChildFailed(last, f"the process ended with status {child.returncode}:\n{log.read()[-_LOG_TAIL:]}")
    return answer["result"]


def step(text: str) -> None:
    """Report the next step to the parent process, if any."""
    if _channel is not None:
        _send(_channel, {"step": text})


def _send(channel: IO[str], message: Mapping[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _answer(function: str, task: str) -> None:
    global _channel
    _channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(task))
    _send(_channel, {"result": result})


if __name__ == "__main__":
    # This file runs as __main__, but :func:`step` must use the channel of the module that others import.
    importlib.import_module("harness.children")._answer(*sys.argv[1:])
