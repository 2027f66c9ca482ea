"""Runs a job in a process of its own: a crash of native compiler code there is an exception here."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from torchmdla.errors import CompileError
from torchmdla.support.limits import Limits
from torchmdla.support.processes import how_it_ended

_CHILD = Path(__file__).with_name("child.py")

# How much is kept of what a process that dies prints: the assertion comes first, then LLVM's stack trace.
_LAST_WORDS = 4096


def run_job(
    job: str, doing: str, *, shows_output: bool = False, stderr: IO[bytes] | None = None, **arguments: Any
) -> str:
    """The text that a job of ``torchmdla.mlir.jobs`` returns.

    Args:
        doing: what the job is, for the message when the process dies.
        shows_output: what passes print goes to this process's standard output and error. Otherwise it is dropped, and
            is the diagnostic if the process dies.
        stderr: a file that gets the standard error instead.

    Raises:
        CompileError: the job's own, or the process died, or took longer than compiles may.
    """
    limits = Limits.from_environment()
    with tempfile.TemporaryDirectory(prefix="torchmdla-") as folder, tempfile.TemporaryFile() as printed:
        reply = Path(folder, "reply")
        request = {
            "path": sys.path,
            "package": list(sys.modules["torchmdla"].__path__),  # where the extension is, too
            "job": job,
            "reply": str(reply),
            "memory": limits.memory,
            **arguments,
        }
        try:
            child = subprocess.run(
                [sys.executable, str(_CHILD)],
                input=json.dumps(request).encode(),
                stdout=None if shows_output else printed,
                stderr=stderr or (None if shows_output else printed),
                timeout=limits.seconds or None,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"{doing} took more than {limits.seconds:g} seconds") from None
        if child.returncode or not reply.exists():
            printed.seek(0)
            words = printed.read(_LAST_WORDS).decode(errors="replace").strip()
            ending = how_it_ended(child.returncode)
            raise CompileError(f"the compiler process died while {doing}", diagnostic=f"{ending}\n{words}".strip())
        answer = json.loads(reply.read_text())
    if "text" in answer:
        return str(answer["text"])
    raise CompileError(**answer)
