"""Files with compiled code for devices of others: packages, saved functions, caches, and models without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of, run_python, run_script
from torch import nn

import torchmdla
from torchmdla import _C, devices
from torchmdla.compile_service import stored_code, versions
from torchmdla.packages import info
from torchmdla.testing.compare import assert_matches

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATH = ":".join(map(str, (EXAMPLES.parent, EXAMPLES / "devices" / "numpy", EXAMPLES / "devices" / "library")))
NUMPY, KERNELS = "numpy_device:NumpyDevice", "kernels_device:KernelsDevice"

# Loads a package and calls it. The arguments are the package, its inputs and results, and the device in use.
READ = """
    import json, sys
    import torch
    import torchmdla
    from torchmdla.testing.compare import assert_matches

    path, calls, device, version = sys.argv[1:]
    torchmdla.enable(device=device)
    if version:
        type(torchmdla.devices.get(device)).version = version
    x, expected = torch.load(calls)
    with torch.no_grad():
        program = torchmdla.load(path)
        for _ in range(3):
            assert_matches(program(x), expected, layers=3)
    stats = torchmdla.stats()
    print(json.dumps([stats.packaged, stats.compiled_calls, stats.recorded_calls, list(stats.refused)]))
"""


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for folder in ("devices/numpy", "devices/library"):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    yield
    _C.set_packages(False)


def save(device: str, folder: Path, **options: Any) -> Path:
    """Write a package of a model for ``device``, and its inputs and results; return the folder's package."""
    torchmdla.enable(device=device)
    model, x = mlp(), torch.randn(2, 8)
    with torch.no_grad(), torchmdla.enabled(False):
        torch.save((x, model(x)), folder / "calls")
    torchmdla.save(model, folder / "model.pt", [x], **options)
    return folder / "model.pt"


def read(package: Path, device: str, version: str = "", **environment: str) -> tuple[int, int, int, list[str], str]:
    """Return packaged groups, compiled and recorded calls, reasons of refusals, and warnings of a reading process."""
    done = run_python(
        READ, str(package), str(package.with_name("calls")), device, version,
        PYTHONPATH=PATH, TORCHMDLA_CACHE_DIR=str(package.with_name("cache")), **environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (*json.loads(done.stdout.splitlines()[-1]), done.stderr)


def test_package_of_a_device_that_python_loads(tmp_path: Path) -> None:
    package = save(NUMPY, tmp_path)
    description = info(package)
    assert description is not None
    features = description.targets[0].features
    assert features[0] == "device=numpy" and [f.partition("=")[0] for f in features[1:]] == [
        "numpy:target", "numpy:version"
    ]  # fmt: skip
    assert read(package, NUMPY)[:4] == (1, 3, 0, [])


def test_package_without_its_device_or_with_another_version(tmp_path: Path) -> None:
    package = save(NUMPY, tmp_path)
    packaged, compiled, _, reasons, warnings = read(package, NUMPY, version="2")
    assert packaged == 0 and compiled > 0
    assert "of device numpy (this process lacks numpy:version=" in reasons[0] and reasons[0] in warnings
    packaged, compiled, _, reasons, _ = read(package, "cpu")
    assert packaged == 0 and compiled > 0
    assert "(this process lacks numpy:target=numpy, numpy:version=" in reasons[0]


def test_package_of_a_device_that_is_not_in_use(tmp_path: Path) -> None:
    package = save(KERNELS, tmp_path)
    library = devices.require(devices.get(KERNELS), devices.LibraryLoading).library
    packaged, _, _, reasons, warnings = read(package, "cpu", TORCHMDLA_DEVICE_LIBRARIES=library)
    assert (packaged, reasons) == (0, [])
    assert "has code for device kernels, and groups are formed for cpu" in warnings


def test_signed_package(tmp_path: Path) -> None:
    from torchmdla.compile_service.signatures import generate_key

    generate_key(str(tmp_path / "release"))
    package = save(NUMPY, tmp_path, sign=tmp_path / "release.pem")
    trusted = {"TORCHMDLA_REQUIRE_SIGNATURE": str(tmp_path / "release.pub.pem")}
    assert read(package, NUMPY, **trusted)[0] == 1
    generate_key(str(tmp_path / "other"))
    trusted = {"TORCHMDLA_REQUIRE_SIGNATURE": str(tmp_path / "other.pub.pem")}
    packaged, _, _, reasons, _ = read(package, NUMPY, **trusted)
    assert packaged == 0 and "key" in reasons[0]


def test_targets_that_a_device_does_not_have() -> None:
    torchmdla.enable(device=NUMPY)
    with pytest.raises(ValueError, match=r"device 'numpy' compiles for this machine only: its target is 'native'"):
        torchmdla.save(mlp(), "absent.pt", [torch.zeros(2, 8)], ["x86-64-v3"])
    with pytest.raises(TypeError, match=r"Python loads the code of device 'numpy'.*LibraryLoading"):
        torchmdla.export_native(mlp(), torch.zeros(2, 8), "absent.tmdla")
    torchmdla.enable(device=KERNELS)
    with pytest.raises(ValueError, match="unknown processor 'z80'"):
        torchmdla.export_native(mlp(), torch.zeros(2, 8), "absent.tmdla", "z80")


def test_functions_and_caches_of_torch_compile(tmp_path: Path) -> None:
    torchmdla.enable(device=NUMPY)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight)

    x, weight = torch.randn(2, 8), torch.randn(8, 4)
    compiled = torch.compile(call, backend="torchmdla", fullgraph=True).aot_compile(((x, weight), {}))
    compiled.save_compiled_function(tmp_path / "call.bin")
    _C.set_packages(True)
    torchmdla.reset_stats()
    with (tmp_path / "call.bin").open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    assert_matches(loaded(x, weight), call(x, weight))
    stats = torchmdla.stats()
    assert stats.packaged > 0 and (stats.compiled_calls, stats.recorded_calls) == (1, 0)
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None and artifacts[1].torchmdla_artifacts


