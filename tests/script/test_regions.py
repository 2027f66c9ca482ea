"""Parts of a program that PyTorch's interpreter runs keep the program's aliases, writes and groups."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from region_programs import PROGRAMS, Normed
from torch import nn

import torchmdla
from torchmdla.capture.script.module import make_module
from torchmdla.importer.script_program import program_of
from torchmdla.testing.compare import assert_matches


def run(make: type[nn.Module]) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    eager = make()
    return make_module(program_of(torch.jit.script(copy.deepcopy(eager)))), eager


@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_and_aliases_are_eagers(name: str) -> None:
    make, inputs = PROGRAMS[name]
    module, eager = run(make)
    for _ in range(4):
        actual, expected = copy.deepcopy(inputs), copy.deepcopy(inputs)
        assert_matches(module(*actual), eager(*expected))
        for left, right in zip(actual, expected, strict=True):
            if isinstance(left, torch.Tensor):  # lists are copied, as TorchScript does
                assert_matches(left, right)
    assert_matches(module.state_dict(), eager.state_dict())


def test_whole_method_is_one_group() -> None:
    module, eager = run(Normed)
    eager.eval()
    module.eval()
    image = torch.rand(2, 3, 8, 8)
    torchmdla.reset_stats()
    with torch.no_grad():
        for _ in range(4):
            assert_matches(module(image), eager(image), layers=2)
    assert torchmdla.stats().groups == 1
    assert not torchmdla.stats().fallbacks
    assert torchmdla.stats().specialisations == 1


def test_function_is_compiled_for_each_mode() -> None:
    module, eager = run(Normed)
    image = torch.rand(2, 3, 8, 8)
    for mode in (True, False, True):
        module.train(mode)
        eager.train(mode)
        for _ in range(3):
            assert_matches(module(image), eager(image), layers=2)
    assert_matches(module.state_dict(), eager.state_dict())


def test_replaced_parameters_are_read() -> None:
    module, eager = run(Normed)
    image = torch.rand(2, 3, 8, 8)
    for scale in (1.0, 2.0, 3.0):
        weight = nn.Parameter(torch.full((4, 3, 3, 3), scale))
        module.first.weight = weight
        eager.first.weight = weight
        for _ in range(3):
            assert_matches(module(image), eager(image), layers=2)
