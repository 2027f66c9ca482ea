"""Conversion of the aten dialect to calls of named runtime functions on memory.

Every op becomes a ``func.call`` of a private function that is declared in the module. The name specifies the details
that the function's type leaves open. ``aten_add_Tensor__f32r3_f32r3_i64__f32r3`` is ``aten::add.Tensor`` of two ``f32``
tensors of rank 3 and an integer, with a result of rank 3. ``docs/aten.md`` has the table of operands.

Tensor results are trailing arguments: memory that the caller allocates. Numbers are returned. Every result has its own
contiguous memory, so views are copies. An in-place op writes its argument and has no memory for it among its results.
With ``llvm.emit_c_interface`` each function has a C entry ``_mlir_ciface_<name>``. Its parameters are pointers to
MLIR's memref descriptors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mlir import ir

from torchmdla.aten import constants, types
from torchmdla.aten.dialect import CAST, CONSTANT, AtenError, body_of, functions_with_body, verify
from torchmdla.aten.returns import memref_type, return_elimination
from torchmdla.aten.schemas import OpSchema, by_op


def lower_to_std(module: ir.Module) -> None:
    """Run return elimination, then aten-to-std, in place; no aten op and no tensor remains.

    Raises:
        AtenError: as :func:`~torchmdla.aten.returns.return_elimination` and :func:`aten_to_std`.
    """
    return_elimination(module)
    aten_to_std(module)


def aten_to_std(module: ir.Module) -> None:
    """Convert every function with a body, in place; tensor arguments and results become memrefs.

    Raises:
        AtenError: a function has control flow, an op of another dialect, a size that is not known, or an op that writes
            through a view.
    """
    sources = functions_with_body(module)
    globals_ = _Globals(module)
    with module.context, ir.Location.unknown():
        try:
            for source in sources:
                _Function(source, globals_).convert()
        except BaseException:
            for op in globals_.added:
                op.erase()
            raise
    for source in sources:
        source.erase()
    verify(module)


class _Globals:
    """Symbols that a conversion adds: functions, declarations of runtime functions, and constant memory."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._names: dict[str, str] = {}
        self.added: list[Any] = []

    def add(self, name: str, attributes: Mapping[str, ir.Attribute]) -> Any:
        """Add an op at the current insertion point; a function does not have a body."""
        regions = 1 if name == "func.func" else 0
        self.added.append(ir.Operation.create(name, attributes=dict(attributes), regions=regions))
        return self.added[-1]

    def declare(self, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
        """Declare a private function, unless it is already declared."""
        if name in self._names:
            return
        self._names[name] = name
        attributes = {
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(inputs), list(results))),
            "llvm.emit_c_interface": ir.UnitAttr.get(),
        }
        with ir.InsertionPoint(self._module.body):
            self.add("func.func", attributes)

    def memory(self, value: ir.Attribute, type_: ir.Type) -> ir.Value:
        """Return constant memory, at the current insertion point."""
        key = str(value)
        if key not in self._names:
            self._names[key] = f"constant_{len(self._names)}"
            attributes = {
                "sym_name": ir.StringAttr.get(self._names[key]),
                "sym_visibility": ir.StringAttr.get("private"),
                "type": ir.TypeAttr.get(type_),
                "initial_value": value,
                "constant": ir.UnitAttr.get(),
            }
            with ir.InsertionPoint.at_block_begin(self._module.body):
                self.add("memref.global", attributes)
        name = ir.FlatSymbolRefAttr.get(self._names[key])
        return ir.Operation.create("memref.get_global", results=[type_], attributes={"name": name}).result


