"""What register tiles and blocks of products are chosen by their costs, and what they fetch ahead."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from nest_running import Kernel, reference, span

from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.nests import Epilogue, Instruction, Nest, Operand
from torchmdla.devices.cpu.panels import panel_width
from torchmdla.devices.cpu.schedule import choose

MACHINE = Machine(64, 32, embeds_broadcasts=True, scales=True)
PANEL = 48


def product(rows: int, columns: int, depth: int, panel: int = PANEL) -> Nest:
    """A product with weights in panels: loops rows, panels, columns of a panel, depth."""
    return Nest(
        sizes=(rows, columns // panel, panel, depth),
        reduction=(False, False, False, True),
        inputs=(Operand("f32", (depth, 0, 0, 1)), Operand("f32", (0, depth * panel, 1, panel))),
        outputs=(Operand("f32", (columns, panel, 1, 0)),),
        scalars=(),
        tables=(),
        body=(Instruction("arith.mulf", (0, 1), "f32"), Instruction("arith.addf", (2, 3), "f32")),
        yields=(4,),
        initial=Instruction("arith.constant", (), "f32", "{value = 0.0 : f32}"),
    )


def with_epilogue(nest: Nest, length: int) -> Nest:
    """The nest with ``length`` instructions between its results and memory."""
    body = tuple(Instruction("math.absf", (k,), "f32") for k in range(length))
    return replace(nest, epilogue=Epilogue((), nest.outputs, (), body, (length,)))


def accumulators(nest: Nest) -> int:
    return math.prod(choose(nest, MACHINE).tiles) // 16


@pytest.mark.parametrize(("rows", "depth"), [(128, 768), (197, 768), (197, 3072), (512, 512)])
def test_an_epilogue_of_one_instruction_changes_no_tile(rows: int, depth: int) -> None:
    plain = product(rows, 768, depth)
    assert choose(with_epilogue(plain, 1), MACHINE).tiles == choose(plain, MACHINE).tiles


@pytest.mark.parametrize("rows", [128, 197])
def test_a_long_epilogue_has_registers(rows: int) -> None:
    plain = product(rows, 3072, 768)
    assert accumulators(plain) >= 24
    assert 12 <= accumulators(with_epilogue(plain, 30)) <= 18


@pytest.mark.parametrize("rows", [64, 127, 128, 197, 512])
@pytest.mark.parametrize("length", [0, 1, 30])
def test_tiles_take_whole_panels(rows: int, length: int) -> None:
    nest = product(rows, 3072, 768)
    schedule = choose(with_epilogue(nest, length) if length else nest, MACHINE)
    assert schedule.tiles[1:3] == (1, PANEL)


@pytest.mark.parametrize(("columns", "width"), [(768, 48), (2048, 32), (64, 64), (32, 32), (16, 16), (80, 16), (10, 0)])
def test_panel_width(columns: int, width: int) -> None:
    assert panel_width(columns, 16) == width


def test_weights_that_no_cache_holds_are_fetched_ahead() -> None:
    schedule = choose(product(197, 3072, 768), MACHINE)
    assert schedule.prefetch is not None
    assert schedule.prefetch.operand == 1
    assert schedule.prefetch.block == 768 * PANEL * 4
    assert schedule.prefetch.parts == -(-197 // schedule.tiles[0])


@pytest.mark.parametrize(
    "nest",
    [
        pytest.param(product(197, 96, 768), id="weights in the second cache"),
        pytest.param(product(4, 3072, 768), id="each weight is used once"),
    ],
)
def test_nothing_else_is_fetched_ahead(nest: Nest) -> None:
    assert choose(nest, MACHINE).prefetch is None


@pytest.mark.parametrize("length", [0, 1, 30])
def test_values(length: int) -> None:
    nest = product(101, 1008, 300)
    nest = with_epilogue(nest, length) if length else nest
    kernel = Kernel(nest)
    assert "llvm.intr.prefetch" in kernel.text
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(span(o, nest.sizes)).astype(np.float32) for o in nest.operands]
    (expected,) = reference(nest, arrays)
    kernel(arrays, tasks=3)
    np.testing.assert_allclose(arrays[-1], expected, rtol=1e-4, atol=1e-4)
