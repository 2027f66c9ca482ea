"""Code for processors with fewer features than this machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchmdla
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.processors import target_of
from torchmdla.testing.compare import assert_matches

BYTES = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


def target_or_skip(processor: str) -> Target:
    try:
        return target_of(processor)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("processor", BYTES)
def test_values_are_the_same(processor: str) -> None:
    assert Machine.of(target_or_skip(processor)).vector_bytes == BYTES[processor]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(288, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    torchmdla.enable(processor=processor, strict=True)
    compiled = torchmdla.compile(model, x)
    with torch.no_grad():
        assert_matches(compiled(x), model(x))
    assert torchmdla.stats().specialisations == 1


def test_each_is_another_target() -> None:
    targets = {target_or_skip(name) for name in ("native", "x86-64-v2", "x86-64-v3")}
    assert len(targets) == 3


def test_an_unknown_processor_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"unknown processor 'pentium' \(choose from native, x86-64-v2"):
        torchmdla.enable(processor="pentium")
