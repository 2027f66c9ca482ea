"""Comparison of graphs that :func:`torchmdla.read` makes with those of libtorch's importer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchmdla.importer.script_graph import convert_graph
from torchmdla.script.ir import Block, EnumValue, Graph, Node, Object, Program, StoredTensor, Value
from torchmdla.script.reading import read

# Nodes that are compared where their results are used: their places and their number have no meaning.
_INLINED = ("prim::Constant", "prim::Uninitialized")
# A number that libtorch counts over all programs of a process.
_IGNORED_ATTRIBUTES = frozenset({"warn_id"})


class _Comparison:
    """Comparison of two graphs up to the names of values."""

    def __init__(self) -> None:
        self._same: dict[Value, Value] = {}
        self._inlined: dict[Value, Node] = {}

    def graphs(self, read: Graph, expected: Graph) -> None:
        self._blocks(read, expected)

    def _blocks(self, read: Block, expected: Block) -> None:
        self._define(read.inputs, expected.inputs, "inputs")
        nodes, expected_nodes = self._nodes(read), self._nodes(expected)
        for node, expected_node in zip(nodes, expected_nodes, strict=False):
            self._compare_nodes(node, expected_node)
        assert len(nodes) == len(expected_nodes), (nodes[-1:], [node.op for node in expected_nodes[len(nodes) :]])
        self._values(read.outputs, expected.outputs, "outputs of a block")

    def _nodes(self, block: Block) -> list[Node]:
        for node in block.nodes:
            if node.op in _INLINED:
                self._inlined[node.outputs[0]] = node
        return [node for node in block.nodes if node.op not in _INLINED]

    def _compare_nodes(self, node: Node, expected: Node) -> None:
        assert node.op == expected.op, (node.op, node.source, expected.op)
        self._values(node.inputs, expected.inputs, f"{node.op} ({node.source})")
        names = node.attributes.keys() - _IGNORED_ATTRIBUTES
        assert names == expected.attributes.keys() - _IGNORED_ATTRIBUTES, (node.op, names, expected.attributes.keys())
        for name in names:
            left, right = node.attributes[name], expected.attributes[name]
            if isinstance(left, Graph):
                _Comparison().graphs(left, right)  # type: ignore[arg-type]
            elif name == "types":
                assert list(map(str, left)) == list(map(str, right))  # type: ignore[call-overload]
            else:
                assert left == right, (node.op, name, left, right)
        assert len(node.blocks) == len(expected.blocks)
        for block, expected_block in zip(node.blocks, expected.blocks, strict=True):
            self._blocks(block, expected_block)
        self._define(node.outputs, expected.outputs, node.op)

    def _define(self, values: Sequence[Value], expected: Sequence[Value], place: str) -> None:
        assert len(values) == len(expected), (place, len(values), len(expected))
        for value, other in zip(values, expected, strict=True):
            assert str(value.type) == str(other.type), (place, str(value.type), str(other.type))
            self._same[value] = other

    def _values(self, values: Sequence[Value], expected: Sequence[Value], place: str) -> None:
        assert len(values) == len(expected), (place, [str(v.type) for v in values], [str(v.type) for v in expected])
        for number, (value, other) in enumerate(zip(values, expected, strict=True)):
            node, expected_node = self._inlined.get(value), self._inlined.get(other)
            if node is None or expected_node is None:
                assert node is expected_node is None, (place, number, node, expected_node)
                assert self._same.get(value) is other, (place, number, value, other)
                continue
            assert node.op == expected_node.op, (place, node.op, expected_node.op)
            assert str(value.type) == str(other.type), (place, number, str(value.type), str(other.type))
            compare_constants(node.attributes.get("value"), expected_node.attributes.get("value"), place)


def compare_constants(read: Any, expected: Any, place: str) -> None:
    """Compare a constant with PyTorch's object."""
    if isinstance(read, StoredTensor):
        assert tuple(expected.shape) == read.shape, place
        assert str(expected.dtype).removeprefix("torch.") == read.dtype, place
        assert expected.layout is not torch.strided or expected.stride() == read.strides, place
    elif isinstance(read, list | tuple):
        assert isinstance(expected, list | tuple) and len(read) == len(expected), (place, read, expected)
        for left, right in zip(read, expected, strict=True):
            compare_constants(left, right, place)
    elif isinstance(read, EnumValue):
        assert (read.class_name, read.name) == (expected.class_name, expected.name), place
    elif isinstance(read, Object):
        pass  # compared with the classes
    elif isinstance(expected, torch.device):
        assert read == str(expected), place
    elif isinstance(read, float) and math.isnan(read):
        assert math.isnan(expected), place
    else:
        assert type(read) is type(expected) and read == expected, (place, read, expected)


def compare_graph(graph: Graph, expected: Any) -> None:
    """Compare a graph with one of libtorch."""
    _Comparison().graphs(graph, convert_graph(expected))


def compare_file(path: Path) -> int:
    """Compare all functions and methods of a file with libtorch's, and return the number of nodes."""
    program = read(path)
    unit: Any = torch._C.CompilationUnit()
    torch._C.import_ir_module(unit, str(path), None, {}, False)
    count = 0
    for function in unit.get_functions():
        graph = find_graph(program, function.qualified_name)
        try:
            compare_graph(graph, function.graph)
        except AssertionError as error:
            raise AssertionError(f"{path}: {function.qualified_name}: {error}") from error
        count += sum(1 for _ in graph.walk())
    return count


def find_graph(program: Program, name: str) -> Graph:
    """Return the function or method of a qualified name."""
    if name in program.functions:
        return program.functions[name]
    owner, _, method = name.rpartition(".")
    return program.classes[owner].methods[method]
