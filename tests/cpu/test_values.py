"""Interpreter of loop programs: it computes eager's values, and passes that change a value are reported by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import hypothesis
import numpy as np
import pytest
import torch
from executing import argument_of
from fuzz import passes
from single_op import graph_of
from test_cpu_ops import COMPUTING
from test_verifier import change_nest

from torchmdla import devices
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.ir.accesses import AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import constant, operation
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.lowering import loop_program_text
from torchmdla.devices.cpu.reference import validation
from torchmdla.devices.cpu.reference.interpreter import CallArguments, InvalidProgram, run
from torchmdla.devices.cpu.target.ops import OPS
from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.importer.interpreter import run_and_record
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.op_samples import SAMPLES


def interpreted(program: Program, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a program, computed by the interpreter."""

    def elements(buffer: Buffer, count: int) -> np.ndarray:
        value = arguments[buffer.position].detach().contiguous().flatten()
        value = value.view(torch.int8) if value.dtype == torch.uint8 else value
        return value.double().numpy() if value.is_floating_point() else value.numpy()

    steps = parse_program(loop_program_text(program))
    outcome = run(steps, CallArguments((), elements, lambda position: float(arguments[position])))
    assert not outcome.fails
    results = []
    for position, result in enumerate(program.results, len(program.arguments)):
        value = torch.from_numpy(outcome.results.get(position, np.zeros(0)).copy())
        value = value.view(torch.uint8) if result.dtype == "uint8" else value
        results.append(value.to(getattr(torch, result.dtype)).reshape(result.shape))
    return results


# Its results are float64 numbers that were rounded to float32 before, which the interpreter does not do.
ROUNDED = {"quantized_decomposed::choose_qparams.tensor"}


@pytest.mark.parametrize("name", [name for name in COMPUTING if name not in ROUNDED])
@pytest.mark.sampled(30)
def test_the_interpreter_matches_eager(name: str) -> None:
    for arguments in SAMPLES[name]:
        graph, inputs = graph_of(name, arguments, copy=OPS[name].kind == "view")
        expected, record = run_and_record(graph, inputs)
        imported = import_graph(graph, record, ())
        program = Program(imported.mlir, imported.arguments, imported.results, devices.get("cpu").target())
        operands = [argument_of(binding, graph, inputs) for binding in imported.bindings]
        results = interpreted(program, operands)
        for output, wanted in zip(imported.outputs, expected, strict=True):
            if output.source == "result":
                assert_matches(results[output.index].permute(output.permutation), wanted)


PADDED = """
buffer input0 : i32[3]
buffer parameter1 : f32[8, 2]
buffer temporary0 : f32[5]
buffer temporary1 : i32[3]
buffer result2 : f32[5]
buffer result3 : i32[3]
buffer result4 : f32[3, 2]
entry {
  nest d0:5 {
    temporary0[d0] = -1.0
  }
  nest d0:3 {
    i0 = input0[d0]
    v0 : f32 = arith.sitofp i0
    temporary0[d0 + 1] = v0
  }
  nest d0:5 {
    i0 = temporary0[d0]
    v0 : f32 = arith.mulf i0, 0.5
    v1 : f32 = arith.subf v0, i0
    result2[d0] = v1
  }
  nest d0:3 {
    i0 = input0[d0]
    v0 : i32 = arith.addi i0, 1
    temporary1[d0] = v0
  }
  nest d0:3 {
    i0 = temporary1[d0]
    v0 : i32 = arith.muli i0, i0
    result3[d0] = v0
  }
  nest d0:3 d1:2 {
    i0 = input0[d0]
    t0 = table parameter1 [8, 2] strides [2, 1] offset 0
    v0 : f32 = gather t0, d0, d1
    v1 : i1 = arith.cmpi i0, 0 : i32 {predicate = 5 : i64}
    check v1
    result4[d0, d1] = v0
  }
}
"""


def _drop(number: int) -> Callable[[LoopProgram], None]:
    return lambda steps: steps.steps.pop(number)


def _swap_difference(steps: LoopProgram) -> None:
    step = steps.nests()[2]
    (value,) = step.values
    step.values = (operation(value.op, value.operands[::-1], value.type),)


def _shift_reads(steps: LoopProgram) -> None:
    step = steps.nests()[2]
    (read,) = step.inputs
    step.replace_load(read, replace(read, indices=(replace(read.indices[0], constant=1),)))


