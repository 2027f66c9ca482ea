"""Checks before all accesses of a module in the LLVM dialect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu.codegen.checks.support import (
    ANYWHERE,
    MARK,
    OUTCOME,
    RECORD,
    RECORD_IN,
    SET_RECORD,
    SLOT,
    STACK,
    global_text,
    lanes_text,
    support_text,
)
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.errors import CompileError

_POINTER = "!llvm.ptr"
_KERNEL = "!llvm.func<void (ptr, i64, i64)>"
# Sizes of scalars in memory, in bytes. A vector of ``i1`` would be stored as bits; it is never loaded or stored.
_SIZES = {**ELEMENT_BYTES, "i1": 1, _POINTER: 8, SLOT: 16}

# Functions that allocate as many bytes as their argument specifies.
_ALLOCATIONS = frozenset({"mdla_scratch", "malloc"})
# Functions and ops that receive pointers but do not access memory themselves.
_HARMLESS_CALLS = frozenset({"mdla_parallel_for", "free", MARK, OUTCOME})
_HARMLESS = frozenset({"llvm.getelementptr", "llvm.ptrtoint", "llvm.intr.prefetch"})


@dataclass(frozen=True)
class _Access:
    """Operands of an op that accesses memory.

    Attributes:
        kind: "load" or "store".
        address: the position of the address.
        mask: the position of the mask, or -1 without a mask.
        value: the position of the stored value, or -1 if the op loads its result.
    """

    kind: str
    address: int
    mask: int = -1
    value: int = -1


_ACCESSES = {
    "llvm.load": _Access("load", 0),
    "llvm.store": _Access("store", 1, value=0),
    "llvm.intr.masked.load": _Access("load", 0, mask=1),
    "llvm.intr.masked.store": _Access("store", 1, mask=2, value=0),
    "llvm.intr.masked.gather": _Access("load", 0, mask=1),
    "llvm.intr.masked.scatter": _Access("store", 1, mask=2, value=0),
}

# Ops that access as many bytes as operand ``_LENGTH`` specifies, with the positions of their addresses.
_RUNS = {
    "llvm.intr.memcpy": {0: "store", 1: "load"},
    "llvm.intr.memmove": {0: "store", 1: "load"},
    "llvm.intr.memset": {0: "store"},
}
_LENGTH = 2

# The check of a mask: kind of access, number of lanes, bytes per lane.
_Lanes = tuple[str, int, int]


def check_bounds(
    module: ir.Module, regions: Collection[str], attributes: str, lower: Callable[[ir.Module], None]
) -> None:
    """Add a check to every access of ``module``, whose ABI functions mark their buffers.

    Args:
        module: the module in the LLVM dialect.
        regions: the functions that have pointers to buffers as arguments.
        attributes: the attributes of added functions, as MLIR text.
        lower: lowers other dialects to the LLVM dialect.

    Raises:
        CompileError: the buffer that an access should touch is not known.
    """
    functions = [op.operation for op in module.body.operations if op.operation.name == "llvm.func"]
    functions = [function for function in functions if len(function.regions[0].blocks)]
    lanes: dict[_Lanes, None] = {}
    for function in functions:
        if _name(function) in regions:
            _add_record_arguments(function)
            _drop_inbounds(function)
        _Instrumenter(function, regions, lanes).write()
    texts = [support_text(attributes), *(lanes_text(*key, attributes) for key in lanes)]
    texts += [global_text(_label(function), _name(function)) for function in functions]
    support = ir.Module.parse("\n".join(texts))
    lower(support)
    _add(module, support)


def _add(module: ir.Module, support: ir.Module) -> None:
    """Add the definitions of ``support`` to ``module``, in place of its declarations."""
    declared = {_name(op.operation): op.operation for op in module.body.operations}
    definitions = [op.operation for op in support.body.operations]
    for symbol in (MARK, *map(_name, definitions)):
        if symbol in declared:
            declared[symbol].erase()
    end = ir.InsertionPoint(module.body)
    for definition in definitions:
        definition.clone(ip=end)


def _name(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _label(function: Any) -> str:
    """Return the symbol of the global that holds a function's name."""
    return f'@"name of {_name(function)}"'


