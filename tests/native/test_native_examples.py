"""Programs in other languages that use the library: they are built here and compared with eager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from native_models import Exported
from torch import nn

import torchmdla
import torchmdla_runtime
from torchmdla.testing.compare import assert_matches

EXAMPLES = Path(__file__).parents[2] / "examples" / "native"
LIBRARY = Path(torchmdla_runtime.__file__).parent


def tool(*names: str) -> str:
    for name in names:
        if path := shutil.which(name) or shutil.which(name, path=Path.home() / ".cargo" / "bin"):
            return path
    pytest.skip(f"there is no {names[0]}")


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(program: str, model: Exported, folder: Path) -> None:
    """Check that the program prints eager's results, and errors of the library."""
    numbers = folder / "numbers.bin"
    numbers.write_bytes(model.inputs[0].numpy().tobytes())
    printed = torch.tensor([float(line) for line in run(program, str(model.path), str(numbers)).split()])
    assert_matches(printed, model.expected()[0].flatten(), layers=model.layers)
    failed = subprocess.run([program, "missing.tmdla", str(numbers)], capture_output=True, text=True)
    assert failed.returncode == 1 and "missing.tmdla: No such file" in failed.stderr


@pytest.mark.parametrize(
    ("compilers", "source", "standard"),
    [(("cc", "gcc"), "run_model.c", "c99"), (("c++", "g++"), "run_model.cpp", "c++20")],
)
def test_c_and_cpp(compilers: tuple[str, str], source: str, standard: str, mlp: Exported, tmp_path: Path) -> None:
    options = run(sys.executable, "-m", "torchmdla_runtime").split()
    warnings = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    program = str(tmp_path / "run_model")
    run(tool(*compilers), *warnings, str(EXAMPLES / source), *options, "-o", program)
    check(program, mlp, tmp_path)


def test_rust(mlp: Exported, tmp_path: Path) -> None:
    cargo = tool("cargo")
    if subprocess.run([cargo, "--version"], capture_output=True).returncode:
        pytest.skip("cargo has no toolchain")  # a cargo of rustup, if the user has chosen no toolchain
    shutil.copytree(EXAMPLES / "rust", tmp_path / "rust")
    library = run(sys.executable, "-m", "torchmdla_runtime", "--library").strip()
    manifest = str(tmp_path / "rust" / "Cargo.toml")
    run(cargo, "build", "--quiet", "--offline", "--manifest-path", manifest, TORCHMDLA_LIB=library)
    check(str(tmp_path / "rust" / "target" / "debug" / "run_model"), mlp, tmp_path)


class Smoothing(nn.Module):
    """Program with a state that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = torch.tanh(self.layer(x)) + 0.5 * self.state
        return self.state * 2


def build_fortran(folder: Path) -> list[str]:
    sources = [str(EXAMPLES / "fortran" / name) for name in ("torchmdla.f90", "stream.f90")]
    options = run(sys.executable, "-m", "torchmdla_runtime").split()
    program = str(folder / "stream")
    run(tool("gfortran"), "-std=f2018", "-Wall", f"-J{folder}", *sources, *options, "-o", program)
    return [program]


def build_csharp(folder: Path) -> list[str]:
    sources = [str(EXAMPLES / "csharp" / name) for name in ("Torchmdla.cs", "Stream.cs")]
    program = str(folder / "stream.exe")
    run(tool("mcs"), "-unsafe", "-warnaserror", *sources, f"-out:{program}")
    return [tool("mono"), program]


@pytest.mark.parametrize("build", [build_fortran, build_csharp])
def test_streams(build: Callable[[Path], list[str]], tmp_path: Path) -> None:
    program = build(tmp_path)
    chunks = torch.randn(5, 1, 8)
    eager = torch.jit.script(Smoothing().eval())
    model = tmp_path / "model.tmdla"
    torchmdla.export_native(eager, (chunks[0],), model)
    (tmp_path / "numbers.bin").write_bytes(chunks.numpy().tobytes())
    library = run(sys.executable, "-m", "torchmdla_runtime", "--library").strip()
    printed = run(*program, str(model), str(tmp_path / "numbers.bin"), "8", LD_LIBRARY_PATH=library)
    with torch.no_grad(), torchmdla.disable():
        expected = torch.cat([eager(chunk).flatten() for chunk in chunks])
    assert_matches(torch.tensor([float(line) for line in printed.split()]), expected, layers=5)
    failed = subprocess.run(
        [*program, "missing.tmdla", "-", "8"], capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": library}
    )
    assert failed.returncode == 1 and "missing.tmdla: No such file" in failed.stderr
