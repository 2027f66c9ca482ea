"""From an ONNX model with its weights to the device's binary, by the library's compiler in a process of its own."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from torchmdla.devices.mdla import runtime_library
from torchmdla.devices.mdla.device_program import Port
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.weights import Array
from torchmdla.errors import DeviceError
from torchmdla.support import forks
from torchmdla.support.limits import Limits
from torchmdla.support.processes import how_it_ended

_SCRIPT = Path(__file__).with_name("compile_process.py")

# How many binaries a process keeps for models that come again with the same weights.
_MOST_KEPT = 32

# How much of what the library printed a fault tells, in characters.
_TAIL = 2000


@lru_cache(maxsize=1)
def _folder() -> Path:
    """Of this process's binaries; removed at its end."""
    path = Path(tempfile.mkdtemp(prefix="torchmdla-mdla-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # A forked child ends, too.
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Cost:
    """Cycles of one inference, by the library's own count: its inputs to the card, computing, its outputs from the
    card. 0 where the library does not tell."""

    input: int
    compute: int
    output: int

    def of_stream(self, inferences: int) -> int:
        """Of so many, one after the other: what the card does for them overlaps, but for the first input and the last
        output."""
        longest = max(self.input, self.compute, self.output)
        return self.input + self.compute + self.output + (inferences - 1) * longest


@dataclass(frozen=True)
class Binary:
    """What the library's compiler wrote, and what it costs."""

    content: bytes
    cost: Cost


_lock = forks.held(threading.RLock())
_binaries: OrderedDict[str, tuple[Path, Cost]] = OrderedDict()


def _after_fork_in_child() -> None:
    _folder.cache_clear()
    _binaries.clear()  # They are the parent's, and go with it.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def binary_of(model: bytes, inputs: Sequence[Port], options: Options, samples: Sequence[Sequence[Array]]) -> Binary:
    """What ``ie_compile`` makes of ``model``, an ONNX file with its weights; or ``ie_compile_vfp``, with ``samples``
    (arrays for the model's inputs), where there are any.

    Equal models are compiled once in a process, as long as there are not too many others.

    Raises:
        DeviceError: the library has failed, crashed or taken too long.
    """
    flags, shapes = options.flags(), shapes_text(inputs)
    key = _key(model, shapes, options.library, flags, samples)
    with _lock:
        kept = _binaries.get(key)
        if kept is not None:
            _binaries.move_to_end(key)
            path, cost = kept
            return Binary(path.read_bytes(), cost)
    with tempfile.TemporaryDirectory(dir=_folder()) as place:
        made, cost = _compile(Path(place), model, shapes, options, samples)
        binary = Binary(made.read_bytes(), cost)
    path = _folder() / key
    path.write_bytes(binary.content)
    with _lock:
        _binaries[key] = path, cost
        while len(_binaries) > _MOST_KEPT:
            _, (oldest, _) = _binaries.popitem(last=False)
            oldest.unlink(missing_ok=True)
    return binary


def shapes_text(inputs: Sequence[Port]) -> str:
    """``"1x3x224x224;1x8"``."""
    return ";".join("x".join(map(str, port.shape)) for port in inputs)


def _key(
    model: bytes, shapes: str, library: str, flags: Sequence[tuple[str, str]], samples: Sequence[Sequence[Array]]
) -> str:
    digest = hashlib.sha256(json.dumps([shapes, library, flags, len(samples)]).encode())
    digest.update(model)
    for sample in samples:
        for array in sample:
            digest.update(array.tobytes())
    return digest.hexdigest()


def _compile(
    place: Path, model: bytes, shapes: str, options: Options, samples: Sequence[Sequence[Array]]
) -> tuple[Path, Cost]:
    """The binary's file in the folder ``place``, and what it costs."""
    function = "ie_compile_vfp" if samples else "ie_compile"
    onnx_file, binary = place / "model.onnx", place / "model.bin"
    onnx_file.write_bytes(model)
    sample_file = place / "samples.npz"
    if samples:
        flat = [array for sample in samples for array in sample]
        np.savez(sample_file, **{str(number): array for number, array in enumerate(flat)})  # type: ignore[arg-type]
    job = {
        "binding": runtime_library.__file__,
        "library": options.library,
        "flags": options.flags(),
        "model": str(onnx_file),
        "binary": str(binary),
        "shapes": shapes,
        "samples": str(sample_file) if samples else "",
    }
    cost = _run(function, job)
    if not binary.is_file():
        raise DeviceError(f"{function}: the library wrote no binary")
    return binary, cost


def _run(function: str, job: Mapping[str, object]) -> Cost:
    """What the library's ``function`` says, which does a ``job`` in a process of its own.

    Raises:
        DeviceError: it has failed, crashed or taken too long.
    """
    seconds = Limits.from_environment().seconds or None
    try:
        done = subprocess.run(
            [sys.executable, str(_SCRIPT), json.dumps(job)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{function}: the library took more than {seconds:g} seconds") from None
    except OSError as error:
        raise DeviceError(f"{function}: its process cannot be started: {error}") from error
    printed = done.stderr.decode(errors="replace").strip()[-_TAIL:]
    if done.returncode != 0:
        ended = how_it_ended(done.returncode)
        raise DeviceError(f"{function}: the library's process ended: {ended}" + (f"\n{printed}" if printed else ""))
    reply = json.loads(done.stdout)
    if reply["fault"]:
        raise DeviceError(reply["fault"] + (f"\n{printed}" if printed else ""))
    return Cost(*reply["cost"])


def forget() -> None:
    """Drops the binaries that are kept."""
    with _lock:
        while _binaries:
            _, (path, _) = _binaries.popitem()
            path.unlink(missing_ok=True)