class _Function:
    """Conversion of one function, which maps values to new values, lists of them, or Python literals."""

    def __init__(self, source: Any, globals_: _Globals) -> None:
        self._source = source
        self._globals = globals_
        self._known: dict[ir.Value, Any] = {}
        # The last user of each allocation of this function.
        self._last: dict[ir.Value, Any] = {}
        self._destinations: dict[ir.Value, ir.Value] = {}
        # The memory of views and of their bases in PyTorch, with the op that made the view.
        self._viewed: dict[ir.Value, str] = {}

    def convert(self) -> None:
        source = self._source
        block = body_of(source)
        signature = ir.FunctionType(ir.TypeAttr(source.attributes["function_type"]).value)
        inputs = [_memory(type_) for type_ in signature.inputs]
        results = [_memory(type_) for type_ in signature.results if not types.is_none(type_)]
        names = ("sym_name", "sym_visibility", "arg_attrs")
        attributes = {name: source.attributes[name] for name in names if name in source.attributes}
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
        with ir.InsertionPoint(source), source.location:
            body = self._globals.add("func.func", attributes).regions[0].blocks.append(*inputs)
        self._known.update(zip(block.arguments, body.arguments, strict=True))
        self._find_destinations(block)
        with ir.InsertionPoint(body):
            for op in (view.operation for view in block.operations):
                with op.location:
                    self._op(op)
        for value, last in self._last.items():
            with ir.InsertionPoint.after(last), last.location:
                ir.Operation.create("memref.dealloc", operands=[value])

    def _find_destinations(self, block: Any) -> None:
        """Record the destination of each materialized result, so that it is computed in place."""
        for op in (view.operation for view in block.operations):
            if op.name == "bufferization.materialize_in_destination":
                value, destination = op.operands
                if isinstance(value, ir.OpResult) and value not in self._destinations:
                    self._destinations[value] = self._known.get(destination)

    def _op(self, op: Any) -> None:
        if op.name in _RULES:
            _RULES[op.name](self, op)
        elif op.name in by_op():
            self._call(op, by_op()[op.name])
        elif op.name in _UNCHANGED:
            attributes = {name: op.attributes[name] for name in op.attributes}
            ir.Operation.create(op.name, operands=[self._value(value) for value in op.operands], attributes=attributes)
        else:
            raise AtenError(f"{op.name} is not an op of the aten dialect ({op.location})")

    def constant(self, op: Any) -> None:
        """Record a literal, which is written at each use; a tensor literal becomes constant memory."""
        value = constants.read(op)
        if types.is_tensor(op.results[0].type):
            self._known[op.results[0]] = self._globals.memory(op.attributes["value"], _memory(op.results[0].type))
        else:
            self._known[op.results[0]] = _Literal(value)

    def cast(self, op: Any) -> None:
        """Pack or unpack a list."""
        if len(op.results) == 1 and isinstance(op.results[0].type, ir.TupleType):
            self._known[op.results[0]] = [self._known[value] for value in op.operands]
        else:
            self._known.update(zip(op.results, self._known[op.operands[0]], strict=True))

    def materialise(self, op: Any) -> None:
        """Copy a value that was not computed in its destination."""
        value, destination = (self._value(operand) for operand in op.operands)
        if value != destination:
            self._record_use([value], ir.Operation.create("memref.copy", operands=[value, destination]))

    def finish(self, op: Any) -> None:
        """Return memory and numbers; the caller frees returned memory."""
        values = [self._value(value) for value in op.operands if not types.is_none(value.type)]
        for value in values:
            self._last.pop(value, None)
        ir.Operation.create("func.return", operands=values)

    def _value(self, value: ir.Value) -> ir.Value:
        known = self._known[value]
        if isinstance(known, _Literal):
            return _number(known.value, value.type)
        if isinstance(known, list):
            raise AtenError(f"a list cannot leave its function, got a {value.type}")
        converted: ir.Value = known
        return converted

    def _call(self, op: Any, schema: OpSchema) -> None:
        self._check_writes(op, schema)
        codes: list[str] = []
        operands: list[ir.Value] = []
        for value in op.operands:
            self._append_operand(self._known[value], codes, operands)
        used = list(operands)
        result_codes: list[str] = []
        returned = []
        for index, result in enumerate(op.results):
            written = schema.aliased[index] if schema.written else None
            if written is not None and written in schema.written:
                self._known[result] = self._known[op.operands[written]]
            elif types.is_tensor(result.type) or isinstance(result.type, ir.TupleType):
                self._known[result] = self._allocate(result)
                self._append_operand(self._known[result], result_codes, operands)
            elif not types.is_none(result.type):
                returned.append(result)
                result_codes.append(_code(_wide_type(result.type)))
            else:
                self._known[result] = _Literal(None)
        name = "__".join((re.sub(r"::|\.", "_", schema.qualified), "_".join(codes), "_".join(result_codes)))
        passed = [_erase_sizes(operand) for operand in operands]
        outputs = [_wide_type(result.type) for result in returned]
        self._globals.declare(name, [operand.type for operand in passed], outputs)
        callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
        call = ir.Operation.create("func.call", results=outputs, operands=passed, attributes=callee)
        self._record_use([*used, *operands], call)
        self._known.update(zip(returned, call.results, strict=True))
        self._note_views(op, schema)

    def _check_writes(self, op: Any, schema: OpSchema) -> None:
        """Raise an error if the op writes to a view or to the base of a view.

        Views are copies here, so such a write would not reach the other tensor.
        """
        for index in schema.written:
            view = self._viewed.get(self._known[op.operands[index]])
            if view is not None:
                raise AtenError(f"{schema.qualified} writes to what is a view, or has one, by {view} ({op.location})")

    def _note_views(self, op: Any, schema: OpSchema) -> None:
        if schema.is_view:
            memory = [self._known[value] for value in (*op.operands[:1], *op.results)]
            flat = [item for known in memory for item in (known if isinstance(known, list) else [known])]
            self._viewed.update((item, schema.qualified) for item in flat if isinstance(item, ir.Value))

    def _append_operand(self, known: Any, codes: list[str], operands: list[ir.Value]) -> None:
        """Append an operand, and its code in the function's name."""
        if isinstance(known, list):
            codes.append(f"l{len(known)}")
            for item in known:
                self._append_operand(item, codes, operands)
        elif isinstance(known, _Literal):
            self._append_literal(known.value, codes, operands)
        elif isinstance(known.type, ir.MemRefType):
            codes.append(f"{_code(known.type.element_type)}r{known.type.rank}")
            operands.append(known)
        else:
            widened = _widen(known)
            codes.append(_code(widened.type))
            operands.append(widened)

    def _append_literal(self, value: Any, codes: list[str], operands: list[ir.Value]) -> None:
        if value is None:
            codes.append("n")
        elif isinstance(value, str):
            codes.append("str")
            # Signed bytes
            operands.append(self._numbers(memoryview(value.encode()).cast("b").tolist(), "i8"))
        elif isinstance(value, list):
            has_float = any(isinstance(item, float) for item in value)
            element = "i1" if value and isinstance(value[0], bool) else "f64" if has_float else "i64"
            codes.append(f"{element}s")
            operands.append(self._numbers(value, element))
        else:
            number = _number(value, _wide_type(constants.literal(value)[1]))
            codes.append(_code(number.type))
            operands.append(number)

    def _numbers(self, values: Sequence[Any], element: str) -> ir.Value:
        type_ = ir.Type.parse(element)
        shape = ir.RankedTensorType.get([len(values)], type_)
        items = [_number_attribute(value, type_) for value in values]
        attribute = ir.DenseElementsAttr.get(items, shape) if items else ir.Attribute.parse(f"dense<> : {shape}")
        return self._globals.memory(attribute, ir.MemRefType.get([len(values)], type_))

    def _allocate(self, result: ir.Value) -> Any:
        if isinstance(result.type, ir.TupleType):
            return [self._alloc(type_) for type_ in types.elements_of(result.type)]
        return self._destinations.get(result) or self._alloc(result.type)

    def _alloc(self, type_: ir.Type) -> ir.Value:
        memory = _memory(type_)
        if not memory.has_static_shape:
            raise AtenError(f"the sizes of a result must be known to allocate it, got {type_}")
        segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0])}
        value = ir.Operation.create("memref.alloc", results=[memory], attributes=segments).result
        self._last[value] = value.owner
        return value

    def _record_use(self, values: Sequence[ir.Value], op: Any) -> None:
        for value in values:
            if value in self._last:
                self._last[value] = op


