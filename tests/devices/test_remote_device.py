"""The example of a device on another host."""

from __future__ import annotations

from pathlib import Path

import pytest
from child_process import run_script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "devices" / "remote"


@pytest.mark.sampled(0)
def test_model_runs_on_the_run_host_and_goes_on_without_it() -> None:
    done = run_script("run.py", folder=EXAMPLE, PYTHONPATH=str(EXAMPLE.parents[2]))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("run host: as eager, ") and int(first.split()[4]) > 0
    assert (
        second.startswith("without it: as eager; torchmdla: a group runs in PyTorch's interpreter")
        and "run host: " in second
    )
