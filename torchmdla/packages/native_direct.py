"""Models that are one group, whose inputs and outputs are tensors: the runtime calls them without a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchmdla.packages.native_capture import GROUP, Calls, Captured
from torchmdla.packages.native_file import VARIES, Code, Direct, GroupCodes, Port, tensor_places
from torchmdla.script.ir import Graph, Node, Value

_LISTS = frozenset({"prim::TupleConstruct", "prim::ListConstruct"})


def direct_model(captured: Captured, calls: Calls, groups: Sequence[GroupCodes]) -> Direct | None:
    """Return the inputs and outputs of a model that is one group. Return None for another program."""
    if list(captured.methods) != ["forward"] or len(groups) != 1 or not groups[0].codes:
        return None
    (graph,), (codes,) = captured.methods.values(), [groups[0].codes]
    nodes = [node for node in graph.walk() if node.op != "prim::Constant" and node.op not in _LISTS]
    inputs = [value for value in graph.inputs if value.type.kind != "Class"]
    returned = list(_flatten(graph))
    if len(nodes) != 1 or nodes[0].kind != GROUP or not _are_tensors(calls["forward"], len(inputs)):
        return None
    (node,) = nodes
    if not (set(node.inputs) <= set(inputs) and set(returned) <= set(node.outputs)):
        return None
    numbers = [node.outputs.index(value) for value in returned]
    if any(code.outputs[number][0] != "tensor" for code in codes for number in numbers):
        return None
    return Direct(
        _input_ports(inputs, node, calls["forward"], codes),
        [_output_port(value, number, codes) for value, number in zip(_names(returned), numbers, strict=True)],
        [inputs.index(value) for value in node.inputs],
        numbers,
    )


def _flatten(graph: Graph) -> Iterator[Value]:
    """Yield the returned values without the lists and tuples that contain them."""
    lists = {output: node for node in graph.walk() if node.op in _LISTS for output in node.outputs}

    def walk(values: Sequence[Value]) -> Iterator[Value]:
        for value in values:
            yield from walk(lists[value].inputs) if value in lists else (value,)

    return walk(graph.outputs)


def _are_tensors(calls: Sequence[tuple[Any, ...]], count: int) -> bool:
    """Return whether all arguments are tensors, and each is of one dtype and rank."""
    if not all(len(call) == count and all(isinstance(value, torch.Tensor) for value in call) for call in calls):
        return False
    return len({tuple((value.dtype, value.dim()) for value in call) for call in calls}) == 1


def _input_ports(inputs: Sequence[Value], node: Node, calls: Any, codes: Sequence[Code]) -> list[Port]:
    ports = []
    for number, value in enumerate(inputs):
        seen = [list(call[number].shape) for call in calls]
        if value in node.inputs:
            place = node.inputs.index(value)
            seen = [_known_sizes(code, place) for code in codes]
        ports.append(Port(_names([value])[0], calls[0][number].dtype, _common(seen)))
    return ports


def _known_sizes(code: Code, place: int) -> list[int]:
    begin, rank = list(tensor_places(code.signature))[place]
    symbols = code.symbols[1] if code.symbols else (VARIES,) * len(code.signature)
    return [code.signature[entry] if symbols[entry] == VARIES else VARIES for entry in range(begin, begin + rank)]


def _output_port(name: str, number: int, codes: Sequence[Code]) -> Port:
    seen = [[VARIES if isinstance(size, tuple) else int(size) for size in code.outputs[number][1][2]] for code in codes]
    return Port(name, codes[0].outputs[number][1][1], _common(seen))


def _common(seen: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(column[0] if len(set(column)) == 1 else VARIES for column in zip(*seen, strict=True))


def _names(values: Sequence[Value]) -> list[str]:
    """Return the values' names without their unique numbers. Names that are only numbers become those of outputs."""
    return [f"output{k}" if value.name.isdigit() else value.name.partition(".")[0] for k, value in enumerate(values)]
