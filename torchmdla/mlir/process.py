"""Jobs in a separate process. A crash of native compiler code there becomes an exception here."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from torchmdla.errors import CompileError
from torchmdla.support.limits import Limits
from torchmdla.support.sharing import describe_exit

_CHILD = Path(__file__).with_name("child.py")

# Bytes of a crashed process's output that are kept. The assertion comes first, then LLVM's stack trace.
_KEPT_OUTPUT_BYTES = 4096


def run_job(
    job: str, doing: str, *, shows_output: bool = False, stderr: IO[bytes] | None = None, **arguments: Any
) -> str:
    """Run a job of ``torchmdla.mlir.jobs`` and return its text.

    Args:
        job: name of the job.
        doing: description of the job, for the message if the process dies.
        shows_output: whether the output of passes goes to this process's standard output and error. Otherwise it is
            dropped, and becomes the diagnostic if the process dies.
        stderr: file that gets the standard error instead.
        arguments: arguments of the job.

    Raises:
        CompileError: the job raised it, the process died, or it exceeded the time limit of compiles.
    """
    limits = Limits.from_environment()
    with tempfile.TemporaryDirectory(prefix="torchmdla-") as folder, tempfile.TemporaryFile() as printed:
        reply = Path(folder, "reply")
        request = {
            "path": sys.path,
            "package": list(sys.modules["torchmdla"].__path__),  # It includes the extension's path.
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
            words = printed.read(_KEPT_OUTPUT_BYTES).decode(errors="replace").strip()
            ending = describe_exit(child.returncode)
            raise CompileError(f"the compiler process died while {doing}", diagnostic=f"{ending}\n{words}".strip())
        answer = json.loads(reply.read_text())
    if "text" in answer:
        return str(answer["text"])
    raise CompileError(**answer)
