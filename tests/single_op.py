"""Graphs that call operators, from the operators' schemas and sample arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of `quantized_decomposed`

from torchmdla.importer.interpreter import run_and_record
from torchmdla.importer.script_graph import convert_graph
from torchmdla.importer.types import dtype_number
from torchmdla.script.ir import Graph

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
    """Return TorchScript's registry by schema name with overload."""
    registry = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        registry.setdefault(name, schema)
    return registry


class Call(NamedTuple):
    """Operator, by its schema name, with sample arguments."""

    name: str
    arguments: Sequence[object]


def graph_of(
    name: str, arguments: Sequence[object], *, copy: bool, runtime_floats: bool = False
) -> tuple[Graph, list[object]]:
    """Return the graph of one call and its inputs, as :func:`graph_of_calls`."""
    graph, inputs, _ = graph_of_calls([Call(name, arguments)], copy=lambda name: copy, runtime_floats=runtime_floats)
    return graph, inputs


def graph_of_calls(
    calls: Sequence[Call], *, copy: Callable[[str], bool], runtime_floats: bool = False
) -> tuple[Graph, list[object], list[int]]:
    """Return a graph of independent calls, its inputs (the tensors), and the number of outputs of each call.

    Args:
        calls: the calls.
        copy: whether the results of an operator are cloned, which is necessary for views.
        runtime_floats: floats are inputs, too, instead of constants.
    """
    writer = _Writer(runtime_floats)
    outputs, counts = [], []
    for call in calls:
        results = writer.call(call)
        outputs += [writer.copied(result) for result in results] if copy(call.name) else results
        counts.append(len(results))
    graph = convert_graph(torch._C.parse_ir(writer.text(outputs)))
    chosen = Counter(node.op for node in graph.nodes)
    assert Counter(call.name for call in calls) <= chosen, "another overload was chosen"
    return graph, writer.inputs, counts


def _is_repeated(value: object, type_: torch._C.JitType) -> bool:
    return isinstance(value, int) and type_.kind() == "ListType"


class _Writer:
    def __init__(self, runtime_floats: bool) -> None:
        self._runtime_floats = runtime_floats
        self.lines: list[str] = []
        self.inputs: list[object] = []
        self._arguments: list[str] = []
        self._count = 0

    def text(self, outputs: Sequence[str]) -> str:
        body = "".join(f"  {line}\n" for line in self.lines)
        return f"graph({', '.join(self._arguments)}):\n{body}  return ({', '.join(outputs)})\n"

    def call(self, call: Call) -> list[str]:
        """Write one call and return the names of its results. The elements of a list have separate names."""
        schema = schemas()[call.name]
        arguments = [*call.arguments, *(argument.default_value for argument in schema.arguments[len(call.arguments) :])]
        operands = [
            self.operand([value] * (argument.N or 1) if _is_repeated(value, argument.type) else value, argument.type)
            for value, argument in zip(arguments, schema.arguments, strict=True)
        ]
        returns_list = schema.returns[0].type.kind() == "ListType"
        results = [self._new() for _ in schema.returns]
        self._assign(results, "Tensor[]" if returns_list else "Tensor", f"{schema.name}({', '.join(operands)})")
        if returns_list:
            (elements,), _ = run_and_record(convert_graph(torch._C.parse_ir(self.text(results))), self.inputs)
            assert isinstance(elements, list)
            whole, results = results[0], [self._new() for _ in elements]
            self._assign(results, "Tensor", f"prim::ListUnpack({whole})")
        return results

    def copied(self, value: str) -> str:
        """Write a clone and return its name."""
        layout, clone = self._new(), self._new()
        self._assign([layout], "int", "prim::Constant[value=0]()")
        self._assign([clone], "Tensor", f"aten::clone({value}, {layout})")
        return clone

    def _new(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _assign(self, names: Sequence[str], type_: str, operation: str) -> None:
        self.lines.append(f"{', '.join(f'{name} : {type_}' for name in names)} = {operation}")

    def operand(self, value: object, type_: torch._C.JitType) -> str:
        """Return the name of a new value: a constant, a list, or an input of the graph for a tensor."""
        name = self._new()
        if isinstance(value, torch.Tensor):
            self._arguments.append(f"{name} : Tensor")
            self.inputs.append(value)
        elif self._runtime_floats and isinstance(value, float):
            self._arguments.append(f"{name} : float")
            self.inputs.append(value)
        elif isinstance(value, list | tuple):
            element = (type_.getElementType() if type_.kind() == "OptionalType" else type_).getElementType()  # type: ignore[attr-defined]
            items = [self.operand(item, element) for item in value]
            self._assign([name], f"{_ELEMENTS[element.kind()]}[]", f"prim::ListConstruct({', '.join(items)})")
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
