"""Compiler process: it reads programs from standard input and writes artifacts or errors to standard output.

``torchmdla.compile_service.worker`` starts this file as a script, with one argument, a JSON object:

- ``"path"``: ``sys.path`` of the parent
- ``"modules"``: modules to import, which may register devices
- ``"memory"``: the memory limit in bytes, 0 for no limit

The messages to the parent are ``ready`` once, then ``accepted`` for each program when it has been read completely, then
``artifact`` or ``error``. The last message contains the ``spans`` of the compile if the request asks for them. Before
it, ``share`` asks how many processes may work on a number of ``items`` at once, and the parent answers.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # Python put this file's folder first. Its modules must not shadow the standard library's.
    del sys.path[0]

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# A compile creates many objects that live until its end, and little cyclic garbage. The default frequency of garbage
# collection takes a tenth of the time.
_MANY_OBJECTS = 100_000

# Variables for the number of threads of libraries such as NumPy's BLAS. The threads would be idle here, and a process
# that is to be forked must have one thread.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(configuration: dict[str, Any]) -> None:
    # An interrupt at the terminal reaches the whole process group. The parent decides how this process reacts. It
    # started this process with the signal blocked, so that none arrives before this line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    requests, replies = _take_pipes()
    faulthandler.enable()
    gc.set_threshold(_MANY_OBJECTS)
    sys.path = configuration["path"]
    _install_bare_package()

    from torchmdla.support.limits import limit_memory

    limit_memory(configuration["memory"])
    os.environ |= dict.fromkeys(_THREAD_VARIABLES, "1")
    for module in configuration["modules"]:
        importlib.import_module(module)
    _serve(requests, replies)


def _take_pipes() -> tuple[int, int]:
    """Move the pipes away from descriptors 0 and 1, so that output of native code cannot corrupt a message.

    After that, standard output is standard error, which the parent retains for diagnostics.
    """
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def _install_bare_package() -> None:
    """Make ``torchmdla.*`` importable without running ``torchmdla/__init__.py``.

    That file is the user's API. It imports torch and the C++ extension, which takes seconds and hundreds of megabytes,
    and the compiler does not use them. This also enforces the layering: compiler code cannot depend on PyTorch, because
    ``import torch`` raises ModuleNotFoundError here.
    """
    package = types.ModuleType("torchmdla")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["torchmdla"] = package
    sys.modules["torch"] = None  # type: ignore[assignment]


def _serve(requests: int, replies: int) -> None:
    from torchmdla.compile_service.messages import read_message, write_message
    from torchmdla.support import sharing

    sharing.allow(partial(_allot, requests, replies))
    write_message(replies, {"kind": "ready"})
    _warm_up()
    while True:
        request, body = read_message(requests)
        write_message(replies, {"kind": "accepted"})
        if request["nice"] and hasattr(os, "nice"):  # Windows has no niceness.
            os.nice(request["nice"])  # Copies of this process inherit it.
        with _end_with_parent(requests):
            head, answer = _answer(request, body)
        # Flush before the reply, so that the next program's diagnostics do not start with this one's.
        sys.stdout.flush()
        sys.stderr.flush()
        write_message(replies, head, answer)


def _warm_up() -> None:
    """Import the compiler while the parent is still busy with its program, so that the first compile does not wait."""
    with contextlib.suppress(Exception):  # A compile reports the failure, which affects its group alone.
        from torch_mlir._mlir_libs import _mlir

        from torchmdla import devices

        # MLIR imports the classes of all operations of a dialect when Python accesses the first one. This takes a third
        # of a second. The compiler identifies operations by name and does not need the classes.
        _mlir.globals.dialect_search_modules = []
        devices.get(devices.in_use()).warm_up()


@contextlib.contextmanager
def _end_with_parent(requests: int) -> Iterator[None]:
    """End this process as soon as the parent is gone, also during native code.

    The system sends a signal when the pipe changes. While the parent waits for the answer, the only possible change is
    the end of the pipe.
    """
    _end_at_change(requests, True)
    yield
    _end_at_change(requests, False)


def _end_at_change(requests: int, ends: bool) -> None:
    """Set whether a change of the pipe ends this process.

    Raises:
        EOFError: the pipe has changed before.
    """
    if fcntl is None or not hasattr(fcntl, "F_SETSIG"):  # Only Linux supports it.
        return
    flags = fcntl.fcntl(requests, fcntl.F_GETFL)
    fcntl.fcntl(requests, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(requests, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(requests, fcntl.F_SETFL, flags | os.O_ASYNC if ends else flags & ~os.O_ASYNC)
    if ends and select.select([requests], [], [], 0)[0]:
        raise EOFError("the parent is gone")


def _allot(requests: int, replies: int, items: int) -> int:
    """Ask the parent how many processes may work on ``items`` at once, and return its answer."""
    from torchmdla.compile_service.messages import read_message, write_message

    _end_at_change(requests, False)
    write_message(replies, {"kind": "share", "items": items})
    answer, _ = read_message(requests)
    _end_at_change(requests, True)
    processes: int = answer["processes"]
    return processes


def _answer(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    from torchmdla.support import trace

    if not request["trace"]:
        return _compile(request, body)
    with trace.recording() as spans:
        head, answer = _compile(request, body)
    return {**head, "spans": [span.fields() for span in spans]}, answer


def _compile(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    from torchmdla.compile_service.lower import Origin, as_compile_error, lower
    from torchmdla.compiler.program import Program

    folder = request["folder"]
    try:
        for origin in request["devices"]:
            Origin(*origin).register()
        return {"kind": "artifact"}, lower(Program.from_json(body.decode()), folder and Path(folder)).to_bytes()
    except Exception as error:
        return {"kind": "error", **as_compile_error(error).fields()}, b""


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):  # The parent is gone or has closed the pipe.
        main(json.loads(sys.argv[1]))
    # No teardown: the global destructors of MLIR and LLVM take time and have nothing to save.
    os._exit(0)