@pytest.mark.sampled(0)
def test_the_example_of_a_library_runs() -> None:
    done = run_script("run.py", folder=EXAMPLES / "devices" / "library", PYTHONPATH=str(EXAMPLES.parent))
    assert done.returncode == 0, done.stderr
    package, groups, native = done.stdout.splitlines()
    assert "avx2 needs device=kernels, kernels:avx2, kernels:format=1" in package or "kernels:other" in package
    assert (groups, native) == ("groups with code of the package: 1", "without PyTorch: as eager")


RUN = """
    import sys
    import numpy as np, torchmdla_runtime
    path, library = sys.argv[1:]
    try:
        if library:
            torchmdla_runtime.load_device(library)
        (y,) = torchmdla_runtime.Model(path)(np.ones((2, 8), np.float32))
        print(y.shape)
    except torchmdla_runtime.ModelError as error:
        print(error)
"""


def run_native(path: Path, library: str, **environment: str) -> str:
    return output_of(RUN, str(path), library, PYTHONPATH=PATH, **environment).strip()


def test_model_without_pytorch_needs_the_library(tmp_path: Path) -> None:
    torchmdla.enable(device=KERNELS)
    path = tmp_path / "model.tmdla"
    torchmdla.export_native(mlp(), torch.zeros(2, 8), path)
    device = devices.require(devices.get(KERNELS), devices.LibraryLoading)
    assert run_native(path, device.library) == "(2, 4)"
    assert run_native(path, "", TORCHMDLA_DEVICE_LIBRARIES=device.library) == "(2, 4)"
    assert "for device kernels, whose library is not loaded (tmdla_load_device" in run_native(path, "")
    assert "the device library does not load" in run_native(path, str(tmp_path / "absent.so"))
    assert "has no function mdla_open_device" in run_native(path, "libm.so.6")


def library_with(folder: Path, old: str, new: str) -> str:
    """Compile the example's library with a change."""
    source = (EXAMPLES / "devices" / "library" / "loader.c").read_text()
    assert old in source
    library = folder / "changed.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        f"-I{EXAMPLES.parent / 'torchmdla' / 'include'}",
        "-x",
        "c",
        "-",
        "-o",
        str(library),
    ]
    subprocess.run(command, input=source.replace(old, new), text=True, check=True)
    return str(library)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('.format = "1"', '.format = "2"', "for device kernels with kernels:format=1, which this one lacks"),
        (".api_version = MDLA_DEVICE_API_VERSION", ".api_version = 9", "is for version 9 of torchmdla/device.h"),
        ('*next++ = "x86-64";', "return NULL;", "the device does not work here"),
        ("if (code->entry) return NULL;", "", "does not load its code: it has no entry"),
    ],
    ids=["format", "version", "refusal", "load"],
)
def test_libraries_that_do_not_fit(old: str, new: str, problem: str, tmp_path: Path) -> None:
    torchmdla.enable(device=KERNELS)
    torchmdla.export_native(mlp(), torch.zeros(2, 8), tmp_path / "model.tmdla")
    assert problem in run_native(tmp_path / "model.tmdla", library_with(tmp_path, old, new))


def test_stored_code_is_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    device = devices.get(NUMPY)
    from torchmdla.compiler.artifact import Artifact, Manifest

    artifact = Artifact(b"[]", Manifest("key", "entry", (), (), 0))
    block = stored_code.stored_code(artifact, device.name)
    assert stored_code._artifact_of(block) == artifact
    with pytest.raises(stored_code.DamagedCode, match="does not match its checksum"):
        stored_code._artifact_of(block[:-1] + b"?")
    monkeypatch.setattr(stored_code, "ABI_VERSION", 99)
    with pytest.raises(stored_code.DamagedCode, match="ABI is version"):
        stored_code._artifact_of(block)


def test_version_of_a_wheel_is_the_same_on_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of a wheel is identified by its recorded hash: the time of its installation differs."""
    package, record = tmp_path / "acme_npu", tmp_path / "acme_npu-1.0.dist-info"
    package.mkdir()
    record.mkdir()
    (package / "__init__.py").write_text("")
    library = package / "libnpu.so"
    library.write_bytes(b"code")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-npu\nVersion: 1.0\n")
    (record / "top_level.txt").write_text("acme_npu\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import acme_npu  # type: ignore[import-not-found]  # noqa: F401

    def version(recorded: str, seconds: int) -> str:
        (record / "RECORD").write_text(f"acme_npu/__init__.py,,\nacme_npu/libnpu.so,{recorded},4\n")
        os.utime(library, (seconds, seconds))
        return versions._version_of.__wrapped__("acme_npu")

    assert version("sha256=one", 1000) == version("sha256=one", 2000) != version("sha256=two", 2000)
    assert version("", 1000) != version("", 2000)
