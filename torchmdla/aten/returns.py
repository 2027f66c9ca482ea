"""Return elimination: the results of functions become trailing arguments that they write to.

A tensor or memref becomes a memref of the same type, a number a memref of rank 0. The caller owns the memory, which
must not overlap an argument's.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from torchmdla.aten import types
from torchmdla.aten.dialect import AtenError, body_of, functions_with_body, verify


def return_elimination(module: ir.Module) -> None:
    """Eliminate the results of every function with a body, in place. A returned None is dropped.

    Raises:
        AtenError: a function has control flow, is called in the module, or returns a tuple.
    """
    changed = functions_with_body(module)
    _check_not_called(module, {ir.StringAttr(function.attributes["sym_name"]).value for function in changed})
    with module.context, ir.Location.unknown():
        for function in changed:
            # All checks precede all changes.
            for value in _return_of(body_of(function)).operands:
                if not types.is_none(value.type):
                    memref_type(value.type)
        for function in changed:
            _eliminate(function)
    verify(module)


def _check_not_called(module: ir.Module, names: set[str]) -> None:
    calls: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value in names:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for call in calls:
        raise AtenError(f"function {call.attributes['callee']} is called in the module ({call.location})")


def _return_of(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def _eliminate(function: Any) -> None:
    block = body_of(function)
    returned = _return_of(block)
    written = [index for index, value in enumerate(returned.operands) if not types.is_none(value.type)]
    memrefs = [memref_type(returned.operands[index].type) for index in written]
    for index, memref in zip(written, memrefs, strict=True):
        destination = block.add_argument(memref, ir.Location.unknown())
        with ir.InsertionPoint(returned), returned.location:
            # The operand is read again: an allocation that is returned twice is already an argument the second time.
            _write(returned.operands[index], destination)
    with ir.InsertionPoint(returned), returned.location:
        ir.Operation.create("func.return")
    returned.erase()
    inputs = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, []))
    if "arg_attrs" in function.attributes:
        marks = [*function.attributes["arg_attrs"], *[ir.DictAttr.get({})] * len(memrefs)]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(marks)
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]


def memref_type(type_: ir.Type) -> ir.Type:
    """Return the memref type that holds a value of a type.

    Raises:
        AtenError: a value of this type cannot be written to memory.
    """
    if isinstance(type_, ir.MemRefType):
        return type_
    if isinstance(type_, ir.RankedTensorType):
        return ir.MemRefType.get(list(type_.shape), type_.element_type)
    if isinstance(type_, ir.IntegerType | ir.FloatType | ir.ComplexType):
        return ir.MemRefType.get([], type_)
    raise AtenError(f"a value of type {type_} cannot be written to memory")


def _write(value: ir.Value, destination: ir.Value) -> None:
    if isinstance(value.type, ir.MemRefType):
        producer = value.owner.operation if isinstance(value, ir.OpResult) else None
        if producer is not None and producer.name == "memref.alloc":
            value.replace_all_uses_with(destination)
            producer.erase()
        else:
            ir.Operation.create("memref.copy", operands=[value, destination])
    elif isinstance(value.type, ir.RankedTensorType):
        flags = {"restrict": ir.UnitAttr.get(), "writable": ir.UnitAttr.get()}
        ir.Operation.create("bufferization.materialize_in_destination", operands=[value, destination], attributes=flags)
    else:
        ir.Operation.create("memref.store", operands=[value, destination])
