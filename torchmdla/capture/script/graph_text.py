"""Regions as graphs of PyTorch, by way of the text that PyTorch prints graphs as."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchmdla.capture.script.regions import Region
from torchmdla.script.ir import Block, Constant, Node, Type, Value


def make_graph(region: Region, constants: Mapping[Value, Constant]) -> tuple[torch._C.Graph, list[Value]]:
    """Return the graph of a region, and the constants that are its last inputs because the text cannot have them."""
    text = _Text(constants)
    lines = list(text.lines(region.nodes, 1))
    inputs = [*region.inputs, *text.passed]
    head = ", ".join(f"%{text.name(value)} : {type_text(value.type)}" for value in inputs)
    results = ", ".join(f"%{text.name(value)}" for value in region.outputs)
    constant_lines = [f"  {line}" for line in text.written.values()]
    source = "\n".join([f"graph({head}):", *constant_lines, *lines, f"  return ({results})", ""])
    graph = torch._C.parse_ir(source)
    try:
        torch._C._jit_pass_constant_propagation(graph)
    except RuntimeError:  # an operator on constants fails, and is perhaps not reached
        graph = torch._C.parse_ir(source)
    return graph, text.passed


def type_text(type_: Type) -> str:
    """Return a type as PyTorch's parser of graphs reads it."""
    inner = [type_text(argument) for argument in type_.arguments]
    writer = _TYPES.get(type_.kind)
    return writer(inner) if writer is not None else type_.name or type_.kind


_TYPES: Mapping[str, Callable[[Sequence[str]], str]] = {
    "List": lambda inner: f"{inner[0]}[]",
    "Optional": lambda inner: f"{inner[0]}?",
    "Dict": lambda inner: f"Dict({inner[0]}, {inner[1]})",
    "Tuple": lambda inner: f"({', '.join(inner)})",
    "number": lambda inner: "Scalar",
}


class _Text:
    def __init__(self, constants: Mapping[Value, Constant]) -> None:
        self._constants = constants
        self._names: dict[Value, str] = {}
        self.written: dict[Value, str] = {}
        self.passed: list[Value] = []

    def name(self, value: Value) -> str:
        """Return the name of a value, and note a constant."""
        if value in self._names:
            return self._names[value]
        name = self._names[value] = f"v{len(self._names)}"
        if value in self._constants:
            literal = _literal(self._constants[value])
            if literal is None:
                self.passed.append(value)
            else:
                type_ = "NoneType" if self._constants[value] is None else type_text(value.type)
                self.written[value] = f"%{name} : {type_} = prim::Constant{literal}()"
        return name

    def lines(self, nodes: Sequence[Node], depth: int) -> Iterator[str]:
        for node in nodes:
            yield from self._node(node, "  " * depth, depth)

    def _node(self, node: Node, indent: str, depth: int) -> Iterator[str]:
        operands = ", ".join(f"%{self.name(value)}" for value in node.inputs)
        results = ", ".join(f"%{self.name(value)} : {type_text(value.type)}" for value in node.outputs)
        place = f'[source="{node.source}"]' if node.source and '"' not in node.source else ""
        yield f"{indent}{results + ' = ' if results else ''}{node.kind}{place}({operands})"
        for number, block in enumerate(node.blocks):
            yield from self._block(block, number, indent + "  ", depth)

    def _block(self, block: Block, number: int, indent: str, depth: int) -> Iterator[str]:
        inputs = ", ".join(f"%{self.name(value)} : {type_text(value.type)}" for value in block.inputs)
        yield f"{indent}block{number}({inputs}):"
        yield from self.lines(block.nodes, depth + 2)
        yield f"{indent}  -> ({', '.join(f'%{self.name(value)}' for value in block.outputs)})"


def _literal(value: Constant) -> str | None:
    """Return the attribute of a constant's node, or None if the text cannot have it."""
    writer = _LITERALS.get(type(value))
    return None if writer is None else writer(value)


def _float(value: float) -> str | None:
    text = repr(value)
    # The parser reads the sign as an operator, which loses that of zero.
    return f"[value={text}]" if math.isfinite(value) and (value or text[0] != "-") else None


def _is_simple(text: str) -> bool:
    return text.isascii() and text.isprintable() and not {'"', "\\"}.intersection(text)


_LITERALS: Mapping[type, Callable[[Any], str | None]] = {
    type(None): lambda value: "",
    bool: lambda value: f"[value={int(value)}]",
    int: lambda value: f"[value={value}]" if -(2**63) < value < 2**63 else None,
    float: _float,
    list: lambda value: f"[value={value}]" if value and all(type(item) is int for item in value) else None,
    str: lambda value: f'[value="{value}"]' if _is_simple(value) else None,
}
