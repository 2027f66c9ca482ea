"""Loop programs as text, and the error messages for invalid steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer, Scalar, Table, TableAccess
from torchmdla.devices.cpu.ir.expressions import accumulator, constant, gather, index, load, operation, reduced, scalar
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoadStep, LoopNest, LoopProgram, TileLoop
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.ir.verifier import verify
from torchmdla.devices.cpu.passes import pipeline
from torchmdla.errors import CompileError

ROW, COLUMN, INNER = AffineExpr((1, 0, 0)), AffineExpr((0, 1, 0)), AffineExpr((0, 0, 1))


def product() -> LoopProgram:
    """Return a program of a matrix product with a bias in its epilogue, then its double."""
    left, right = Buffer("input", "f32", (4, 6), 0), Buffer("parameter", "f32", (6, 8), 1)
    bias, result = Buffer("parameter", "f32", (8,), 2), Buffer("result", "f32", (4, 8), 3)
    middle = Buffer("temporary", "f32", (4, 8))
    factors = Access(left, (ROW, INNER)), Access(right, (INNER, COLUMN))
    sum_of_products = operation(
        "arith.addf", [accumulator(0, "f32"), operation("arith.mulf", map(load, factors), "f32")], "f32"
    )
    nest = LoopNest(
        sizes=(4, 8, 6),
        reduction=(False, False, True),
        outputs=(Access(middle, (ROW, COLUMN)),),
        values=(sum_of_products,),
        initial=constant(0.0, "f32"),
        epilogue=Epilogue(
            outputs=(Access(middle, (ROW, COLUMN)),),
            values=(operation("arith.addf", [reduced(0, "f32"), load(Access(bias, (COLUMN,)))], "f32"),),
        ),
    )
    factor = operation("arith.truncf", [scalar(Scalar("f64", 4))], "f32")
    doubled = operation("arith.mulf", [load(Access.identity(middle)), factor], "f32")
    return LoopProgram([nest, LoopNest.elementwise((4, 8), Access.identity(result), doubled)], {})


TEXT = """\
buffer input0 : f32[4, 6]
buffer parameter1 : f32[6, 8]
buffer parameter2 : f32[8]
buffer temporary0 : f32[4, 8]
buffer result3 : f32[4, 8]
entry {
  nest d0:4 d1:8 d2:6+ {
    i0 = input0[d0, d2]
    i1 = parameter1[d2, d1]
    o0 = from 0.0 : f32
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    yield v1 as temporary0[d0, d1]
  } then {
    i0 = parameter2[d1]
    v0 : f32 = arith.addf o0, i0
    temporary0[d0, d1] = v0
  }
  nest d0:4 d1:8 {
    i0 = temporary0[d0, d1]
    c0 = argument4
    v0 : f32 = arith.truncf c0
    v1 : f32 = arith.mulf i0, v0
    result3[d0, d1] = v1
  }
}
"""


def test_steps_are_printed() -> None:
    assert program_text(product()) == TEXT


def test_valid_steps() -> None:
    verify(product(), "a pass")


def change_nest(number: int, **fields: object) -> Callable[[LoopProgram], None]:
    """Return a change of fields of a nest."""

    def change(steps: LoopProgram) -> None:
        for name, value in fields.items():
            setattr(steps.nests()[number], name, value)

    return change


def _store_reduced(steps: LoopProgram) -> None:
    nest = steps.nests()[0]
    assert nest.epilogue
    outputs = (replace(nest.epilogue.outputs[0], indices=(ROW, INNER)),)
    nest.epilogue = replace(nest.epilogue, outputs=outputs)


def _flatten_buffer(steps: LoopProgram) -> None:
    steps.nests()[1].outputs[0].buffer.sizes = (32,)


def _chain_of_other_tiles(steps: LoopProgram) -> None:
    steps.steps = [TileLoop((*steps.nests(),), ((0,), (0,)), (4,), (2,), ())]


def _load_without_strides(steps: LoopProgram) -> None:
    scalar, result = Scalar("i64", 5), steps.nests()[1].outputs[0].buffer
    steps.steps.append(LoadStep(Scalar("f32"), result, 0, (scalar,), ()))


TABLE = TableAccess(Buffer("input", "f32", (48,), 0, fixed=True), Table("f32", (6, 8), (8, 1)), 0)
LOST_INDEX = operation("arith.sitofp", [index(2)], "f32")
INPUT = Access.identity(Buffer("input", "f32", (4, 8), 0))
BROKEN: dict[str, Callable[[LoopProgram], None]] = {
    "reads what is not yet written": lambda steps: steps.steps.reverse(),
    "writes to what is given": change_nest(1, outputs=(INPUT,)),
    "has an epilogue, but no initial value": change_nest(0, initial=None),
    "stores results at the index of a loop that reduces": _store_reduced,
    "computes other values than its outputs": change_nest(1, values=()),
    "carries a value, but has no loop that reduces": change_nest(1, values=(accumulator(0, "f32"),)),
    "uses a reduction that it does not have": change_nest(0, values=(accumulator(9, "f32"),)),
    "specifies the reduction of other loops": change_nest(1, sizes=(32,)),
    "has an index over other loops than its own": change_nest(1, sizes=(32,), reduction=(False,)),
    "has 2 indices into a buffer of 1 dimensions": _flatten_buffer,
    "uses the index of a loop that it does not have": change_nest(
        1, values=(operation("arith.sitofp", [index(2)], "f32"),)
    ),
    "looks up at other indices than a table has": change_nest(1, values=(gather(TABLE, [index(0)]),)),
    "has a member that is not over one tile": _chain_of_other_tiles,
    "has other indices than strides": _load_without_strides,
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_pass_is_named(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("module {}", (), (), devices.get("cpu").target())
    broken = pipeline.Pass("broken-pass", lambda steps, _: BROKEN[message](steps))
    monkeypatch.setenv("TORCHMDLA_VERIFY", "1")
    with pytest.raises(CompileError, match=f"after broken-pass a step {message}") as caught:
        pipeline.run(broken, product(), program.target)
    assert caught.value.diagnostic
    monkeypatch.setenv("TORCHMDLA_VERIFY", "0")
    pipeline.run(broken, product(), program.target)
