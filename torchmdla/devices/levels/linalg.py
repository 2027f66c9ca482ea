"""Lowering of the Torch dialect to linalg on tensors by upstream's passes. Their errors become ``CompileError``."""

from __future__ import annotations

import re
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from torchmdla.compiler import constants
from torchmdla.compiler.mlir import convert_errors, forward_of, ops_named, run
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError

# The passes that programs need from upstream's pipeline to its backend contract. The record already made every operator
# functional and typed every value. The upstream pipeline creates its passes again for each program.
TORCH_PIPELINE = "func.func(canonicalize,torch-recompose-complex-ops,torch-decompose-complex-ops,canonicalize)"
_LINALG_PIPELINE = "torch-backend-to-linalg-on-tensors-backend-pipeline"

# Upstream's passes end the process on unsigned and quantised types (programs hold uint8 as int8). Kernels do not
# support complex numbers.
_ELEMENTS = frozenset(("i1", "si8", "si16", "si32", "si64", "f16", "bf16", "f32", "f64"))
_TENSOR_ELEMENT = re.compile(r"!torch\.vtensor<\[[^\]]*\],\s*([^>]+)>")


def to_linalg(program: Program) -> ir.Module:
    """Return the program as linalg on tensors, in the current context. A program in linalg is not lowered.

    Raises:
        CompileError: the text does not parse, or contains a type or an op that upstream does not lower.
    """
    check_elements(program, "linalg")
    with convert_errors("the program is not valid"):
        module = ir.Module.parse(program.mlir)
    if "!torch." in str(forward_of(module).attributes["function_type"]):
        _lower(module)
    _guard_divisions(module)
    _inline_fill_values(module)
    return module


def check_elements(program: Program, level: str) -> None:
    """Check the element types of a program's tensors before upstream's passes.

    Raises:
        CompileError: an element type is not supported.
    """
    for element in sorted(set(_TENSOR_ELEMENT.findall(program.mlir))):
        if element not in _ELEMENTS:
            raise CompileError(f"level {level!r} does not have element type {element}")


def _lower(module: ir.Module) -> None:
    hidden = constants.hide(module)
    with convert_errors("no lowering for this op and these types"):
        run(module, TORCH_PIPELINE)
        _mark_extrema(module)
        run(module, _LINALG_PIPELINE)
    constants.restore(module, hidden)
    _restore_extrema(module)


def _inline_fill_values(module: ir.Module) -> None:
    """Replace fills with computed numbers by ops whose bodies use the number: operands of kernels are buffers."""
    for fill in ops_named(module.operation, {"linalg.fill"}):
        if _definition(fill.operands[0], "arith.constant") is not None:
            continue
        with ir.InsertionPoint(fill), fill.location:
            filled = fill_tensor(*fill.operands)
        fill.results[0].replace_all_uses_with(filled)
        fill.erase()


def fill_tensor(number: Any, destination: Any) -> Any:
    """Return a tensor like ``destination`` whose elements are all ``number``, from an op whose body yields it."""
    kind = ir.RankedTensorType(destination.type)
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get_identity(kind.rank))]),
        "iterator_types": ir.ArrayAttr.get([parallel] * kind.rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 1]),
    }
    generic = ir.Operation.create("linalg.generic", [kind], [destination], attributes, regions=1)
    block = generic.regions[0].blocks.append(kind.element_type)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", operands=[number])
    return generic.results[0]


def _definition(value: Any, name: str) -> Any | None:
    """Return the op that computes a value if its name is ``name``, else None."""
    op = value.owner.operation if isinstance(value, ir.OpResult) else None
    return op if op is not None and op.name == name else None


# Guards of integer quotients and remainders with the divisor -1. If the dividend is the least integer, processors end
# the process. Eager mode wraps around. A divisor of zero does not occur here: the importer makes the call fail first.

_EQUAL = 0


def _guard_divisions(module: ir.Module) -> None:
    """Replace the divisor -1 of the module's divisions by 1, and negate the quotients."""
    for op in ops_named(module.operation, {"arith.divsi", "arith.remsi"}):
        if not _is_never_minus_one(op.operands[1]):
            _guard_division(op)


