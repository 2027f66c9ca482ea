"""Linalg on tensors as a loop program: the values that have a separate buffer, and the places of writes."""

from __future__ import annotations

import pytest
import torch
from torch_mlir import ir
from written_programs import TracedProgram

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Argument, Program, Result, Target
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, OutlinedRegion, is_copy
from torchmdla.devices.cpu.ir.printer import program_text
from torchmdla.devices.cpu.ir.verifier import verify
from torchmdla.devices.cpu.linalg.fusion import fuse
from torchmdla.devices.cpu.linalg.reading import read_program

MAP = "affine_map<(d0, d1) -> (d0, d1)>"
PARALLEL = f'{{indexing_maps = [{MAP}, {MAP}], iterator_types = ["parallel", "parallel"]}}'


def double(result: str, source: str, shape: str) -> str:
    kind = f"tensor<{shape}xf32>"
    return f"""
      {result}_empty = tensor.empty() : {kind}
      {result} = linalg.generic {PARALLEL} ins({source} : {kind}) outs({result}_empty : {kind}) {{
        ^bb0(%in: f32, %out: f32):
          %sum = arith.addf %in, %in : f32
          linalg.yield %sum : f32
      }} -> {kind}
    """


def read(body: str, results: dict[str, str], *shapes: str) -> LoopProgram:
    """Return the steps of a function of float32 tensors ``%a0``, ``%a1``, ….

    The sizes of arguments and results are strings like ``4x5``.
    """
    arguments = ", ".join(f"%a{k}: tensor<{shape}xf32>" for k, shape in enumerate(shapes))
    kinds = ", ".join(f"tensor<{shape}xf32>" for shape in results.values())
    values = ", ".join(name.rstrip("'") for name in results)
    text = f"func.func @forward({arguments}) -> ({kinds}) {{ {body} return {values} : {kinds} }}"
    inputs = tuple(Argument("input", "float32", tuple(map(int, shape.split("x")))) for shape in shapes)
    outputs = tuple(Result("float32", tuple(map(int, shape.split("x")))) for shape in results.values())
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        fuse(module)
        steps = read_program(module, Program("", inputs, outputs, Target("cpu")))
    verify(steps, "reading")
    return steps


INSERT = "%s = tensor.insert_slice %a1 into {} [0, 1] [4, 2] [1, 1] : tensor<4x2xf32> into tensor<4x5xf32>"

