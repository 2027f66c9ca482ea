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
from native_programs import Stateful

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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all examples, built by the CMake package."""
    folder = tmp_path_factory.mktemp("examples")
    prefix = run(sys.executable, "-m", "torchmdla_runtime", "--cmake").strip()
    run(tool("cmake"), "-S", str(EXAMPLES), "-B", str(folder), f"-DCMAKE_PREFIX_PATH={prefix}")
    run(tool("cmake"), "--build", str(folder))
    return folder


def test_the_cmake_package(built: Path, mlp: Exported, tmp_path: Path) -> None:
    for program in ("run_model_c", "run_model_cpp"):
        check(str(built / program), mlp, tmp_path)


def test_a_method_in_c(built: Path, counter: Stateful) -> None:
    printed = run(str(built / "call_method_c"), str(counter.path), "1x4").splitlines()
    assert printed[0] == "forward(x: Tensor) -> Tensor" and printed[1].startswith("tensor 1x6, first ")
    assert_matches(torch.tensor([float(printed[1].split()[-1])]), counter.expected(torch.zeros(1, 4)))
    failed = subprocess.run(
        [built / "call_method_c", counter.path, "1x4", "3"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1 and "takes fewer arguments than the 2 of this call" in failed.stderr


def test_a_stream_in_cpp(built: Path, counter: Stateful) -> None:
    """Two threads call sessions of one program, with the same results."""
    samples = torch.randn(5, 4)
    printed = subprocess.run(
        [built / "stream_cpp", counter.path, "4", "0"], input=samples.numpy().tobytes(), capture_output=True, check=True
    ).stdout
    assert_matches(torch.tensor([float(line) for line in printed.split()]), counter.expected(samples))
    raised = subprocess.run(
        [built / "stream_cpp", counter.path, "4", "0"], input=bytes(16 * 6), capture_output=True, check=False
    )
    assert raised.returncode == 1 and raised.stderr == b"builtins.ValueError: it was called 6 times\n"


def test_calls_do_not_allocate(steady: Stateful, tmp_path: Path) -> None:
    """A session has the memory of its calls; all functions of the C library that allocate are counted."""
    options = run(sys.executable, "-m", "torchmdla_runtime").split()
    program, source = str(tmp_path / "stream"), str(EXAMPLES.parents[1] / "benchmarks" / "stream.c")
    run(tool("cc", "gcc"), "-std=gnu99", source, *options, "-lm", "-o", program)
    counted = run(program, str(steady.path), "4", "0", "1000", "4").split()
    assert counted[:2] == ["0", "allocations,"]


def test_rust(mlp: Exported, tmp_path: Path) -> None:
    cargo = tool("cargo")
    if subprocess.run([cargo, "--version"], capture_output=True).returncode:
        pytest.skip("cargo has no toolchain")  # a cargo of rustup, if the user has chosen no toolchain
    shutil.copytree(EXAMPLES / "rust", tmp_path / "rust")
    library = run(sys.executable, "-m", "torchmdla_runtime", "--library").strip()
    manifest = str(tmp_path / "rust" / "Cargo.toml")
    run(cargo, "build", "--quiet", "--offline", "--manifest-path", manifest, TORCHMDLA_LIB=library)
    check(str(tmp_path / "rust" / "target" / "debug" / "run_model"), mlp, tmp_path)


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
def test_streams(build: Callable[[Path], list[str]], counter: Stateful, tmp_path: Path) -> None:
    program = build(tmp_path)
    library = run(sys.executable, "-m", "torchmdla_runtime", "--library").strip()
    samples, numbers = torch.randn(5, 4), tmp_path / "numbers.bin"
    numbers.write_bytes(samples.numpy().tobytes())
    printed = run(*program, str(counter.path), str(numbers), "4", LD_LIBRARY_PATH=library)
    assert_matches(torch.tensor([float(line) for line in printed.split()]), counter.expected(samples))
    numbers.write_bytes(bytes(16 * 6))
    for model, reason in (("missing.tmdla", "missing.tmdla: No such file"), (counter.path, "it was called 6 times")):
        failed = subprocess.run(
            [*program, model, numbers, "4"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": library},
        )
        assert failed.returncode == 1 and reason in failed.stderr
