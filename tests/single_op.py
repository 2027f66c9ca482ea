"""A graph that calls one operator, from the operator's schema and sample arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of `quantized_decomposed`
from recording import dtype_number, run_and_record

_ELEMENTS = {
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "TensorType": "Tensor",
    "OptionalType": "Tensor?",
}


@lru_cache(maxsize=1)
def schemas() -> dict[str, torch._C.FunctionSchema]:
    """TorchScript's registry by schema name with overload."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        found.setdefault(name, schema)
    return found


def graph_of(
    name: str, arguments: Sequence[object], *, copy: bool, open_floats: bool = False
) -> tuple[torch._C.Graph, list[object]]:
    """The graph of one call and its inputs (the tensors); ``copy`` clones the results, for ops that return views.

    ``open_floats``: floats are inputs, too, instead of constants.
    """
    schema = schemas()[name]
    writer = _Writer(open_floats)
    given = [*arguments, *(argument.default_value for argument in schema.arguments[len(arguments) :])]
    operands = [
        writer.operand([value] * (argument.N or 1) if _is_repeated(value, argument.type) else value, argument.type)
        for value, argument in zip(given, schema.arguments, strict=True)
    ]
    returns_list = schema.returns[0].type.kind() == "ListType"
    outputs = [f"%o{index}" for index in range(len(schema.returns))]
    types = ["Tensor[]" if returns_list else "Tensor"] * len(outputs)
    typed = ", ".join(f"{output} : {type_}" for output, type_ in zip(outputs, types, strict=True))
    writer.lines.append(f"{typed} = {schema.name}({', '.join(operands)})")
    if returns_list:
        (pieces,), _ = run_and_record(torch._C.parse_ir(writer.text(outputs)), writer.inputs)
        outputs = [f"%u{index}" for index in range(len(pieces))]  # type: ignore[arg-type]
        writer.lines.append(", ".join(f"{output} : Tensor" for output in outputs) + " = prim::ListUnpack(%o0)")
    if copy:
        writer.lines.append("%format : int = prim::Constant[value=0]()")
        writer.lines += [f"{output}c : Tensor = aten::clone({output}, %format)" for output in outputs]
        outputs = [f"{output}c" for output in outputs]
    graph = torch._C.parse_ir(writer.text(outputs))
    assert name in [node.schema().partition("(")[0] for node in graph.nodes()], "another overload was chosen"
    return graph, writer.inputs


def _is_repeated(value: object, type_: torch._C.JitType) -> bool:
    return isinstance(value, int) and type_.kind() == "ListType"


class _Writer:
    def __init__(self, open_floats: bool) -> None:
        self._open_floats = open_floats
        self.lines: list[str] = []
        self.inputs: list[object] = []
        self._arguments: list[str] = []
        self._count = 0

    def text(self, outputs: Sequence[str]) -> str:
        body = "".join(f"  {line}\n" for line in self.lines)
        return f"graph({', '.join(self._arguments)}):\n{body}  return ({', '.join(outputs)})\n"

    def operand(self, value: object, type_: torch._C.JitType) -> str:
        """The name of a new value: a constant, a list, or an input of the graph for a tensor."""
        self._count += 1
        name = f"%v{self._count}"
        if isinstance(value, torch.Tensor):
            self._arguments.append(f"{name} : Tensor")
            self.inputs.append(value)
        elif self._open_floats and isinstance(value, float):
            self._arguments.append(f"{name} : float")
            self.inputs.append(value)
        elif isinstance(value, list | tuple):
            element = (type_.getElementType() if type_.kind() == "OptionalType" else type_).getElementType()  # type: ignore[attr-defined]
            items = [self.operand(item, element) for item in value]
            self.lines.append(f"{name} : {_ELEMENTS[element.kind()]}[] = prim::ListConstruct({', '.join(items)})")
        else:
            self.lines.append(f"{name} : {_constant(value, type_)}")
        return name


def _constant(value: object, type_: torch._C.JitType) -> str:
    if value is None:
        return "NoneType = prim::Constant()"
    if isinstance(value, torch.dtype):
        value = dtype_number(value)
    if isinstance(value, str):
        kind = "Device" if "Device" in str(type_) else "str"
        return f'{kind} = prim::Constant[value="{value}"]()'
    return f"{type(value).__name__} = prim::Constant[value={int(value) if isinstance(value, bool) else value}]()"
