"""Steps as text, and what is said of steps that are not valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.nests import Instruction, constant
from torchmdla.devices.cpu.passes import transforms
from torchmdla.devices.cpu.printer import steps_text
from torchmdla.devices.cpu.steps import Access, Buffer, ChainStep, Ending, Linear, LoadStep, NestStep, Scalar, Steps
from torchmdla.devices.cpu.verifier import verify
from torchmdla.errors import CompileError

ROW, COLUMN, INNER = Linear((1, 0, 0)), Linear((0, 1, 0)), Linear((0, 0, 1))


def product() -> Steps:
    """A product of matrices with a bias in its epilogue, then its double."""
    left, right = Buffer("input", "f32", (4, 6), 0), Buffer("parameter", "f32", (6, 8), 1)
    bias, result = Buffer("parameter", "f32", (8,), 2), Buffer("result", "f32", (4, 8), 3)
    middle = Buffer("temporary", "f32", (4, 8))
    body = (Instruction("arith.mulf", (0, 1), "f32"), Instruction("arith.addf", (2, 3), "f32"))
    ending = Ending(
        inputs=(Access(bias, (COLUMN,)),),
        outputs=(Access(middle, (ROW, COLUMN)),),
        scalars=(),
        body=(Instruction("arith.addf", (0, 1), "f32", "{fastmath = #arith.fastmath<none>}"),),
        yields=(2,),
    )
    nest = NestStep(
        sizes=(4, 8, 6),
        reduction=(False, False, True),
        inputs=(Access(left, (ROW, INNER)), Access(right, (INNER, COLUMN))),
        outputs=(Access(middle, (ROW, COLUMN)),),
        scalars=(),
        tables=(),
        body=body,
        yields=(4,),
        initial=constant("0.000000e+00", "f32"),
        ending=ending,
    )
    twice = NestStep(
        sizes=(4, 8),
        reduction=(False, False),
        inputs=(Access(middle, (Linear((1, 0)), Linear((0, 1)))),),
        outputs=(Access(result, (Linear((1, 0)), Linear((0, 1)))),),
        scalars=(Scalar("f32", 4),),
        tables=(),
        body=(Instruction("arith.mulf", (0, 2), "f32"),),
        yields=(3,),
    )
    return Steps([nest, twice], {})


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
    o0 = from 0.0
    v0 : f32 = arith.mulf i0, i1
    v1 : f32 = arith.addf o0, v0
    yield v1
  } then {
    i0 = parameter2[d1]
    v0 : f32 = arith.addf o0, i0
    temporary0[d0, d1] = v0
  }
  nest d0:4 d1:8 {
    i0 = temporary0[d0, d1]
    c0 = argument4
    v0 : f32 = arith.mulf i0, c0
    result3[d0, d1] = v0
  }
}
"""


def test_steps_are_printed() -> None:
    assert steps_text(product()) == TEXT


def test_valid_steps() -> None:
    verify(product(), "a pass")


def _reorder(steps: Steps) -> None:
    steps.steps.reverse()


def _write_input(steps: Steps) -> None:
    twice = steps.nests()[1]
    twice.outputs = (replace(twice.outputs[0], buffer=Buffer("input", "f32", (4, 8), 0)),)


def _drop_initial(steps: Steps) -> None:
    steps.nests()[0].initial = None


def _store_reduced(steps: Steps) -> None:
    nest = steps.nests()[0]
    assert nest.ending
    outputs = (replace(nest.ending.outputs[0], indices=(ROW, INNER)),)
    nest.ending = replace(nest.ending, outputs=outputs)


def _use_later_value(steps: Steps) -> None:
    steps.nests()[1].body = (Instruction("arith.mulf", (0, 3), "f32"),)


def _yield_nothing(steps: Steps) -> None:
    steps.nests()[1].yields = ()


def _yield_unknown(steps: Steps) -> None:
    steps.nests()[1].yields = (9,)


def _forget_loop(steps: Steps) -> None:
    steps.nests()[1].sizes = (32,)


def _drop_loop(steps: Steps) -> None:
    steps.nests()[1].sizes, steps.nests()[1].reduction = (32,), (False,)


def _flatten_buffer(steps: Steps) -> None:
    steps.nests()[1].outputs[0].buffer.sizes = (32,)


def _use_lost_index(steps: Steps) -> None:
    steps.nests()[1].body = (Instruction("index", (), "i64", payload=2),)


def _use_lost_table(steps: Steps) -> None:
    steps.nests()[1].body = (Instruction("load", (0,), "f32", payload=0),)


def _chain_of_other_tiles(steps: Steps) -> None:
    steps.steps = [ChainStep((*steps.nests(),), ((0,), (0,)), (4,), (2,), ())]


def _load_without_strides(steps: Steps) -> None:
    scalar, result = Scalar("i64", 5), steps.nests()[1].outputs[0].buffer
    steps.steps.append(LoadStep(Scalar("f32"), result, 0, (scalar,), ()))


BROKEN: dict[Callable[[Steps], None], str] = {
    _reorder: "reads what is not yet written",
    _write_input: "writes to what is given",
    _drop_initial: "has an epilogue, but no initial value",
    _store_reduced: "stores results at the index of a loop that reduces",
    _use_later_value: "uses a value before it is computed",
    _yield_nothing: "yields other values than its outputs",
    _yield_unknown: "yields a value that it does not have",
    _forget_loop: "says of other loops whether they reduce",
    _drop_loop: "has an index over other loops than its own",
    _flatten_buffer: "has 2 indices into a buffer of 1 dimensions",
    _use_lost_index: "uses the index of a loop that it does not have",
    _use_lost_table: "loads from a table that it does not have",
    _chain_of_other_tiles: "has a member that is not over one tile",
    _load_without_strides: "has other indices than strides",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda function: function.__name__.strip("_"))
def test_a_broken_pass_is_named(broken: Callable[[Steps], None], monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("module {}", (), (), devices.get("cpu").target())
    monkeypatch.setenv("TORCHMDLA_VERIFY", "1")
    with pytest.raises(CompileError, match=f"after broken-pass a step {BROKEN[broken]}") as caught:
        transforms.run(transforms.Pass("broken-pass", lambda steps, _: broken(steps)), product(), program)
    assert caught.value.diagnostic
    monkeypatch.setenv("TORCHMDLA_VERIFY", "0")
    transforms.run(transforms.Pass("broken-pass", lambda steps, _: broken(steps)), product(), program)