class _Literal:
    """Known number, string, list of numbers, or None."""

    def __init__(self, value: Any) -> None:
        self.value = value


_Rule = Callable[[_Function, Any], None]
_RULES: Mapping[str, _Rule] = {
    CONSTANT: _Function.constant,
    CAST: _Function.cast,
    "bufferization.materialize_in_destination": _Function.materialise,
    "func.return": _Function.finish,
}
_UNCHANGED = frozenset(("memref.store", "memref.copy", "cf.assert"))


def _memory(type_: ir.Type) -> Any:
    return memref_type(type_) if types.is_tensor(type_) else type_


def _erase_sizes(value: ir.Value) -> ir.Value:
    """Return memory with dynamic sizes; only the rank remains in the type."""
    if not isinstance(value.type, ir.MemRefType) or not value.type.rank:
        return value
    dynamic = ir.ShapedType.get_dynamic_size()
    type_ = ir.MemRefType.get([dynamic] * value.type.rank, value.type.element_type)
    return ir.Operation.create("memref.cast", results=[type_], operands=[value]).result


def _wide_type(type_: ir.Type) -> ir.Type:
    """Return the type that numbers are passed as: ``i64``, ``f64`` or ``i1``."""
    if isinstance(type_, ir.IntegerType) and type_.width > 1:
        return ir.IntegerType.get_signless(64)
    if isinstance(type_, ir.FloatType):
        return ir.F64Type.get()
    return type_


def _widen(value: ir.Value) -> ir.Value:
    if value.type == _wide_type(value.type):
        return value
    op = "arith.extsi" if isinstance(value.type, ir.IntegerType) else "arith.extf"
    return ir.Operation.create(op, results=[_wide_type(value.type)], operands=[value]).result


def _number(value: Any, type_: ir.Type) -> ir.Value:
    if not isinstance(value, bool | int | float):
        raise AtenError(f"{value!r} cannot be passed to a runtime function")
    attributes = {"value": _number_attribute(value, type_)}
    return ir.Operation.create("arith.constant", results=[type_], attributes=attributes).result


def _number_attribute(value: float, type_: ir.Type) -> ir.Attribute:
    if isinstance(type_, ir.FloatType):
        return ir.FloatAttr.get(type_, float(value))
    return ir.IntegerAttr.get(type_, int(value))


def _code(type_: ir.Type) -> str:
    return re.sub(r"\W+", "", str(type_))
