"""Compilation of an ONNX model with its weights to the device's binary.

The library's compiler runs in a separate process.
"""

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

from torchmdla.devices.levels.onnx import Port
from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla import runtime_library
from torchmdla.devices.mdla.options import Options
from torchmdla.errors import DeviceError
from torchmdla.support import forks
from torchmdla.support.limits import Limits
from torchmdla.support.sharing import describe_exit

_SCRIPT = Path(__file__).with_name("compile_process.py")

# The maximum number of binaries that a process caches, for models that recur with the same weights.
_MAX_CACHED = 32

# The number of trailing characters of the library's output in an error message.
_TAIL = 2000


@lru_cache(maxsize=1)
def _folder() -> Path:
    """Return the folder of this process's binaries, which is removed when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="torchmdla-mdla-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # A forked child also runs this.
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Cost:
    """Cycles of one inference, as the library reports them.

    The parts are the transfer of inputs to the card, the computation, and the transfer of outputs from the card. 0 if
    the library does not report cycles.
    """

    input: int
    compute: int
    output: int

    def of_stream(self, inferences: int) -> int:
        """Return the cycles of consecutive ``inferences``.

        The card overlaps their stages, except for the first input and the last output.
        """
        longest = max(self.input, self.compute, self.output)
        return self.input + self.compute + self.output + (inferences - 1) * longest


@dataclass(frozen=True)
class Binary:
    """Output of the library's compiler, and its cost."""

    content: bytes
    cost: Cost


_lock = forks.hold_over_fork(threading.RLock())
_binaries: OrderedDict[str, tuple[Path, Cost]] = OrderedDict()


def _reset_binaries() -> None:
    _folder.cache_clear()
    _binaries.clear()  # They belong to the parent, which removes them.


forks.reset_in_child(_reset_binaries)


def compile_binary(
    model: bytes, inputs: Sequence[Port], options: Options, samples: Sequence[Sequence[Array]]
) -> Binary:
    """Compile ``model``, an ONNX file with its weights, with ``ie_compile``.

    ``ie_compile_vfp`` is used if there are ``samples`` (arrays for the model's inputs). Binaries are cached: equal
    models are compiled once in a process, unless too many others follow.

    Raises:
        DeviceError: the library failed, crashed or timed out.
    """
    flags, shapes = options.flags(), shapes_text(inputs)
    key = _key(model, shapes, options.library, flags, samples)
    with _lock:
        cached = _binaries.get(key)
        if cached is not None:
            _binaries.move_to_end(key)
            path, cost = cached
            return Binary(path.read_bytes(), cost)
    with tempfile.TemporaryDirectory(dir=_folder()) as place:
        file, cost = _compile(Path(place), model, shapes, options, samples)
        binary = Binary(file.read_bytes(), cost)
    path = _folder() / key
    path.write_bytes(binary.content)
    with _lock:
        _binaries[key] = path, cost
        while len(_binaries) > _MAX_CACHED:
            _, (oldest, _) = _binaries.popitem(last=False)
            oldest.unlink(missing_ok=True)
    return binary


def shapes_text(inputs: Sequence[Port]) -> str:
    """Return the shapes as text: ``"1x3x224x224;1x8"``."""
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
    """Return the path of the binary in the folder ``place``, and its cost."""
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
    """Run the library's ``function`` for a ``job`` in a separate process, and return the cost."""
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
        ended = describe_exit(done.returncode)
        raise DeviceError(f"{function}: the library's process ended: {ended}" + (f"\n{printed}" if printed else ""))
    reply = json.loads(done.stdout)
    if reply["fault"]:
        raise DeviceError(reply["fault"] + (f"\n{printed}" if printed else ""))
    return Cost(*reply["cost"])


def forget() -> None:
    """Drop the cached binaries."""
    with _lock:
        while _binaries:
            _, (path, _) = _binaries.popitem()
            path.unlink(missing_ok=True)
