"""Packages in C++ programs without Python: CMake builds the examples with the installed libtorch, and they run."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "examples-cpp"
LIBRARY = Path(_C.__file__).with_name("libtorchmdla.so")

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


def tool(name: str) -> str:
    beside_python = Path(sys.executable).with_name(name)
    return str(beside_python) if beside_python.exists() else name


@pytest.fixture(scope="session")
def programs() -> Path:
    """Build the programs, and return their folder."""
    prefix = subprocess.run([sys.executable, "-m", "torchmdla", "cmake"], capture_output=True, text=True, check=True)
    configure = ["-S", str(ROOT / "examples" / "cpp"), "-B", str(BUILD), f"-DCMAKE_PREFIX_PATH={prefix.stdout.strip()}"]
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of pytest-xdist builds the programs too
        for command in ([tool("cmake"), *configure], [tool("cmake"), "--build", str(BUILD)]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


def run(program: Path, *arguments: str, **environment: str) -> str:
    # The program finds neither Python's interpreter nor programs of this environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCHMDLA_"))}
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, env={**clean, "PATH": "", **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def statistics_in(output: str) -> Any:
    return json.loads(output.splitlines()[-1])


def expected(model: nn.Module, calls: Sequence[Sequence[Tensor]]) -> list[Any]:
    with torch.no_grad(), torchmdla.enabled(False):
        return [model(*inputs) for inputs in calls]


@pytest.mark.parametrize("name", ["resnet18", "bert"])
@pytest.mark.sampled(0)
def test_a_program_in_cpp_computes_as_eager(name: str, programs: Path, tmp_path: Path) -> None:
    spec = MODELS[name].reduced()
    model, inputs = spec.build().eval(), spec.inputs()
    torchmdla.save(model, tmp_path / "model.pt", [inputs])
    torch.save(list(inputs), tmp_path / "inputs")
    out = run(programs / "run", str(tmp_path / "model.pt"), f"@{tmp_path / 'inputs'}", "--save", str(tmp_path / "out"))
    stats = statistics_in(out)
    assert stats["packages"] == {"native": 1} and stats["packaged_specialisations"] and not stats["fallbacks"], out
    (result,) = torch.load(tmp_path / "out")
    assert_matches(result, expected(model, [inputs])[0], layers=spec.layers)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 16)).eval()


@pytest.mark.sampled(0)
def test_eight_threads_with_mixed_shapes(programs: Path, tmp_path: Path) -> None:
    torchmdla.save(perceptron(), tmp_path / "model.pt", [torch.randn(batch, 64) for batch in (2, 5, 9)])
    sizes = [f"{batch}x64" for batch in (2, 3, 5, 8, 13, 21)]
    out = run(programs / "run", str(tmp_path / "model.pt"), *sizes, "--threads", "8", "--calls", "200")
    assert "8 threads: 0 results differ" in out
    stats = statistics_in(out)
    assert stats["packaged_specialisations"] == 3 and not stats["fallbacks"], out


@pytest.mark.sampled(0)
def test_eight_threads_evict_running_programs(programs: Path, tmp_path: Path) -> None:
    torchmdla.save(perceptron(), tmp_path / "model.pt", [torch.randn(batch, 64) for batch in (2, 5)])
    arguments = [str(tmp_path / "model.pt"), "2x64", "5x64", "--threads", "8", "--calls", "200"]
    out = run(programs / "run", *arguments, TORCHMDLA_MEMORY="16K")
    assert "8 threads: 0 results differ" in out
    stats = statistics_in(out)
    assert stats["memory_limit"] == 16 << 10 and stats["over_limit"] and not stats["fallbacks"], out
    # Each is lost only once, since it is needed again immediately.
    assert stats["unpacked"] + stats["evicted"] and stats["packaged_specialisations"] == 2 + stats["evicted"] <= 8, out


@pytest.mark.sampled(0)
def test_calls_without_packaged_code_run_in_the_interpreter_and_are_counted(programs: Path, tmp_path: Path) -> None:
    torchmdla.save(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), tmp_path / "model.pt", [torch.randn(2, 8)])
    out = run(programs / "run", str(tmp_path / "model.pt"), "3x8", "--calls", "4")
    # The first call replaces PyTorch's profiling run, which is not among these.
    ((reason, count),) = statistics_in(out)["fallbacks"].items()
    assert reason == "no package has code for the call, and this process does not have a compiler" and count == 3


@pytest.mark.sampled(0)
def test_switched_off_it_is_pytorch_alone(programs: Path, tmp_path: Path) -> None:
    torchmdla.save(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), tmp_path / "model.pt", [torch.randn(2, 8)])
    out = run(programs / "run", str(tmp_path / "model.pt"), "2x8", TORCHMDLA_ENABLE="0")
    assert statistics_in(out)["groups"] == 0 and not statistics_in(out)["packages"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a package, and the sum of its program's result for ones."""
    path = tmp_path_factory.mktemp("package") / "model.pt"
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    torchmdla.save(model, path, [torch.ones(1, 3, 8, 8)])
    return path, float(expected(model, [[torch.ones(1, 3, 8, 8)]])[0].sum())


# Arguments and environments with which an unchanged server uses the library, or does not.
VARIANTS = {"alone": ([], {}), "preloaded": ([], {"LD_PRELOAD": str(LIBRARY)}), "dlopen": ([str(LIBRARY)], {})}


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.sampled(0)
def test_a_server_that_exists(way: str, programs: Path, package: tuple[Path, float]) -> None:
    arguments, environment = VARIANTS[way]
    path, wanted = package
    # The names that perf would read show whether code of a package was mapped.
    out = run(programs / "plain", str(path), "1x3x8x8", *arguments, TORCHMDLA_PERF_MAP="1", **environment)
    assert abs(float(out) - wanted) < 1e-4


@pytest.mark.sampled(0)
def test_a_server_maps_the_code_of_its_package(programs: Path, package: tuple[Path, float]) -> None:
    path, _ = package
    for way, (arguments, environment) in VARIANTS.items():
        process = subprocess.Popen(
            [str(programs / "plain"), str(path), "1x3x8x8", *arguments],
            env={**environment, "TORCHMDLA_PERF_MAP": "1"},
            stdout=subprocess.PIPE,
        )
        process.communicate()
        names = Path(f"/tmp/perf-{process.pid}.map")
        assert names.exists() == (way != "alone")
        names.unlink(missing_ok=True)


def test_the_library_needs_no_python() -> None:
    needed = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"NEEDED.*\[(.*)\]", needed)
    assert not [name for name in libraries if "python" in name.lower()], libraries
