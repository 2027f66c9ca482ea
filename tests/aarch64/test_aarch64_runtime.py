"""The runtime for AArch64: images, examples, and files for other processors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import emulator
import pytest
import torch
from linked_code import FIRST, SECOND, image_of
from native_models import Exported, export
from torch import nn

from torchmdla.packages.native_file import info_of
from torchmdla.testing.compare import assert_matches


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    emulator.build()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(33, 48), nn.ReLU(), nn.Linear(48, 7))
    path = tmp_path_factory.mktemp("model") / "model.tmdla"
    return export(module, (torch.randn(5, 33),), path, layers=2, target="armv8-a")


@pytest.mark.parametrize("relocations", ["static", "pic"])
@pytest.mark.parametrize("code", ["small", "large"])
@pytest.mark.sampled(0)
def test_images(code: str, relocations: str, tmp_path: Path) -> None:
    image = image_of(FIRST, SECOND, model=code, relocations=relocations, triple="aarch64-unknown-linux-gnu")
    path = tmp_path / "image"
    path.write_bytes(image.to_bytes())
    expected = f"{3 + 5 + 11 + 100 + 1} {4 + 5 + 11 + 100 + 2} 108 no memory\n"
    assert emulator.output_of("run_image", path) == expected


@pytest.mark.parametrize("program", ["run_model_c", "run_model_cpp"])
def test_examples(program: str, model: Exported, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_bytes(model.inputs[0].numpy().tobytes())
    printed = torch.tensor([float(line) for line in emulator.output_of(program, model.path, numbers).split()])
    assert_matches(printed, model.expected()[0].flatten(), layers=model.layers)
    failed = emulator.run(program, "missing.tmdla", numbers)
    assert failed.returncode == 1
    assert "missing.tmdla: No such file" in failed.stderr


def test_processors_without_the_instructions(model: Exported, tmp_path: Path) -> None:
    newer = export(model.module, model.inputs, tmp_path / "newer.tmdla", target="armv8.6-a")
    (described,) = info_of(newer.path).targets
    assert all(feature in described for feature in ("neon", "bf16", "i8mm"))
    failed = emulator.run("run_call", newer.path, "1", "inputs", "outputs", cpu="cortex-a72")
    assert "instructions that this one lacks: bf16, dotprod, i8mm, lse, rdm" in failed.stderr
    assert_matches(
        emulator.call(model.path, model.inputs, tmp_path, cpu="cortex-a72"),
        model.expected(),
        layers=model.layers,
        strides=False,
    )


def test_files_for_other_architectures(model: Exported, tmp_path: Path) -> None:
    native = export(model.module, model.inputs, tmp_path / "native.tmdla", target="x86-64-v2")
    failed = emulator.run("run_call", native.path, "1", "inputs", "outputs")
    assert failed.stderr.startswith("4 the model is for processors with instructions that this one lacks: 64bit")
    with pytest.raises(Exception, match="instructions that this one lacks: fp-armv8, neon"):
        model.load()


def test_it_needs_the_c_library_alone() -> None:
    command = ["aarch64-linux-gnu-readelf", "-dW", str(emulator.build() / "libtorchmdla_runtime.so")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    needed = {line.rpartition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}
