"""Run MLIR's passes in a separate process, because upstream's passes crash on some programs.

``torchmdla.mlir.process`` starts this file as a script, with a JSON request on standard input::

    {"path": sys.path of the parent, "package": its torchmdla.__path__, "memory": the most bytes to use, 0 for no
     limit, "reply": file to write, "job": "lower" | "generate" | "opt", …: its arguments}

The reply is ``{"text": the resulting module}`` or the fields of a ``CompileError``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Python put this file's folder first in the path; its modules must not shadow others.
    del sys.path[0]

import json
import os
import types
from pathlib import Path
from typing import Any


def main() -> None:
    request = json.load(sys.stdin)
    sys.path = request.pop("path")
    _install_bare_package(request.pop("package"))
    from torchmdla.support.limits import limit_memory

    limit_memory(request.pop("memory"))
    reply = request.pop("reply")
    answer = json.dumps(_answer(request.pop("job"), request))
    Path(reply).write_text(answer)


def _install_bare_package(path: list[str]) -> None:
    """Make ``torchmdla.*`` importable without the APIs in both ``__init__.py``, which load torch."""
    for name, folders in {"torchmdla": path, "torchmdla.mlir": [str(Path(__file__).resolve().parent)]}.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = folders


def _answer(job: str, arguments: dict[str, Any]) -> dict[str, str]:
    from torchmdla.compile_service.lower import as_compile_error
    from torchmdla.mlir.jobs import JOBS

    try:
        return {"text": JOBS[job](**arguments)}
    except Exception as error:
        return as_compile_error(error).fields()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Teardown is skipped: MLIR's global destructors take time and save nothing.
    os._exit(0)
