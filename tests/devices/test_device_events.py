"""Events of devices (``mdla_record_event``) in traces of PyTorch's profiler and in explanations."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of
from torch.profiler import ProfilerActivity, profile

from torchmdla import _C, devices

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def record(stream: str, name: str, begin: int, end: int) -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    function(devices.address_of_call("mdla_record_event"))(stream.encode(), name.encode(), begin, end)


def are_recorded() -> bool:
    return bool(ctypes.CFUNCTYPE(ctypes.c_int32)(devices.address_of_call("mdla_are_events_recorded"))())


def test_nothing_is_recorded_unless_it_is_observed() -> None:
    assert not are_recorded()
    record("npu 0", "lost", 1, 2)
    recording = _C.DeviceEventRecording()
    assert are_recorded()
    assert recording.take() == []
    thread = threading.Thread(target=record, args=("npu 0", "kernel", 3, 5))
    thread.start()
    thread.join()
    assert recording.take() == [("npu 0", "kernel", 3, 5)] and recording.take() == []
    del recording
    assert not are_recorded()


def test_unknown_call() -> None:
    with pytest.raises(ValueError, match="device call 'mdla_nothing' does not exist"):
        devices.address_of_call("mdla_nothing")


def trace_of(path: Path, work: Any) -> list[dict[str, Any]]:
    with profile(activities=[ProfilerActivity.CPU]) as session:
        work()
    session.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_events_are_in_the_trace_in_a_row_for_each_stream(tmp_path: Path) -> None:
    def work() -> None:
        torch.ones(8).add(1)
        now = time.monotonic_ns()
        record("npu 0: compute", "matmul", now - 3_000_000, now - 1_000_000)
        record("npu 0: transfers", "to host", now - 1_000_000, now)
        torch.ones(8).mul(2)

    events = trace_of(tmp_path / "trace.json", work)
    matmul, transfer = (next(e for e in events if e["name"] == name) for name in ("matmul", "to host"))
    assert matmul["pid"] == transfer["pid"] and matmul["tid"] != transfer["tid"]
    assert matmul["dur"] == pytest.approx(2000, abs=1) and transfer["dur"] == pytest.approx(1000, abs=1)
    # The same clock as that of PyTorch's operators, to a fraction of a second.
    assert abs(matmul["ts"] - next(e for e in events if e["name"] == "aten::mul")["ts"]) < 1e6
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[transfer["pid"], transfer["tid"]] == "npu 0: transfers"
    assert not are_recorded()


def test_trace_without_events_is_that_of_pytorch(tmp_path: Path) -> None:
    events = trace_of(tmp_path / "trace.json", lambda: torch.ones(8).add(1))
    assert any(event["name"] == "aten::add" for event in events)
    assert not any(event.get("args", {}).get("name") == "torchmdla" for event in events)


EXPLAIN = """
    import json, torch, torchmdla
    from torch import nn
    from torch.profiler import profile

    torchmdla.enable(device="kernels_device:KernelsDevice")
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval(), torch.randn(2, 8)
    explanation = torchmdla.explain(model, x)
    (work,) = explanation.device_work
    rows = [item.thread for item in explanation.timeline if item.kind == "device"]
    shown = "kernels 0" in str(explanation)
    print(json.dumps([work.stream, work.name, work.calls, work.seconds > 0, sorted(set(rows)), shown]))
    print(json.dumps([operator.op for operator in explanation.outside]))
"""


def test_explanations_have_the_work_of_devices() -> None:
    path = ":".join(map(str, (EXAMPLES.parent, EXAMPLES / "devices" / "library")))
    work, outside = map(json.loads, output_of(EXPLAIN, PYTHONPATH=path).splitlines()[-2:])
    assert work == ["kernels 0", "entry", 1, True, ["kernels 0"], True]
    assert outside == []
