"""Compile time of the cpu device's passes: the number of calls grows linearly with the program."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counting import MOST, calls_of
from test_tile_fusion import all_nests
from torch import Tensor
from torch_mlir import ir
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla.compiler.mlir import new_context
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.lowering import generated_module, loop_program
from torchmdla.testing.compare import assert_matches


def chain(x: Tensor, *factors: Tensor) -> Tensor:
    """Return one chain of elementwise operators, each with its own second input."""
    return functools.reduce(torch.mul, factors, x)


def results(x: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
    """Return results that do not depend on each other."""
    return tuple(x * (k + 0.5) for k in range(len(factors)))


def concatenation(x: Tensor, *factors: Tensor) -> Tensor:
    """Return a concatenation of parts, whose operators repeat with a period."""
    return torch.cat([x * (k % 9 + 0.5) for k in range(len(factors))])


def writes(x: Tensor, *factors: Tensor) -> Tensor:
    """Return rows that are written one after the other."""
    x = x * 2.0
    for k in range(len(factors)):
        x = torch.select_scatter(x, x[k % 4] * 0.5, 0, k % 4)
    return x


def program_of(function: Callable[..., Any], count: int) -> TracedProgram:
    """Return a program of ``count`` operators."""
    return TracedProgram(function, normal(4, 4), *[normal(4)] * count)


def transformed(function: Callable[..., Any], count: int) -> tuple[LoopProgram, int]:
    """Return the steps of a program of ``count`` operators, and the number of calls that compile it."""
    program = program_of(function, count).program()
    steps: list[LoopProgram] = []
    with new_context(), ir.Location.unknown():
        calls = calls_of(lambda: steps.append(loop_program(program, {})[0]))
    return steps[0], calls


@pytest.mark.parametrize("function", [chain, results, concatenation, writes])
@pytest.mark.sampled(1)
def test_passes_call_in_proportion(function: Callable[..., Any]) -> None:
    (_, short), (_, long) = (transformed(function, count) for count in (160, 320))
    assert long <= MOST * short


def test_bodies_are_not_as_long_as_programs() -> None:
    """Check the length of bodies.

    Upstream's fusion copies a body with each operator. LLVM takes minutes for a body of thousands of operators.
    """
    steps, _ = transformed(chain, 500)
    assert max(len(nest.body.expressions) for nest in all_nests(steps)) < 500


@pytest.mark.sampled(0)
def test_entries_load_pointers_again() -> None:
    """Check that pointers are loaded again.

    LLVM takes minutes to allocate registers for a pointer that thousands of calls in a row use.
    """
    program = program_of(concatenation, 700)
    with new_context(), ir.Location.unknown():
        code = str(generated_module(program.program()))
    entry = code[code.index("@mdla_forward") :]
    moved = Counter(re.findall(r"llvm.getelementptr (%\w+)", entry))
    assert moved.total() >= 600
    assert max(moved.values()) <= 600
    program.check()


@pytest.mark.sampled(0)
def test_a_late_index_is_checked() -> None:
    """Check an index out of bounds in a late kernel.

    The status of kernels that check indices is read after calls that load pointers again.
    """
    outputs = ", ".join(f"x * {k}.5" for k in range(600))
    program = torch.jit.CompilationUnit(f"def f(x, index):\n    return {outputs}, x[index] + 1\n").f
    x = torch.randn(4, 3)
    with torch.no_grad():
        for index in (torch.tensor([3, 0]), torch.tensor([1, -4]), torch.tensor([2, 2])):
            assert_matches(program(x, index)[-1], x[index] + 1)
        with pytest.raises(Exception, match="out of"):
            program(x, torch.tensor([4, 0]))
    stats = torchmdla.stats()
    assert stats.compiled_calls > 0 and stats.fallbacks == {"the compiled code reported an error": 1}