def _callee(op: Any) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value) if "callee" in op.attributes else ""


def _element(allocation: Any) -> str:
    return str(ir.TypeAttr(allocation.attributes["elem_type"]).value)


def _pointers(values: Any) -> list[int]:
    return [k for k, value in enumerate(values) if str(value.type) == _POINTER]


def _add_record_arguments(function: Any) -> None:
    """Append one record argument for each pointer argument of a region's function."""
    block = function.regions[0].blocks[0]
    count = len(_pointers(block.arguments))
    for _ in range(count):
        block.add_argument(ir.Type.parse(_POINTER), ir.Location.unknown())
    kind = str(function.attributes["function_type"])
    function.attributes["function_type"] = ir.Attribute.parse(kind.removesuffix(")>") + ", ptr" * count + ")>")


def _drop_inbounds(function: Any) -> None:
    """Recreate address computations without upstream's promise that addresses are inside their buffers.

    LLVM would remove the checks of addresses that have this promise.
    """
    for op in [op.operation for block in function.regions[0].blocks for op in block.operations]:
        if op.name == "llvm.getelementptr":
            attributes = {name: str(op.attributes[name]) for name in ("elem_type", "rawConstantIndices")}
            with ir.InsertionPoint(op):
                op.results[0].replace_all_uses_with(_op(op.name, [str(op.results[0].type)], op.operands, **attributes))
            op.erase()


def _bytes_of(kind: str) -> int:
    if kind.startswith("vector<"):
        lanes, _, element = kind.removeprefix("vector<").removesuffix(">").partition("x")
        return int(lanes) * ELEMENT_BYTES[element]
    return _SIZES[kind]


