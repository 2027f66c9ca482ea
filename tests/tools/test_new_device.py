"""Tests of examples/new_device, the user-defined device of the documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from child_process import run_script

import torchmdla

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "new_device"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(*arguments, folder=EXAMPLE, PYTHONPATH=str(ROOT))


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
def test_it_is_checked_by_the_registry_of_programs() -> None:
    device = "numpy_device:NumpyDevice"
    done = run("-m", "torchmdla.testing", "--device", device, "--filter", "products.linear", "--jobs", "1", "--verbose")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unexpected" in done.stdout


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
