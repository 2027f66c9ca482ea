"""Conversion of the Torch dialect to the aten dialect, op by op.

Functions and ops keep their names. Literals become ``aten.constant``, value tensors become builtin tensors, and lists
become tuples. Ops are not decomposed or folded. The input may come from torchmdla's importer or torch-mlir's FX
importer. Control flow and other types of TorchScript are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from torchmdla.aten import constants, types
from torchmdla.aten.dialect import CAST, AtenError, diagnostics_as_error, register, verify
from torchmdla.aten.schemas import OpSchema, registry


def from_torch(module: ir.Module | str) -> ir.Module:
    """Return the module in the aten dialect; ``module`` itself, in the Torch dialect, is not changed.

    Functions keep their names, and ops keep their locations. The result has the module's context, or a new one if
    ``module`` is text.

    Raises:
        AtenError: the text is not valid, or the aten dialect cannot express an op or a type; the message names it.
    """
    source = _parse(module) if isinstance(module, str) else module
    register(source.context)
    with source.context, source.operation.location:
        target = ir.Module.create()
        for op in source.body.operations:
            if op.operation.name == "func.func":
                _Function(op, target.body).convert()
            elif op.operation.name not in _IGNORED_OPS:
                raise AtenError(
                    f"{op.operation.name} cannot be expressed in the aten dialect ({op.operation.location})"
                )
    verify(target)
    return target


def _parse(text: str) -> ir.Module:
    context = ir.Context()
    torch_dialect.register_dialect(context)
    with diagnostics_as_error("the module is not valid"), context:
        return ir.Module.parse(text)


_TENSOR = re.compile(r"!torch\.v?tensor<(?:\[(?P<sizes>[^\]]*)\]|\*),\s*(?P<element>.+)>")
_ELEMENT = re.compile(r"^si(\d+)$")
_SCALARS: Mapping[str, str] = {
    "!torch.int": "i64",
    "!torch.float": "f64",
    "!torch.bool": "i1",
    "!torch.number": "f64",
    "!torch.none": "none",
    "!torch.str": types.STRING,
    "!torch.Device": types.STRING,
}


def _type(type_: ir.Type) -> ir.Type:
    """Return the builtin type for a type of the Torch dialect; other types are not changed."""
    text = str(type_)
    if not text.startswith("!torch."):
        return type_
    if text in _SCALARS:
        return ir.Type.parse(_SCALARS[text])
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise AtenError(f"type {text} cannot be expressed in the aten dialect")
    element = _ELEMENT.sub(r"i\1", match["element"])
    if match["sizes"] is None:
        return ir.Type.parse(f"tensor<*x{element}>")
    sizes = "".join(f"{size.strip()}x" for size in match["sizes"].split(",") if size.strip())
    return ir.Type.parse(f"tensor<{sizes}{element}>")


class _Function:
    """Conversion of one function, which maps every value of the source to its converted value."""

    def __init__(self, source: Any, target: ir.Block) -> None:
        self._source = source
        self._target = target
        self._values: dict[ir.Value, ir.Value] = {}

    def convert(self) -> None:
        signature = ir.FunctionType(ir.TypeAttr(self._source.attributes["function_type"]).value)
        blocks = self._source.regions[0].blocks
        if len(blocks) > 1:
            name = ir.StringAttr(self._source.attributes["sym_name"]).value
            raise AtenError(f"function @{name} has control flow, which the aten dialect has no form for")
        arguments = [_type(type_) for type_ in signature.inputs]
        with ir.InsertionPoint(self._target), self._source.operation.location:
            function = ir.Operation.create("func.func", attributes=self._attributes(), regions=1)
        if not len(blocks):
            _set_type(function, arguments, [_type(type_) for type_ in signature.results])
            return
        body = function.regions[0].blocks.append(*arguments)
        self._values.update(zip(blocks[0].arguments, body.arguments, strict=True))
        with ir.InsertionPoint(body):
            for op in blocks[0].operations:
                with op.operation.location:
                    self._op(op.operation)
        # The result types are read from the body: a literal has a narrower type than a computed number.
        returned = body.operations[len(body.operations) - 1]
        _set_type(function, arguments, [value.type for value in returned.operands])

    def _attributes(self) -> dict[str, ir.Attribute]:
        """Return name, visibility, and the arguments' attributes without those of the Torch dialect."""
        source = self._source.attributes
        attributes = {name: source[name] for name in ("sym_name", "sym_visibility", "function_type") if name in source}
        if "arg_attrs" in source:
            marks = [{mark.name: mark.attr for mark in ir.DictAttr(argument)} for argument in source["arg_attrs"]]
            others = [{k: v for k, v in mark.items() if not k.startswith("torch.")} for mark in marks]
            attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(mark) for mark in others])
        return attributes

    def _op(self, op: Any) -> None:
        try:
            if op.name in _IGNORED_OPS:
                return
            results = _RULES[op.name](self, op) if op.name in _RULES else self._call(op)
        except AtenError as error:
            raise AtenError(f"{error} ({op.location})") from None
        for result, value in zip(op.results, results, strict=False):
            self._values[result] = value

    def operand(self, value: ir.Value) -> ir.Value:
        """Return the converted value of a value of the source."""
        if value not in self._values:
            raise AtenError(f"the result of {_producer_name(value)} cannot be expressed in the aten dialect")
        return self._values[value]

    def operands(self, op: Any) -> list[ir.Value]:
        """Return the converted operands of an op of the source."""
        return [self.operand(value) for value in op.operands]

    def _call(self, op: Any) -> Sequence[ir.Value]:
        schema = _schema(op)
        if len(op.operands) != len(schema.arguments):
            raise AtenError(f"{op.name} has {len(op.operands)} operands, {schema.qualified} {len(schema.arguments)}")
        results = [_list_type(result) or _type(result.type) for result in op.results]
        return _operation(schema.name, results, self.operands(op))


