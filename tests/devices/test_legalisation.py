"""The table of operations of the Torch dialect, and the command that finds what a device does not lower."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from child_process import run_script

from torchmdla.__main__ import main
from torchmdla.testing.legalisation import legalise_op, operations_text, short_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "legalisation.md").read_text(encoding="utf-8")

# Operators of each part of the importer: kept, decomposed, views, losses, quantised, in a group of equals.
OPS = """
relu mm softmax.int gelu hardtanh mul.Tensor linear addmm batch_norm conv2d.padding max_pool2d_with_indices squeeze
adaptive_avg_pool2d cross_entropy_loss argmax
"""


@pytest.mark.parametrize("name", OPS.split())
def test_the_page_is_up_to_date(name: str) -> None:
    operations = operations_text(legalise_op(f"aten::{name}"))
    whole, _, others = PAGE.partition("The others become:")
    if operations:
        (line,) = [line for line in others.splitlines() if name in line.partition(" → ")[0].split()]
        assert line.partition(" → ")[2] == operations, "run python -m torchmdla legalise --table docs/legalisation.md"
    else:
        assert name in whole.split()


def test_short_names() -> None:
    assert [*map(short_name, ("aten::mm", "torch.aten.mm", "torchvision::nms"))] == ["mm", "mm", "torchvision::nms"]


def test_unknown_operators_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["legalise", "frobnicate"]) == 2
    assert "operator 'aten::frobnicate' does not have samples" in capsys.readouterr().err


def test_operations_at_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["legalise", "mm", "--level", "tosa"]) == 0
    assert "tosa.matmul" in capsys.readouterr().out
    assert main(["legalise", "atan2", "--level", "tosa"]) == 1
    assert "samples do not compile: no lowering to tosa for this op and these types" in capsys.readouterr().out


@pytest.mark.sampled(0)
def test_what_a_device_does_not_lower() -> None:
    folder = ROOT / "examples" / "devices" / "numpy"

    def run(*ops: str) -> subprocess.CompletedProcess[str]:
        device = "numpy_device:NumpyDevice"
        return run_script("-m", "torchmdla", "legalise", "--device", device, *ops, folder=folder, PYTHONPATH=str(ROOT))

    done = run("relu", "mul.Tensor")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "aten::relu: torch.aten.relu (torch.aten.permute)",
        "aten::mul.Tensor: (torch.aten.mul.Scalar torch.aten.mul.Tensor torch.aten.permute)",
        "    2 of 6 samples do not compile: the device does not have an instruction for torch.aten.mul.Scalar",
    ]
    done = run("erf")
    assert done.returncode == 2
    assert "device 'numpy' does not have the operator 'aten::erf'" in done.stderr