def _add_one_less(steps: LoopProgram) -> None:
    steps.nests()[4].values = steps.nests()[3].values


def _shift_in_place(steps: LoopProgram) -> None:
    step = steps.nests()[3]
    step.replace_load(step.inputs[0], replace(step.outputs[0], indices=(AffineExpr((-1,), 2),)))


def _write_one_place(steps: LoopProgram) -> None:
    step = steps.nests()[3]
    step.outputs = (step.outputs[0].at_iteration(0, 1),)


def _write_over_what_others_read(steps: LoopProgram) -> None:
    """Let two steps write to one buffer, as a wrong reuse of memory would."""
    padded, halves = steps.nests()[1], steps.nests()[2]
    halves.outputs = (replace(halves.outputs[0], buffer=padded.outputs[0].buffer),)
    steps.steps.append(replace(halves, outputs=(replace(halves.outputs[0], buffer=Buffer("result", "f32", (5,), 2)),)))


WRONG: dict[str, tuple[Callable[[LoopProgram], object], str]] = {
    "swapped operands": (_swap_difference, "changes what result2 holds: element 0 is -0.5 instead of 0.5"),
    "no border": (_drop(0), "changes what result2 holds: element 0 is nan instead of 0.5"),
    "other elements": (_shift_reads, "elements 1 to 5 of a temporary buffer of 5 are touched"),
    "other integers": (_add_one_less, "changes what result3 holds: .* of positive numbers"),
    "a part": (change_nest(4, sizes=(2,)), "changes what result3 holds: element 2 is 90 instead of"),
    "no result": (_drop(-1), "changes what result4 is"),
    "no check": (
        change_nest(5, checks=()),
        "changes what is checked: a call does not fail that did, of special values",
    ),
    "a shift in place": (_shift_in_place, "makes a program that is not valid: an iteration reads what another writes"),
    "one place": (_write_one_place, "makes a program that is not valid: two iterations write one element"),
    "memory of others": (_write_over_what_others_read, "changes what result2 holds"),
}


def checked(text: str, rewrite: Callable[[LoopProgram], object], *, is_exact: bool = True) -> None:
    steps = parse_program(text)
    check = validation.Check(steps)
    rewrite(steps)
    check.finish("a-pass", steps, is_exact)


