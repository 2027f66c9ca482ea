"""Tests of the devices of the documents, ``numpy`` and ``tosa`` of examples/devices."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from child_process import run_script

import torchmdla

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
