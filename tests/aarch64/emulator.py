"""Programs for AArch64 that are built here and run in an emulator."""

from __future__ import annotations

import fcntl
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from native_models import Exported
from torch import Tensor

from torchmdla.testing.compare import assert_matches

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "aarch64" / "runtime"
SYSTEM = "/usr/aarch64-linux-gnu"

_TOOLS = {"aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}

# Dtypes by their numbers in torchmdla/runtime.h.
_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip


def require_tools() -> None:
    """Skip the test where the cross-compiler or the emulator is missing."""
    if missing := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian packages)")


@lru_cache(maxsize=1)
def build() -> Path:
    """Return the folder of the runtime and of the programs that use it, after they were built."""
    require_tools()
    cmake, ninja = (str(Path(sys.executable).parent / name) for name in ("cmake", "ninja"))
    toolchain = ROOT / "release" / "aarch64-linux-gnu.cmake"
    settings = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    if ccache := shutil.which("ccache"):
        settings.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    configure = [cmake, "-S", str(ROOT / "tests" / "aarch64"), "-B", str(BUILT), "-G", "Ninja", *settings]
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:  # Several processes run tests.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, [cmake, "--build", str(BUILT)]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILT


def run(program: str, *arguments: str | Path, cpu: str = "max") -> subprocess.CompletedProcess[str]:
    """Run a program of :func:`build` on a processor of the emulator."""
    command = ["qemu-aarch64", "-L", SYSTEM, "-cpu", cpu, str(build() / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def output_of(program: str, *arguments: str | Path, cpu: str = "max") -> str:
    done = run(program, *arguments, cpu=cpu)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def check(model: Exported, folder: Path, inputs: Sequence[Tensor] | None = None, threads: int = 2) -> None:
    """Call an exported model in the emulator and compare its results with eager's."""
    arguments = model.inputs if inputs is None else inputs
    results = call(model.path, arguments, folder, threads)
    assert_matches(results, model.expected(arguments), layers=model.layers, strides=False)


def call(path: Path, inputs: Sequence[Tensor], folder: Path, threads: int = 1, cpu: str = "max") -> list[Tensor]:
    """Return the results of a call of a model in the emulator."""
    numbers, written = folder / "inputs", folder / "outputs"
    numbers.write_bytes(b"".join(map(_tensor_bytes, inputs)))
    lines = output_of("run_call", path, str(threads), numbers, written, cpu=cpu).splitlines()
    data, results = bytearray(written.read_bytes()), list[Tensor]()
    for dtype, *sizes in ([int(number) for number in line.split()] for line in lines):
        result = torch.empty(sizes, dtype=_DTYPES[dtype])
        raw = result.reshape(-1).view(torch.uint8)
        raw.copy_(torch.tensor(data[: raw.numel()], dtype=torch.uint8))
        del data[: raw.numel()]
        results.append(result)
    return results


def _tensor_bytes(tensor: Tensor) -> bytes:
    head = struct.pack(f"<{1 + tensor.dim()}q", tensor.dim(), *tensor.shape)
    return head + tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
