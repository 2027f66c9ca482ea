"""Bounds conditions: no access of generated code is outside its buffer, for all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dynamic_programs import Traced
from executing import FailedCallError, Loaded
from torch import nn

from torchmdla import devices
from torchmdla.capture.script_subgraph import ScriptSubgraph
from torchmdla.capture.symbolic.dynamic import DynamicProgram, dynamic_program
from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import load
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, RepeatLoop, Step, TileLoop, View
from torchmdla.devices.cpu.passes.bounds import conditions_of_bounds
from torchmdla.errors import CompileError
from torchmdla.importer.interpreter import run_and_record

N = Size.symbol(0)
M = Size.symbol(1)


def copy(size: object, source: Buffer, target: Buffer, factor: int = 1, constant: int = 0) -> LoopNest:
    """Return the nest of ``target[i] = source[factor * i + constant]``."""
    element = load(Access(source, (AffineExpr((factor,), constant),)))
    return LoopNest.elementwise((size,), Access(target, (AffineExpr((1,)),)), element)  # type: ignore[arg-type]


def memory(count: object, kind: str = "temporary") -> Buffer:
    return Buffer(kind, "f32", (count,))  # type: ignore[arg-type]


def repeated(count: int) -> RepeatLoop:
    """Return a loop of three iterations. Each iteration copies four elements of a buffer of ``count`` elements."""
    view = Buffer("view", "f32", (count,))
    return RepeatLoop(3, (copy(4, view, memory(4)),), (View(view, memory(count), 0, 4),))


def conditions(step: Step) -> list[Size]:
    return conditions_of_bounds(LoopProgram([step], {}))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(copy(8, memory(8), memory(8)), id="whole"),
        pytest.param(copy(4, memory(8), memory(4), factor=2, constant=1), id="every second"),
        pytest.param(copy(4, memory(4), memory(4), factor=-1, constant=3), id="mirrored"),
        pytest.param(copy(N, memory(N + 2), memory(N), constant=2), id="any size"),
        pytest.param(copy(N, memory(2 * N * M), memory(M * N), factor=2), id="any sizes"),
        pytest.param(repeated(12), id="repeated"),
    ],
)
def test_inside(step: Step) -> None:
    assert conditions(step) == []


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(copy(9, memory(8), memory(9)), id="read behind"),
        pytest.param(copy(8, memory(8), memory(7)), id="written behind"),
        pytest.param(copy(4, memory(8), memory(4), constant=-1), id="read in front"),
        pytest.param(copy(4, memory(4), memory(4), factor=-1, constant=2), id="mirrored in front"),
        pytest.param(copy(N, memory(N + 1), memory(N), constant=2), id="any size"),
        pytest.param(
            TileLoop((copy(4, memory(12), memory(16)),), ((0,),), (16,), (4,), ()), id="the last tile of a chain"
        ),
        pytest.param(repeated(11), id="the last iteration"),
    ],
)
def test_outside(step: Step) -> None:
    with pytest.raises(CompileError, match="outside of its buffer"):
        conditions(step)


def test_bounds_on_two_sizes_are_conditions() -> None:
    assert conditions(copy(M, memory(N), memory(M), factor=2)) == [N - 2 * M + 1]


def test_how_often_steps_are_repeated_is_a_condition() -> None:
    """Check the condition of a repeat count.

    Some iterations of an unrolled recurrence are separate steps. At smaller sizes there are fewer iterations.
    """
    steps = replace(repeated(12), count=N - 3, views=())
    assert conditions(steps) == [N - 3]
    assert conditions(replace(steps, count=N - 2)) == []


def strided() -> tuple[Traced, DynamicProgram]:
    module = nn.Sequential(nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 2, 36, 8)
    traced = Traced.of(module, [x])
    everything = [x, *traced.weights]
    with torch.no_grad():
        _, record = run_and_record(traced.graph, everything)
    places = [None, None, 0, None] + [None] * sum(weight.dim() for weight in traced.weights)
    device = devices.get("cpu")
    subgraph = ScriptSubgraph(traced.graph)
    return traced, dynamic_program(subgraph, record, range(1, len(everything)), device, places, (36,), False)


def test_sizes_that_contradict_each_other_end_the_call() -> None:
    """Check that a wrong size ends the call. The result size of a strided convolution is a separate symbol."""
    traced, dynamic = strided()
    loaded = Loaded(devices.get("cpu").lower(dynamic.program))
    x = torch.randn(1, 2, 40, 8)
    imported, expected = traced.imported([x])
    (result,) = loaded(imported, traced.graph, [x, *traced.weights], (40, 19))
    torch.testing.assert_close(result, expected[0])
    with pytest.raises(FailedCallError):
        loaded(imported, traced.graph, [x, *traced.weights], (40, 60))


def test_without_its_conditions_each_access_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the same without bounds conditions: only the checked accesses protect memory from wrong sizes."""
    monkeypatch.setenv("TORCHMDLA_CHECK_BOUNDS", "1")
    monkeypatch.setattr(lowering, "conditions_of_bounds", lambda steps: [])
    traced, dynamic = strided()
    loaded = Loaded(devices.get("cpu").lower(dynamic.program))
    # The sizes of the arguments agree with the symbol values.
    arguments = [torch.randn(1, 2, 40, 8), *(weight.detach() for weight in traced.weights)]
    result = torch.empty(1, 8, 60 + 1, 4)
    with pytest.raises(FailedCallError, match=r"internal error: .* at offset"):
        loaded.call(arguments, [result], (40, 60))
