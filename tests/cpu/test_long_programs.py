"""Compile time of the cpu device's passes: the number of calls grows linearly with the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from counting import MOST, calls_of
from nest_running import host_target
from test_tile_fusion import all_nests
from torch_mlir import ir
from written_programs import Builder, Value, check, normal

import torchmdla
from torchmdla.compiler.mlir import new_context
from torchmdla.devices.cpu.loop_program import LoopProgram
from torchmdla.devices.cpu.lowering import generated_module, loop_program
from torchmdla.testing.compare import assert_matches


def chain(b: Builder, count: int) -> list[Value]:
    """Build one chain of elementwise operators, each with its own second input."""
    x = b.input(normal(4, 4))
    for _ in range(count):
        y = b.input(normal(4))
        x = b.op("aten.mul.Tensor", [x, y], x.tensor * y.tensor)
    return [x]


def results(b: Builder, count: int) -> list[Value]:
    """Build results that do not depend on each other."""
    x = b.input(normal(4, 4))
    return [b.op("aten.mul.Scalar", [x, k + 0.5], x.tensor * (k + 0.5)) for k in range(count)]


def concatenation(b: Builder, count: int) -> list[Value]:
    """Build a concatenation of ``count`` parts, whose operators repeat with a period."""
    x = b.input(normal(4, 4))
    parts = [b.op("aten.mul.Scalar", [x, k % 9 + 0.5], x.tensor * (k % 9 + 0.5)) for k in range(count)]
    return [b.op("aten.cat", [parts, 0], torch.cat([part.tensor for part in parts]))]


def writes(b: Builder, count: int) -> list[Value]:
    """Build rows that are written one after the other."""
    x = b.input(normal(4, 4))
    y = b.op("aten.mul.Scalar", [x, 2.0], x.tensor * 2.0)
    for k in range(count):
        row = b.op("aten.select.int", [y, 0, k % 4], y.tensor[k % 4])
        changed = b.op("aten.mul.Scalar", [row, 0.5], row.tensor * 0.5)
        y = b.op("aten.select_scatter", [y, changed, 0, k % 4], y.tensor.select_scatter(changed.tensor, 0, k % 4))
    return [y]


def transformed(function: Callable[[Builder, int], list[Value]], count: int) -> tuple[LoopProgram, int]:
    """Return the steps of a program of ``count`` operators, and the number of calls that compile it."""
    builder = Builder()
    program = builder.program(function(builder, count), host_target())
    steps: list[LoopProgram] = []
    with new_context(), ir.Location.unknown():
        calls = calls_of(lambda: steps.append(loop_program(program, {})[0]))
    return steps[0], calls


@pytest.mark.parametrize("function", [chain, results, concatenation, writes])
@pytest.mark.sampled(1)
def test_passes_call_in_proportion(function: Callable[[Builder, int], list[Value]]) -> None:
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
    builder = Builder()
    parts = concatenation(builder, 700)
    with new_context(), ir.Location.unknown():
        code = str(generated_module(builder.program(parts, host_target())))
    entry = code[code.index("@mdla_forward") :]
    moved = Counter(re.findall(r"llvm.getelementptr (%\w+)", entry))
    assert moved.total() >= 600
    assert max(moved.values()) <= 600
    check(builder, parts)


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
