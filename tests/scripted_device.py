"""Device for tests: the text of a program specifies its compile, as ``verb argument``.

The compiler processes of the tests import this module, which registers the device ``scripted``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.program import Program, Target
from torchmdla.errors import CompileError
from torchmdla.support import sharing


def scripted_program(text: str) -> Program:
    return Program(text, arguments=(), results=(), target=Target("scripted"))


def scripted_artifact(program: Program, code: bytes) -> Artifact:
    return Artifact(code, Manifest(program.key, "entry", (), (), workspace_bytes=0))


def _echo(text: str) -> bytes:
    return text.encode()


def _fail(argument: str) -> bytes:
    raise CompileError(
        "no such luck", op="aten::add.Tensor", source="model.py:7", diagnostic=f"word for word\n{argument}"
    )


def _bug(argument: str) -> bytes:
    raise KeyError(argument)


def _segfault(_: str) -> bytes:
    print("about to fail", file=sys.stderr, flush=True)
    ctypes.string_at(0)
    raise AssertionError("unreachable")


def _crash(file: str) -> bytes:
    _count(file)
    return _segfault(file)


def _noise(size: str) -> bytes:
    """Write native output on both standard streams, far more than the capacity of a pipe."""
    for descriptor in (1, 2):
        os.write(descriptor, b"n" * int(size))
    return b"quiet"


def _big(size: str) -> bytes:
    return os.urandom(1) * int(size.split()[0])


def _hang(folder: str) -> bytes:
    """Write the process id to ``folder/pid``, then wait for ``folder/go``.

    Hold ``folder/lock`` until the process ends.
    """
    fcntl.flock(os.open(Path(folder, "lock"), os.O_WRONLY | os.O_CREAT, 0o600), fcntl.LOCK_SH)
    Path(folder, "unfinished").write_text(str(os.getpid()))
    os.replace(Path(folder, "unfinished"), Path(folder, "pid"))
    while not Path(folder, "go").exists():
        time.sleep(0.005)
    return b"went"


def _eat(size: str) -> bytes:
    """Allocate memory."""
    return bytes(len(bytearray(int(size))) % 2)


def _count(file: str) -> bytes:
    """Add a line to ``file`` for each compile."""
    with open(file.split()[0], "a") as lines:
        lines.write("compiled\n")
    return b"counted"


def _slowly(argument: str) -> bytes:
    """Run ``slowly SECONDS FILE``: as ``count``, after a delay."""
    seconds, file = argument.split()
    time.sleep(float(seconds))
    return _count(file)


def _share(items: str) -> bytes:
    """Share the given number of items, a few milliseconds each.

    Return for each item the process, its nice value, and the CPUs that it may run on.
    """

    def work(_: int) -> tuple[int, int, list[int]]:
        time.sleep(0.003)
        return os.getpid(), os.nice(0), sorted(os.sched_getaffinity(0))

    return json.dumps(sharing.parallel_map(work, range(int(items.split()[0])))).encode()


def _note(arguments: str) -> bytes:
    """Run ``items file``: share the items, and add a line to the file when one begins (+) and ends (-)."""
    items, file = arguments.split()[:2]
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def work(_: int) -> None:
        os.write(log, b"+\n")
        time.sleep(0.003)
        os.write(log, b"-\n")

    sharing.parallel_map(work, range(int(items)))
    os.close(log)
    return b"noted"


def _wrong(_: str) -> bytes:
    return b""


def _read_stdin(_: str) -> bytes:
    return os.read(0, 1)


def _modules(_: str) -> bytes:
    """Return the loaded modules among those that a compiler process must not load."""
    classes = [f"torch_mlir.dialects._{dialect}_ops_gen" for dialect in ("torch", "linalg", "llvm")]
    present = [name for name in ("torch", "torchmdla._C", *classes) if sys.modules.get(name)]
    try:
        __import__("torch")
    except ImportError:
        return repr(present).encode()
    return b"torch"


_VERBS: dict[str, Callable[[str], bytes]] = {
    "echo": _echo,
    "fail": _fail,
    "bug": _bug,
    "segfault": _segfault,
    "crash": _crash,
    "noise": _noise,
    "big": _big,
    "hang": _hang,
    "eat": _eat,
    "count": _count,
    "slowly": _slowly,
    "share": _share,
    "note": _note,
    "wrong": _wrong,
    "stdin": _read_stdin,
    "modules": _modules,
}


class ScriptedDevice(devices.Device):
    name = "scripted"

    @property
    def ops(self) -> Mapping[str, devices.OpSupport]:
        return {}

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset()

    def target(self) -> Target:
        return Target("scripted")

    def lower(self, program: Program) -> Artifact:
        verb, _, argument = program.mlir.partition(" ")
        code = _VERBS[verb](argument)
        return scripted_artifact(scripted_program("another") if verb == "wrong" else program, code)

    def load(self, artifact: Artifact) -> Any:
        raise NotImplementedError("nothing in the tests of the compiler runs an artifact")


devices.register(ScriptedDevice())