def _set_type(function: Any, arguments: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(arguments), list(results)))


def _schema(op: Any) -> OpSchema:
    """Return the schema of ``torch.aten.add.Tensor`` or ``torch.operator "torch.aten.add.Tensor"``."""
    name = ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else op.name
    namespace, _, rest = name.removeprefix("torch.").partition(".")
    schema = registry().get(f"aten::{rest}" if namespace == "aten" else _EQUIVALENT_OPS.get(name, ""))
    if schema is None:
        raise AtenError(f"{name} cannot be expressed in the aten dialect")
    return schema


def _list_type(result: ir.Value) -> ir.Type | None:
    """Return the tuple type for a list of tensors, or None for other values.

    The length is known only where the list is unpacked.
    """
    if not str(result.type).startswith("!torch.list<"):
        return None
    for use in result.uses:
        if use.owner.operation.name == "torch.prim.ListUnpack":
            return ir.TupleType.get_tuple([_type(element.type) for element in use.owner.operation.results])
    raise AtenError(f"the length of the list that {_producer_name(result)} makes is not known")


def _producer_name(value: ir.Value) -> str:
    return str(value.owner.name) if isinstance(value, ir.OpResult) else "an argument"


# Ops of other namespaces with the operands of an ATen op.
_EQUIVALENT_OPS: Mapping[str, str] = {
    "torch.prims.squeeze": "aten::squeeze.dims",
    "torch.prims.sqrt": "aten::sqrt",
    "torch.prims.collapse": "aten::flatten.using_ints",
    "torch.prims.view_of": "aten::alias",
}

_Rule = Callable[[_Function, Any], Sequence[ir.Value]]


def _operation(name: str, results: Sequence[ir.Type], operands: Sequence[ir.Value]) -> list[ir.Value]:
    return list(ir.Operation.create(name, results=list(results), operands=list(operands)).results)


def _tensor_literal(function: _Function, op: Any) -> Sequence[ir.Value]:
    type_ = _type(op.results[0].type)
    text, _, _ = str(op.attributes["value"]).rpartition(" : ")
    try:
        value = ir.Attribute.parse(f"{text} : {type_}")
    except TypeError:
        raise AtenError(f"the bindings of MLIR cannot hold a literal of type {type_}") from None
    return [constants.constant_of_attribute(value, type_)]


def _list(function: _Function, op: Any) -> Sequence[ir.Value]:
    """Convert a list: literals become one literal, other elements are packed."""
    elements = function.operands(op)
    known = [_constant_value(element) for element in elements]
    if all(isinstance(value, bool | int | float) for value in known) and len({type(value) for value in known}) <= 1:
        return [constants.constant(known)]
    return _operation(CAST, [ir.TupleType.get_tuple([element.type for element in elements])], elements)


def _constant_value(value: ir.Value) -> object:
    is_constant = isinstance(value, ir.OpResult) and value.owner.name == "aten.constant"
    return constants.read(value.owner) if is_constant else None


def _list_unpack(function: _Function, op: Any) -> Sequence[ir.Value]:
    value = function.operand(op.operands[0])
    if not isinstance(value.type, ir.TupleType):
        raise AtenError(f"{op.name} takes apart a value of type {value.type}")
    return _operation(CAST, types.elements_of(value.type), [value])


def _number_to_tensor(function: _Function, op: Any) -> Sequence[ir.Value]:
    operands = [*function.operands(op), *[constants.constant(None)] * 4]
    return _operation("aten.scalar_tensor", [_type(op.results[0].type)], operands)


def _convert(function: _Function, op: Any) -> Sequence[ir.Value]:
    operands = [*function.operands(op), *map(constants.constant, (False, False, None))]
    return _operation("aten.to.dtype", [_type(op.results[0].type)], operands)


def _overwrite(function: _Function, op: Any) -> Sequence[ir.Value]:
    source, target = function.operands(op)
    _operation("aten.copy_", [target.type], [target, source, constants.constant(False)])
    return []


def _check(function: _Function, op: Any) -> Sequence[ir.Value]:
    ir.Operation.create("cf.assert", operands=function.operands(op), attributes={"msg": op.attributes["message"]})
    return []


def _return(function: _Function, op: Any) -> Sequence[ir.Value]:
    return _operation("func.return", [], function.operands(op))


# These ops name symbolic sizes; the types have the needed information.
_IGNORED_OPS = frozenset(("torch.bind_symbolic_shape", "torch.symbolic_int", "torch.initialize.global_slots"))

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(
        (f"torch.constant.{kind}" for kind in ("bool", "int", "float", "str", "device")),
        lambda function, op: [constants.constant(constants.read(op))],
    ),
    "torch.constant.none": lambda function, op: [constants.constant(None)],
    **dict.fromkeys(("torch.vtensor.literal", "torch.tensor.literal"), _tensor_literal),
    **dict.fromkeys(("torch.prim.ListConstruct", "torch.prim.TupleConstruct"), _list),
    **dict.fromkeys(("torch.prim.ListUnpack", "torch.prim.TupleUnpack"), _list_unpack),
    "torch.prim.NumToTensor.Scalar": _number_to_tensor,
    "torch.prims.convert_element_type": _convert,
    **dict.fromkeys(
        ("torch.derefine", "torch.copy.to_tensor", "torch.copy.to_vtensor", "torch.tensor_static_info_cast"),
        lambda function, op: function.operands(op),
    ),
    "torch.overwrite.tensor.contents": _overwrite,
    "torch.runtime.assert": _check,
    **dict.fromkeys(("func.return", "return"), _return),
}