@pytest.fixture(autouse=True)
def _uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude deliberate faults from the counts."""
    monkeypatch.delenv(validation.COUNTS, raising=False)


@pytest.mark.parametrize("name", WRONG)
def test_a_pass_that_changes_a_value_is_named(name: str) -> None:
    rewrite, message = WRONG[name]
    with pytest.raises(CompileError, match=f"internal error: a-pass .*{message}") as caught:
        checked(PADDED, rewrite)
    assert name != "swapped operands" or "result2[d0] = v1" in caught.value.diagnostic


def test_a_pass_that_changes_nothing_passes() -> None:
    checked(PADDED, lambda steps: None)
    checked(PADDED, lambda steps: steps.steps.insert(0, steps.steps.pop(3)))


TILES = """
buffer input0 : f32[6, 4]
buffer temporary0 : f32[6]
buffer local0 : f32[2, 4]
buffer result1 : f32[6, 4]
entry {{
  tiles 6 by 2 in local0 {{
    along d0
    nest d0:2 d1:4 {{
      i0 = input0[d0, d1]
      v0 : f32 = math.exp i0
      local0[d0, d1] = v0
    }}
    along d0
    nest d0:2 d1:4+ {{
      i0 = local0[d0, d1]
      o0 = from 0.0 : f32
      v0 : f32 = arith.addf i0, o0
      temporary0[d0] = v0
    }}
    along d0
    nest d0:2 d1:4 {{
      i0 = local0[d0, d1]
      i1 = temporary0[{row}]
      v0 : f32 = arith.divf i0, i1
      result1[d0, d1] = v0
    }}
  }}
}}
"""


def test_tiles_need_nothing_of_each_other() -> None:
    outcome = run(parse_program(TILES.format(row="d0")), _arguments())
    exponentials = np.exp(_arguments().elements(Buffer("input", "f32", (6, 4), 0), 24)).reshape(6, 4)
    np.testing.assert_allclose(outcome.results[1].reshape(6, 4), exponentials / exponentials.sum(1, keepdims=True))
    with pytest.raises(InvalidProgram, match="an iteration reads what another writes to a temporary buffer"):
        run(parse_program(TILES.format(row="d0 * -1 + 5")), _arguments())


def _arguments() -> CallArguments:
    sample = validation.SAMPLES["numbers of both signs"]
    return CallArguments((), sample.elements, sample.scalar)


def test_amplified_rounding_errors_are_not_reported() -> None:
    """Check a sum that is 0 in exact arithmetic, in another order, and a quotient by it."""
    text = """
    buffer input0 : f32[5]
    buffer temporary0 : f32[5]
    buffer temporary1 : f32[1]
    buffer result1 : f32[5]
    entry {
      nest d0:1 d1:5+ {
        i0 = input0[d1]
        i1 = input0[d1 * -1 + 4]
        o0 = from 0.0 : f32
        v0 : f32 = arith.divf i0, 3.0
        v1 : f32 = arith.divf i1, 3.0
        v2 : f32 = arith.subf v0, v1
        v3 : f32 = arith.addf o0, v2
        temporary1[d0] = v3
      }
      nest d0:5 {
        i0 = input0[d0]
        i1 = temporary1[0]
        v0 : f32 = arith.addf i1, 1.0e-18
        v1 : f32 = arith.divf i0, v0
        result1[d0] = v1
      }
    }
    """

    def start_with_one(steps: LoopProgram) -> None:
        step = steps.nests()[0]
        total, term = step.values[0].operands
        unit = constant(1.0, "f32")
        moved = operation("arith.subf", [operation("arith.addf", [term, unit], "f32"), unit], "f32")
        step.values = (operation("arith.addf", [total, moved], "f32"),)

    checked(text, start_with_one, is_exact=False)


def test_only_exact_passes_are_held_to_special_values() -> None:
    def drop_infinity(steps: LoopProgram) -> None:
        step = steps.nests()[0]
        (value,) = step.values
        step.values = (operation("arith.minimumf", [value, constant(1e29, "f32")], "f32"),)

    text = """
    buffer input0 : f32[64]
    buffer result1 : f32[64]
    entry {
      nest d0:64 {
        i0 = input0[d0]
        v0 : f32 = arith.mulf i0, 0.5
        v1 : f32 = math.absf v0
        result1[d0] = v1
      }
    }
    """
    checked(text, drop_infinity, is_exact=False)
    with pytest.raises(CompileError, match="of special values"):
        checked(text, drop_infinity)


# Programs for which a pass, or the interpreter, was once wrong.
FOUND: dict[str, passes.Drawn] = {
    "weights without a scale, which the other factor was taken for": passes.Drawn(
        lines=("y0 = torch.nn.functional.linear(x0, (x1.to(torch.float32) - x2.to(torch.float32)).view(1, 16))",),
        inputs=(("float32", (2, 16)), ("int4", (1, 2, 8)), ("int4", (1, 2, 1))),
        parameters=frozenset({0, 1, 2}),
        results=("y0",),
        features="",
        has_small_costs=True,
    ),
    "an image that is known, beside weights that are not, whose result has one column": passes.Drawn(
        lines=("y0 = torch.nn.functional.conv1d(x0, torch.log_softmax(x0, 1))", "y1 = y0.to(torch.bfloat16).float()"),
        inputs=(("float32", (2, 1, 2)),),
        parameters=frozenset({0}),
        results=("y1",),
        features=",algorithms=strassen",
        has_small_costs=False,
    ),
    "infinite terms that differ in sign": passes.Drawn(
        lines=(
            "y0 = x0.to(torch.bfloat16).float().unsqueeze(0).expand(3, -1, -1).permute(2, 0, 1)",
            "y1 = torch.nn.functional.conv_transpose1d(y0, x1, padding=1)",
        ),
        inputs=(("float32", (4, 3)), ("float32", (3, 1, 1))),
        parameters=frozenset({0}),
        results=("y1",),
        features="",
        has_small_costs=False,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(validation.VARIABLE, "values")
    assert not passes.check(FOUND[name])


@hypothesis.settings(passes.SETTINGS, max_examples=25, derandomize=True)
@hypothesis.given(passes.programs())
def test_programs_drawn_at_random(drawn: passes.Drawn) -> None:
    """Check a few random programs. ``make fuzz-passes`` checks as many as its time limit allows."""
    with mock.patch.dict(os.environ, {validation.VARIABLE: "values"}):
        passes.check(drawn)
