"""Tests of the devices of the documents: ``numpy``, ``tosa`` and the tuner of ``library`` in examples/devices."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from child_process import run_script
from torch import nn

import torchmdla
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.tuning import tune

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "devices"


def run(*arguments: str, example: str = "numpy") -> subprocess.CompletedProcess[str]:
    return run_script(*arguments, folder=EXAMPLES / example, PYTHONPATH=str(ROOT))


@pytest.mark.sampled(0)
def test_the_example_runs_by_every_frontend() -> None:
    done = run("run.py")
    assert done.returncode == 0, done.stderr
    *frontends, fallbacks = done.stdout.splitlines()
    assert [line.split()[0] for line in frontends] == [
        "torch.jit", "torch.compile", "torch.export", "ModuleBuilder", "lazy"
    ]  # fmt: skip
    assert fallbacks == "fallbacks: none"


@pytest.mark.sampled(0)
def test_two_devices_share_programs() -> None:
    done = run("two_devices.py")
    assert done.returncode == 0, done.stderr
    numpy, small, large, training = done.stdout.splitlines()
    assert "numpy" in numpy and "far" not in small.partition(":")[2] and "far" in large.partition(":")[2]
    assert training.endswith("gradients as eager")


@pytest.mark.sampled(0)
def test_the_example_of_tosa_runs_packs_again_for_new_weights() -> None:
    done = run("run.py", example="tosa")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "as eager",
        "as eager with other weights",
        "groups compiled: 1, fallbacks: none",
    ]


@pytest.mark.sampled(0)
def test_its_score(tmp_path: Path) -> None:
    """Check the command of docs/devices.md, its files, and a baseline that the device does not meet."""
    paths = {name: tmp_path / f"score.{name}" for name in ("html", "jsonl", "json")}
    command = ["-m", "torchmdla.testing", "--device", "numpy_device:NumpyDevice", "--quick", "--jobs", "1"]
    command += ["--baseline", str(paths["json"])]
    done = run(*command, "--update-baseline", "--html", str(paths["html"]), "--json", str(paths["jsonl"]))
    assert done.returncode == 0, done.stdout + done.stderr
    line = "score of numpy: 100.0 % (9 of 9 samples of 9 declared operators ran on it and were right)"
    assert done.stdout.splitlines()[-1] == line
    assert line in paths["html"].read_text()
    assert json.loads(paths["jsonl"].read_text().splitlines()[-1])["summary"]["score"] == 100.0

    baseline = json.loads(paths["json"].read_text())
    baseline["right"]["samples.abs.float32:0"] = "aten::abs"
    paths["json"].write_text(json.dumps(baseline))
    done = run(*command, "--filter", "relu")
    assert done.returncode == 1, done.stdout + done.stderr
    regression, counts, _ = done.stdout.splitlines()[-3:]
    assert regression == "regressed: aten::abs: the device does not declare it any more"
    assert counts == "since the baseline: 1 regression, 0 improvements"


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("torchmdla.devices:Nothing", "has no attribute 'Nothing'"),
        ("absent_module:Device", "No module named 'absent_module'"),
        (":Device", "Empty module name"),
        ("os.path:join", "not a subclass"),
        ("collections:OrderedDict", "not a subclass"),
        ("os:environ", "not a subclass"),
    ],
)
def test_a_place_that_has_no_device(place: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"no device '{re.escape(place)}': .*{reason}"):
        torchmdla.enable(device=place)


def save_mlp(folder: Path) -> Path:
    """Write a scripted model with two products, and return its path."""
    torch.manual_seed(0)
    torch.jit.script(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).eval()).save(folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.sampled(0)
def test_a_tuner_chooses_loops(tmp_path: Path) -> None:
    """Check the records of the device's tuner, and that another process compiles with them."""
    command = ["-m", "torchmdla", "tune", str(save_mlp(tmp_path)), "--input", "32x64", "--json", "--seconds", "10"]
    command += ["--device", "kernels_device:KernelsDevice"]
    environment = {"PYTHONPATH": str(ROOT), "TORCHMDLA_CACHE_DIR": str(tmp_path / "cache")}
    done = run_script(*command, folder=EXAMPLES / "library", **environment)
    assert done.returncode == 0, done.stderr
    kernels = {kernel["kernel"]: kernel for kernel in json.loads(done.stdout)["kernels"]}
    assert set(kernels) == {"mm_32x64x128", "mm_32x128x16", "add.Tensor", "relu"}
    assert kernels["relu"]["reason"] == "it has one order of loops"
    records = [kernels[name]["record"] for name in ("mm_32x64x128", "mm_32x128x16")]
    assert all(record["finished"] and record["tried"] == 2 for record in records)
    again = run_script(*command, folder=EXAMPLES / "library", **environment)
    assert {kernel["kernel"]: kernel["record"] for kernel in json.loads(again.stdout)["kernels"]} == {
        name: kernel["record"] for name, kernel in kernels.items()
    }


def test_a_tuner_needs_times_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "library"))
    from kernels_device import KernelsDevice

    class SilentDevice(KernelsDevice):
        name = "silent"

        def lower(self, program: Program) -> Artifact:
            artifact = super().lower(program)
            return replace(artifact, manifest=replace(artifact.manifest, kernels=()))

    torchmdla.devices.register(SilentDevice())
    torchmdla.enable(device="silent")
    x = torch.randn(2, 8)
    compiled = torchmdla.compile(nn.Sequential(nn.Linear(8, 4)).eval(), x)
    with pytest.raises(ValueError, match=r"device 'silent' does not report kernels \(mdla_begin_kernel\)"):
        tune(lambda: compiled(x), 1)
