"""``torchmdla.trace_compiles``: phases of compiling, in this process and in compiler processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import torchmdla
from torchmdla.compile_service import service
from torchmdla.support import trace

pytestmark = pytest.mark.usefixtures("without_gradients")


def compiled(number: float) -> None:
    """Compile a program that is different for each ``number``."""
    model = torch.jit.trace(lambda x: torch.relu(x @ x) * number + 1, torch.ones(4, 4), check_trace=False)
    for _ in range(3):
        model(torch.ones(4, 4))


def events_in(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("in_process", [False, True])
def test_every_phase_is_there(tmp_path: Path, in_process: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.default_service(), "in_process", in_process)
    with torchmdla.trace_compiles(tmp_path / "trace.json"):
        compiled(2.5 + in_process)
    events = events_in(tmp_path / "trace.json")
    spans = {event["name"].split(" ")[0]: event for event in events if event["ph"] == "X"}
    whole = ["specialise", "import", "compile", "load"]
    lowering = ["lower", "linalg", "fusion", "schedules", "kernels", "llvm", "object", "merge-epilogues"]
    assert {*whole, *lowering} <= spans.keys()
    inside = spans["specialise"]
    for name in (*whole, *lowering):
        # The clocks of the processes differ slightly.
        assert inside["ts"] - 1e3 <= spans[name]["ts"]
        assert spans[name]["ts"] + spans[name]["dur"] <= inside["ts"] + inside["dur"] + 1e3
    assert {spans[name]["pid"] for name in whole} == {os.getpid()}
    assert ({spans[name]["pid"] for name in lowering} == {os.getpid()}) == in_process
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"program"} | (set() if in_process else {"compiler process"})


def test_a_block_that_fails_is_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), torchmdla.trace_compiles(tmp_path / "trace.json"):
        compiled(4.5 / len([compiled(4.5)]) / 0)
    assert any(event["name"] == "object" for event in events_in(tmp_path / "trace.json"))


def test_recordings_are_independent() -> None:
    with trace.recording() as outer:
        compiled(5.5)
        with trace.recording() as inner:
            compiled(6.5)
    assert [span.name for span in outer].count("object") == 2
    assert [span.name for span in inner].count("object") == 1
    assert not trace.is_on()
    compiled(7.5)
    assert [span.name for span in outer].count("object") == 2


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    ran = False
    with pytest.raises(FileNotFoundError), torchmdla.trace_compiles(tmp_path / "nowhere" / "trace.json"):
        ran = True
    assert not ran