def _is_never_minus_one(divisor: Any) -> bool:
    """Return whether a divisor is a constant other than -1, or a size, which is not negative."""
    if isinstance(divisor.type, ir.IndexType):
        return True
    constant = _definition(divisor, "arith.constant")
    value = None if constant is None else constant.attributes["value"]
    return isinstance(value, ir.IntegerAttr) and value.value != -1


def _guard_division(op: Any) -> None:
    dividend, divisor = op.operands
    kind = divisor.type
    with ir.InsertionPoint(op), op.location:
        is_minus_one = arith.CmpIOp(_EQUAL, divisor, arith.ConstantOp(kind, -1).result).result
        op.operands[1] = arith.SelectOp(is_minus_one, arith.ConstantOp(kind, 1).result, divisor).result
        if op.name == "arith.remsi":
            return
        negated = arith.SubIOp(arith.ConstantOp(kind, 0).result, dividend).result
    with ir.InsertionPoint.after(op), op.location:
        chosen = arith.SelectOp(is_minus_one, negated, op.results[0]).result
    op.results[0].replace_all_uses_except(chosen, chosen.owner.operation)


# Maxima and minima that propagate NaN, and rectifiers that keep a zero's sign, as in PyTorch. Upstream lowers them to a
# comparison and a select. This drops the NaN of one side, and cannot be distinguished from a ``where`` in the user's
# program. The ops are therefore marked, by their locations, before they are lowered.


_EXTREMUM, _RECTIFIER = "mdla.extremum", "mdla.rectifier"

_MARKS = {
    **{f"torch.aten.{name}": _EXTREMUM for name in ("maximum", "minimum", "clamp", "clamp.Tensor")},
    **{f"torch.aten.{name}": _RECTIFIER for name in ("relu", "relu6")},
}

# MLIR's numbers of the comparisons "greater" (ogt, oge, ugt, uge) and "less" (olt, ole, ult, ule).
_GREATER, _LESS = {2, 3, 9, 10}, {4, 5, 11, 12}
_UNORDERED_GREATER, _UNORDERED_GREATER_OR_EQUAL = 9, 10


def _mark_extrema(module: ir.Module) -> None:
    """Mark the module's maxima, minima, clamps and rectifiers, in the Torch dialect."""
    for op in ops_named(module.operation, _MARKS):
        location = ir.Location.name(_MARKS[op.name], op.location)
        with ir.InsertionPoint(op):
            copy = ir.Operation.create(
                op.name, results=[r.type for r in op.results], operands=list(op.operands), loc=location
            )
        op.results[0].replace_all_uses_with(copy.results[0])
        op.erase()


def _restore_extrema(module: ir.Module) -> None:
    """Replace lowered extrema by ``arith.maximumf`` and ``arith.minimumf``; make rectifiers keep zeros.

    A rectifier chooses its operand if that is equal to zero. This is also one instruction of x86.
    """
    for select in ops_named(module.operation, {"arith.select"}):
        location = str(select.location)
        if f'"{_EXTREMUM}"' in location:
            _replace_by_extremum(select)
        elif f'"{_RECTIFIER}"' in location:
            _keep_zero(select)


def _comparison(select: Any) -> tuple[Any, int]:
    """Return the comparison of floats that is a select's condition, and its predicate; otherwise None and 0."""
    compare = _definition(select.operands[0], "arith.cmpf")
    return compare, 0 if compare is None else ir.IntegerAttr(compare.attributes["predicate"]).value


def _keep_zero(select: Any) -> None:
    compare, predicate = _comparison(select)
    if predicate == _UNORDERED_GREATER and list(compare.operands) == list(select.operands)[1:]:
        kind = compare.attributes["predicate"].type
        compare.attributes["predicate"] = ir.IntegerAttr.get(kind, _UNORDERED_GREATER_OR_EQUAL)


def _replace_by_extremum(select: Any) -> None:
    _, first, second = select.operands
    compare, predicate = _comparison(select)
    if compare is None:
        return
    left, right = compare.operands
    if {first, second} != {left, right} or predicate not in _GREATER | _LESS:
        return
    name = "arith.maximumf" if (predicate in _GREATER) == (first == left) else "arith.minimumf"
    with ir.InsertionPoint(select):
        extremum = ir.Operation.create(name, results=[first.type], operands=[first, second], loc=select.location)
    select.results[0].replace_all_uses_with(extremum.results[0])