# Operations, results, arguments, and the number of steps that only copy.
COPIES = {
    "an argument is returned": ("", {"%a0": "4x5"}, ("4x5",), 1),
    "a value is returned twice": (double("%r", "%a0", "4x5"), {"%r": "4x5", "%r'": "4x5"}, ("4x5",), 1),
    "an argument is changed": (INSERT.format("%a0"), {"%s": "4x5"}, ("4x5", "4x2"), 2),
    "the last use changes a value": (
        double("%r", "%a0", "4x5") + INSERT.format("%r"), {"%s": "4x5"}, ("4x5", "4x2"), 1,
    ),
    "a value is changed and read": (
        double("%r", "%a0", "4x5") + INSERT.format("%r") + double("%t", "%r", "4x5"),
        {"%s": "4x5", "%t": "4x5"}, ("4x5", "4x2"), 2,
    ),
    "a view of a changed value is read": (
        double("%r", "%a0", "4x5")
        + "%view = tensor.collapse_shape %r [[0, 1]] : tensor<4x5xf32> into tensor<20xf32>\n"
        + INSERT.format("%r"),
        {"%s": "4x5", "%view": "20"}, ("4x5", "4x2"), 2,
    ),
    "nothing is padded": (
        """%pad = arith.constant 0.5 : f32
        %r = tensor.pad %a0 low[1] high[0] {
          ^bb0(%k: index): tensor.yield %pad : f32
        } : tensor<0xf32> to tensor<1xf32>""",
        {"%r": "1"}, ("0",), 0,
    ),
    "nothing is reshaped": (
        "%r = tensor.collapse_shape %a0 [[0, 1]] : tensor<4x0xf32> into tensor<0xf32>", {"%r": "0"}, ("4x0",), 0,
    ),
    "nothing is sliced": (
        "%r = tensor.extract_slice %a0[3, 0] [0, 5] [1, 1] : tensor<4x5xf32> to tensor<0x5xf32>",
        {"%r": "0x5"}, ("4x5",), 0,
    ),
    "the only row is sliced in steps": (
        "%r = tensor.extract_slice %a0[0, 0] [1, 5] [2, 1] : tensor<1x5xf32> to tensor<1x5xf32>",
        {"%r": "1x5"}, ("1x5",), 1,
    ),
    "an element of what has no strides": (
        """%s = tensor.extract_slice %a0[0, 1] [4, 3] [1, 1] : tensor<4x5xf32> to tensor<4x3xf32>
        %c = tensor.collapse_shape %s [[0, 1]] : tensor<4x3xf32> into tensor<12xf32>
        %p = tensor.extract_slice %c[7] [1] [1] : tensor<12xf32> to tensor<1xf32>""",
        {"%p": "1"}, ("4x5",), 1,
    ),
    "a slice of what has no strides": (
        """%s = tensor.extract_slice %a0[0, 1] [4, 3] [1, 1] : tensor<4x5xf32> to tensor<4x3xf32>
        %c = tensor.collapse_shape %s [[0, 1]] : tensor<4x3xf32> into tensor<12xf32>
        %p = tensor.extract_slice %c[2] [5] [1] : tensor<12xf32> to tensor<5xf32>""",
        {"%p": "5"}, ("4x5",), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_only_tensors_with_later_reads_are_copied_before_a_change(name: str) -> None:
    body, results, shapes, copies = COPIES[name]
    steps = read(body, results, *shapes)
    assert sum(map(is_copy, steps.steps)) == copies, program_text(steps)


def test_a_tensor_of_one_number_is_that_number_and_a_reduction_starts_from_it() -> None:
    body = """
      %zero = arith.constant 0.0 : f32
      %ones = arith.constant dense<1.0> : tensor<4x5xf32>
      %row = tensor.empty() : tensor<4xf32>
      %start = linalg.fill ins(%zero : f32) outs(%row : tensor<4xf32>) -> tensor<4xf32>
      %r = linalg.generic {
          indexing_maps = [
            affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>
          ],
          iterator_types = ["parallel", "reduction"]
      } ins(%a0, %ones : tensor<4x5xf32>, tensor<4x5xf32>) outs(%start : tensor<4xf32>) {
        ^bb0(%in: f32, %one: f32, %out: f32):
          %product = arith.mulf %in, %one : f32
          %sum = arith.addf %out, %product : f32
          linalg.yield %sum : f32
      } -> tensor<4xf32>
    """
    steps = read(body, {"%r": "4"}, "4x5")
    (step,) = steps.steps
    assert isinstance(step, LoopNest) and step.initial is not None
    assert step.initial.payload == 0.0 and len(step.inputs) == 1


def test_a_region_lists_its_reads_and_writes() -> None:
    body = """
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %r = scf.for %k = %c1 to %c4 step %c1 iter_args(%t = %a0) -> (tensor<4xf32>) {
        %last = arith.subi %k, %c1 : index
        %before = tensor.extract %t[%last] : tensor<4xf32>
        %own = tensor.extract %a1[%k] : tensor<4xf32>
        %sum = arith.addf %before, %own : f32
        %next = tensor.insert %sum into %t[%k] : tensor<4xf32>
        scf.yield %next : tensor<4xf32>
      }
    """
    steps = read(body, {"%r": "4"}, "4", "4")
    (region,) = (step for step in steps.steps if isinstance(step, OutlinedRegion))
    assert {buffer.kind for buffer in region.inputs} == {"input"}
    assert [buffer.kind for buffer in region.outputs] == ["result"]


def test_the_element_of_a_tensor_without_dimensions_is_found_by_nests_of_any_loops() -> None:
    element = Access(Buffer("input", "f32", ()), ())
    assert element.linearise(0).factors == ()
    assert element.linearise(2).factors == (0, 0)


@pytest.mark.parametrize(("limit", "kind"), [("2.000000e+01", "f32"), ("1.000000e-01", "f64")])
def test_floats_are_compared_with_a_constant_in_their_own_type_if_it_has_it(limit: str, kind: str) -> None:
    body = f"""
      %limit = arith.constant {limit} : f64
      %empty = tensor.empty() : tensor<4x5xf32>
      %r = linalg.generic {PARALLEL} ins(%a0 : tensor<4x5xf32>) outs(%empty : tensor<4x5xf32>) {{
        ^bb0(%in: f32, %out: f32):
          %wide = arith.extf %in : f32 to f64
          %above = arith.cmpf ogt, %wide, %limit : f64
          %number = arith.uitofp %above : i1 to f32
          linalg.yield %number : f32
      }} -> tensor<4x5xf32>
    """
    (nest,) = read(body, {"%r": "4x5"}, "4x5").nests()
    (comparison,) = nest.values[0].operands
    assert [operand.type for operand in comparison.operands] == [kind, kind]


@pytest.mark.parametrize("exponent", [0, 0.0])
def test_a_power_of_zero_is_one(exponent: float) -> None:
    """Check the second derivative of a square, for which no function is called."""
    x = torch.tensor([0.0, -3.0, float("inf"), float("nan")])
    program = TracedProgram(lambda x: x.pow(exponent) + x, x)
    (nest,) = program.steps().nests()
    assert {e.op for e in nest.body.expressions} == {"load", "constant", "arith.addf"}
    program.check()


def test_a_slice_of_interleaved_rows_has_dimensions() -> None:
    """Check that rows which a view joins are one dimension of the buffer, so that a slice of them has an access."""
    kind = "tensor<{}xf32>".format
    maps = ["affine_map<(d0, d1, d2) -> (d1, d0, d2)>", "affine_map<(d0, d1, d2) -> (d0, d1, d2)>"]
    interleaved = f"""
      %empty = tensor.empty() : {kind("4x2x6")}
      %t = linalg.generic
          {{indexing_maps = [{", ".join(maps)}], iterator_types = ["parallel", "parallel", "parallel"]}}
          ins(%a0 : {kind("2x4x6")}) outs(%empty : {kind("4x2x6")}) {{
        ^bb0(%in: f32, %out: f32):
          linalg.yield %in : f32
      }} -> {kind("4x2x6")}
      %rows = tensor.collapse_shape %t [[0, 1], [2]] : {kind("4x2x6")} into {kind("8x6")}
      %s = tensor.extract_slice %rows[1, 2] [6, 3] [1, 1] : {kind("8x6")} to {kind("6x3")}
    """
    steps = read(interleaved + double("%r", "%s", "6x3"), {"%r": "6x3"}, "2x4x6")
    interleaving, reader = steps.nests()
    (buffer,) = interleaving.writes
    assert (buffer.sizes, buffer.fixed) == ((8, 6), False)
    assert interleaving.outputs[0].linearise(3).factors == (12, 6, 1)
    assert [(index.factors, index.constant) for index in reader.inputs[0].indices] == [((1, 0), 1), ((0, 1), 2)]
