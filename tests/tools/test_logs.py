"""Tests of logs by topic, and of kernels in PyTorch's profiler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor

import torchmdla
from torchmdla.support.logs import TOPICS

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(autouse=True)
def no_logs_afterwards() -> Iterator[None]:
    yield
    torchmdla.set_logs()


def twice(x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(x)) + 0.125


def lines(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == f"torchmdla.{topic}"]


def test_each_topic(caplog: pytest.LogCaptureFixture) -> None:
    torchmdla.set_logs(groups=True, compile=True, cache=True, timing=True)
    torchmdla.compile(twice, torch.randn(3, 5))
    torchmdla.compile(twice, torch.randn(3, 5))
    group, again = lines(caplog, "groups")
    assert group == again
    assert "a group for float32[3, 5] of 3 operators (aten::relu, aten::tanh, aten::add.Scalar)" in group.replace(
        "add.Tensor", "add.Scalar"
    )
    assert f"from {__file__}:" in group
    key = group.partition(":")[0]
    (compiled,) = lines(caplog, "compile")
    assert compiled.startswith(f"{key}: compiled for cpu in ")
    assert lines(caplog, "cache") == [f"{key}: stored on disk", f"{key}: found in memory"]
    first, second = lines(caplog, "timing")
    assert "(compiled); when it was compiled: " in first and "linalg" in first
    assert "(memory)" in second


def test_fallbacks(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.relu(x) + 1
        return torch.sum(y > 1, dtype=torch.bool)

    torchmdla.set_logs(fallback=True)
    torchmdla.compile(function, torch.randn(3, 5))
    (line,) = lines(caplog, "fallback")
    assert "aten::sum: " in line and f"(at {__file__}:" in line
    assert not lines(caplog, "groups")


def test_unnamed_topics_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    torchmdla.set_logs(**dict.fromkeys(TOPICS, True))
    torchmdla.set_logs()
    torchmdla.compile(twice, torch.randn(2, 3))
    assert not [record for record in caplog.records if record.name.startswith("torchmdla")]


PROGRAM = """
import torch, torchmdla
torchmdla.compile(lambda x: torch.relu(x) * 2 + 1, torch.randn(3, 4))
"""


@pytest.mark.parametrize(
    ("value", "signs"),
    [
        ("groups,compile", ("torchmdla.groups: ", "torchmdla.compile: ")),
        ("all", ("torchmdla.timing: ", "torchmdla.cache: ")),
        ("nosuch, groups", ("TORCHMDLA_LOGS: unknown topic 'nosuch' (choose from groups, ", "torchmdla.groups: ")),
    ],
)
@pytest.mark.sampled(0)
def test_the_environment_variable(value: str, signs: tuple[str, ...], tmp_path: Path) -> None:
    ran = run_script("-c", PROGRAM, TORCHMDLA_LOGS=value, TORCHMDLA_CACHE_DIR=str(tmp_path))
    assert (ran.returncode, ran.stdout) == (0, "")
    assert all(sign in ran.stderr for sign in signs)
    if "all" not in value:
        assert "torchmdla.cache" not in ran.stderr


def test_handlers_of_the_program_are_used(capsys: Any) -> None:
    """Check that no handler is added, because pytest has already installed handlers."""
    torchmdla.set_logs(groups=True)
    assert not logging.getLogger("torchmdla").handlers


# --- the profiler ----------------------------------------------------------------------------------------------------


def ranges(call: Any) -> dict[str, Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.name: event for event in profile.events()}


def two_kernels(x: Tensor) -> Tensor:
    return torch.softmax(torch.relu(x) @ x.t(), 1)


def test_kernels_are_ranges_on_request() -> None:
    x = torch.randn(40, 30)
    compiled = torchmdla.compile(two_kernels, x)
    (group,) = [name for name in ranges(lambda: compiled(x)) if name.startswith("mdla")]
    with torchmdla.profile_kernels():
        events = ranges(lambda: compiled(x))
    kernels = [event for event in events.values() if event.cpu_parent is not None and event.cpu_parent.name == group]
    assert len(kernels) > 1
    assert any("matmul" in event.name for event in kernels) and any("softmax" in event.name for event in kernels)
    assert sum(event.cpu_time_total for event in kernels) <= events[group].cpu_time_total
    assert [name for name in ranges(lambda: compiled(x)) if name.startswith("mdla")] == [group]


def test_groups_of_a_process_have_names_of_their_own() -> None:
    first = torch.compile(twice, backend="torchmdla")
    second = torch.compile(two_kernels, backend="torchmdla")
    x = torch.randn(6, 5)
    for _ in range(3):
        first(x), second(x)
    names = [name for name in ranges(lambda: (first(x), second(x))) if name.startswith("mdla_")]
    assert len(set(names)) == 2
    assert any(name.startswith("mdla_relu_") and "_softmax_" in name for name in names), names