class _Instrumenter:
    """Function that receives checks."""

    def __init__(self, function: Any, regions: Collection[str], lanes: dict[_Lanes, None]) -> None:
        # The ops before anything is added.
        self._ops = [op.operation for block in function.regions[0].blocks for op in block.operations]
        self._regions = regions
        self._lanes = lanes
        self._records: dict[Any, Any] = {}
        self._constants: dict[int, Any] = {}
        # Arrays of pointers and their records, and the pointers that are loaded from them.
        self._arrays: set[Any] = set()
        self._loaded: set[Any] = set()
        block = function.regions[0].blocks[0]
        arguments = list(block.arguments)
        with ir.InsertionPoint.at_block_begin(block):
            # Values that the whole function shares are inserted between these two constants.
            self._one = _number(1)
            self._end_of_head = _number(0).owner
        with self._head():
            self._stack = _address(STACK)
            self._name = _op("llvm.mlir.addressof", [_POINTER], [], global_name=_label(function))
        if _name(function) in regions:
            pointers = _pointers(arguments)
            half = len(pointers) // 2
            self._records = {arguments[k]: arguments[j] for k, j in zip(pointers[:half], pointers[half:], strict=True)}
        elif str(ir.TypeAttr(function.attributes["function_type"]).value) == _KERNEL:
            with self._head():
                self._records[arguments[0]] = _call(RECORD_IN, _POINTER, _offset(arguments[0], SLOT, -1))
            self._arrays.add(arguments[0])

    def write(self) -> None:
        arrays = [op for op in self._ops if op.name == "llvm.alloca" and _element(op) == _POINTER]
        ops = [op for op in self._ops if op not in arrays]
        for op in arrays:
            self._widen_array(op)
        for op in ops:
            if op.name == "llvm.getelementptr" and self._is_in_array(op.results[0]):
                op.attributes["elem_type"] = ir.TypeAttr.get(ir.Type.parse(SLOT))
        loads = [op for op in ops if op.name == "llvm.load"]
        self._loaded = {op.results[0] for op in loads if self._is_in_array(op.operands[0])}
        marks = [op for op in ops if op.name == "llvm.call" and _callee(op) == MARK]
        for op in ops:
            self._check(op)
        for op in marks:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()

    def _head(self) -> ir.InsertionPoint:
        return ir.InsertionPoint(self._end_of_head)

    def _constant(self, number: int) -> Any:
        if number not in self._constants:
            with self._head():
                self._constants[number] = _number(number)
        return self._constants[number]

    # Arrays of operands. An additional element before the others holds the record of the array itself.

    def _widen_array(self, op: Any) -> None:
        """Replace an array of pointers by an array of pointers and records."""
        count = op.operands[0]
        with ir.InsertionPoint(op):
            whole = _op("llvm.add", ["i64"], [count, self._one])
            memory = _op("llvm.alloca", [_POINTER], [whole], elem_type=SLOT)
            array = _offset(memory, SLOT, 1)
            size = _op("llvm.mul", ["i64"], [count, self._constant(_SIZES[SLOT])])
            self._records[array] = self._new_record(array, size, self._stack, None)
            _op("llvm.store", [], [self._records[array], _offset(memory, SLOT, 0, 1)], ordering="0 : i64")
        self._arrays.add(array)
        op.results[0].replace_all_uses_with(array)
        op.erase()

    def _is_in_array(self, address: Any) -> bool:
        while address not in self._arrays:
            if not isinstance(address, ir.OpResult) or address.owner.name != "llvm.getelementptr":
                return False
            address = address.owner.operands[0]
        return True

    # Records.

    def _record(self, pointer: Any) -> Any:
        """Return the record of the buffer that a pointer or a vector of pointers refers to, or None if unknown."""
        if pointer not in self._records:
            self._records[pointer] = self._derive_record(pointer)
        return self._records[pointer]

    def _derive_record(self, pointer: Any) -> Any:
        if not isinstance(pointer, ir.OpResult):
            return None
        op = pointer.owner.operation
        if op.name == "llvm.getelementptr":
            return self._record(op.operands[0])
        if pointer in self._loaded:
            with ir.InsertionPoint.after(op):
                return _call(RECORD_IN, _POINTER, op.operands[0])
        if op.name == "llvm.call" and _callee(op) == MARK:
            outer = self._record(op.operands[0])
            with ir.InsertionPoint.after(op):
                return self._new_record(pointer, op.operands[1], op.operands[2], outer)
        return self._record_of_allocation(op)

    def _record_of_allocation(self, op: Any) -> Any:
        is_call = op.name == "llvm.call" and _callee(op) in _ALLOCATIONS
        if not is_call and op.name != "llvm.alloca":
            return None
        size = self._one if is_call else self._constant(_bytes_of(_element(op)))
        with ir.InsertionPoint.after(op):
            size = _op("llvm.mul", ["i64"], [op.operands[0], size])
            return self._new_record(op.results[0], size, self._stack, None)

    def _new_record(self, pointer: Any, size: Any, name: Any, outer: Any) -> Any:
        """Return a new record of ``size`` bytes from ``pointer`` on, restricted to the range of ``outer``.

        The code that fills the record is inserted at the current insertion point.
        """
        with self._head():
            record = _op("llvm.alloca", [_POINTER], [self._one], elem_type=RECORD)
        _call(SET_RECORD, "", record, pointer, size, name, outer or _address(ANYWHERE), self._name)
        return record

    def _known_record(self, pointer: Any, op: Any) -> Any:
        record = self._record(pointer)
        if record is None:
            raise CompileError("internal error: an access to a buffer that is not known", diagnostic=str(op))
        return record

    # Checks.

    def _check(self, op: Any) -> None:
        if op.name in _ACCESSES:
            self._check_access(op, _ACCESSES[op.name])
        elif op.name in _RUNS:
            self._check_run(op, _RUNS[op.name])
        elif op.name == "llvm.call" and _callee(op) in self._regions:
            self._pass_records(op)
        elif any(_POINTER in str(value.type) for value in op.operands) and not self._is_harmless(op):
            raise CompileError("internal error: an access to memory that cannot be checked", diagnostic=str(op))

    def _is_harmless(self, op: Any) -> bool:
        if op.name != "llvm.call":
            return op.name in _HARMLESS
        return _callee(op) in _HARMLESS_CALLS or any(operand in self._arrays for operand in op.operands)

    def _check_access(self, op: Any, access: _Access) -> None:
        address = op.operands[access.address]
        data = op.operands[access.value] if access.value >= 0 else op.results[0]
        record = self._known_record(address, op)
        is_pointer = access.kind == "store" and str(data.type) == _POINTER
        if is_pointer and not self._is_in_array(address):
            raise CompileError("internal error: a pointer in memory of which no record is kept", diagnostic=str(op))
        with ir.InsertionPoint(op):
            if access.mask >= 0:
                mask = op.operands[access.mask]
                op.operands[access.mask] = self._check_mask(access.kind, mask, address, data, record)
            else:
                size = self._constant(_bytes_of(str(data.type)))
                op.operands[access.address] = self._emit_check(access.kind, _POINTER, address, size, record)
        if not is_pointer:
            return
        record = self._known_record(data, op)
        with ir.InsertionPoint.after(op):
            _op("llvm.store", [], [record, _offset(op.operands[1], SLOT, 0, 1)], ordering="0 : i64")

    def _check_mask(self, kind: str, mask: Any, address: Any, data: Any, record: Any) -> Any:
        """Return ``mask`` without the lanes whose accesses are outside the buffer."""
        count = ir.VectorType(mask.type).shape[0]
        size = _bytes_of(str(data.type)) // count
        self._lanes[kind, count, size] = None
        layout = "row"
        if str(address.type) != _POINTER:
            layout, address = "lanes", _op("llvm.ptrtoint", [f"vector<{count}xi64>"], [address])
        return self._emit_check(f"{kind}_{layout}_{count}x{size}", str(mask.type), address, mask, record)

    def _check_run(self, op: Any, kinds: Mapping[int, str]) -> None:
        for position, kind in kinds.items():
            record = self._known_record(op.operands[position], op)
            with ir.InsertionPoint(op):
                operands = op.operands[position], op.operands[_LENGTH], record
                op.operands[_LENGTH] = self._emit_check(f"{kind}_bytes", "i64", *operands)

    def _emit_check(self, check: str, kind: str, *operands: Any) -> Any:
        """Return the address, mask or length that a support function returns for an access."""
        return _call(f"mdla_{check}", kind, *operands, self._name)

    def _pass_records(self, op: Any) -> None:
        """Replace a call of a region by a call that also passes the records of its pointers."""
        operands = list(op.operands)
        operands += [self._known_record(operands[k], op) for k in _pointers(operands)]
        with ir.InsertionPoint(op):
            result = _call(_callee(op), "".join(str(result.type) for result in op.results), *operands)
        for old in op.results:
            old.replace_all_uses_with(result)
        op.erase()


