"""Faults inside of the pass over FX graphs: the program stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.capture.fx import graph as fx
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches


class Net(nn.Module):
    """Two groups around an operator that cannot be in a group."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(x)) * 2
        return torch.tanh(torch.special.i0e(y)) + y


def by_compile(module: nn.Module, x: Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="torchmdla")


def by_export(module: nn.Module, x: Tensor) -> Any:
    return torchmdla.compile(torch.export.export(module, (x,)))


@pytest.mark.parametrize("capture", [by_compile, by_export])
@pytest.mark.parametrize("stage", ["normalise", "partition", "_reorder", "_group_name", "make_group"])
def test_a_fault_of_a_stage(stage: str, capture: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    function, calls = getattr(fx, stage), []

    def failing(*arguments: Any, **keywords: Any) -> Any:
        """Fail in the first call, or in the second if the stage has several calls."""
        calls.append(stage)
        if len(calls) == (2 if stage == "make_group" else 1):
            raise IndexError("injected")
        return function(*arguments, **keywords)

    monkeypatch.setattr(fx, stage, failing)
    module, x = Net().eval(), torch.randn(3, 4)
    with torch.no_grad():
        called = capture(module, x)
        for _ in range(3):
            assert_matches(called(x), module(x))
    assert calls
    (reason,) = [reason for reason in torchmdla.stats().ungrouped if "pass that forms groups" in reason]
    assert "IndexError: injected" in reason


def test_strict_mode_raises_on_ungrouped_operators() -> None:
    torchmdla.enable(strict=True)
    with pytest.raises(CompileError, match="i0e"):
        by_export(Net().eval(), torch.randn(3, 4))