# Ops at the current insertion point.


def _op(name: str, kinds: Sequence[str], operands: Sequence[Any], **attributes: str) -> Any:
    """Create an op and return its result, or None if it has no result.

    ``attributes`` are MLIR text.
    """
    parsed = {key: ir.Attribute.parse(text) for key, text in attributes.items()}
    types = [ir.Type.parse(kind) for kind in kinds]
    op = ir.Operation.create(name, results=types, operands=list(operands), attributes=parsed)
    return op.results[0] if types else None


def _number(value: int) -> Any:
    return _op("llvm.mlir.constant", ["i64"], [], value=f"{value} : i64")


def _address(symbol: str) -> Any:
    return _op("llvm.mlir.addressof", [_POINTER], [], global_name=f"@{symbol}")


def _offset(pointer: Any, element: str, *indices: int) -> Any:
    places = f"array<i32: {', '.join(map(str, indices))}>"
    return _op("llvm.getelementptr", [_POINTER], [pointer], elem_type=element, rawConstantIndices=places)


def _call(symbol: str, kind: str, *operands: Any) -> Any:
    """Call a function of the module and return its result.

    ``kind`` is the type of the result, or empty for a function without a result.
    """
    segments = f"array<i32: {len(operands)}, 0>"
    attributes = {"callee": f"@{symbol}", "operandSegmentSizes": segments, "op_bundle_sizes": "array<i32>"}
    return _op("llvm.call", [kind] if kind else [], operands, **attributes)
