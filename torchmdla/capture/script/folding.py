"""Branches whose conditions are known: tests for None, and the modes of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchmdla.script.ir import Block, Graph, Node, Value

# Types whose values may be None.
_OPTIONAL = frozenset({"Optional", "Union", "Any", "NoneType"})


def fold_branches(graph: Graph, modes: Mapping[Value, bool]) -> Graph:
    """Return a graph without the branches that are never taken, given the values of some booleans."""
    result = Graph(graph.inputs, name=graph.name, parameters=graph.parameters, defaults=graph.defaults)
    result.returns = graph.returns
    folder = _Folder(modes)
    folder.append(graph.nodes, result)
    result.outputs = folder.current(graph.outputs)
    return result


class _Folder:
    def __init__(self, modes: Mapping[Value, bool]) -> None:
        self._known = dict(modes)
        self._nones: set[Value] = set()
        self._replaced: dict[Value, Value] = {}

    def current(self, values: Sequence[Value]) -> list[Value]:
        """Return the values that replace others."""
        return [self._replaced.get(value, value) for value in values]

    def append(self, nodes: Sequence[Node], target: Block) -> None:
        for node in nodes:
            inputs = self.current(node.inputs)
            if node.op == "prim::If" and inputs[0] in self._known:
                taken = node.blocks[0 if self._known[inputs[0]] else 1]
                self.append(taken.nodes, target)
                self._replaced.update(zip(node.outputs, self.current(taken.outputs), strict=True))
                continue
            blocks = [self._copy(block) for block in node.blocks]
            if node.op == "prim::If":
                for block in blocks:
                    target.nodes += _take_queries(block)
            target.nodes.append(Node(node.op, inputs, node.outputs, node.attributes, blocks, node.source))
            self._note(node, inputs)

    def _copy(self, block: Block) -> Block:
        result = Block(block.inputs)
        self.append(block.nodes, result)
        result.outputs = self.current(block.outputs)
        return result

    def _note(self, node: Node, inputs: Sequence[Value]) -> None:
        """Note the result of a node if it is known."""
        if node.op == "prim::Constant":
            value = node.attributes["value"]
            if value is None:
                self._nones.add(node.outputs[0])
            elif isinstance(value, bool):
                self._known[node.outputs[0]] = value
        elif node.op in ("aten::__is__", "aten::__isnot__"):
            is_same = self._is_none(inputs)
            if is_same is not None:
                self._known[node.outputs[0]] = is_same is (node.op == "aten::__is__")
        elif node.op in _LOGIC and all(value in self._known for value in inputs):
            self._known[node.outputs[0]] = _LOGIC[node.op]([self._known[value] for value in inputs])

    def _is_none(self, inputs: Sequence[Value]) -> bool | None:
        """Return whether one value is None, if the other is None; or None if that is unknown."""
        nones = [value in self._nones or value.type.kind == "NoneType" for value in inputs]
        if all(nones):
            return True
        if any(nones) and any(value.type.kind not in _OPTIONAL for value in inputs):
            return False
        return None


def _take_queries(block: Block) -> list[Node]:
    """Remove queries of tensors from a block that raises an exception, and return them.

    A group then returns the answers instead of the tensors.
    """
    if not any(node.op == "prim::RaiseException" for node in block.nodes):
        return []
    defined = {value for node in block.nodes for value in node.outputs}
    taken = [node for node in block.nodes if node.op in _QUERIES and not defined.intersection(node.inputs)]
    block.nodes = [node for node in block.nodes if node not in taken]
    return taken


# Operators on tensors that cannot fail.
_QUERIES = frozenset({"aten::dim", "aten::size", "prim::dtype", "aten::numel", "prim::device"})

_LOGIC: Mapping[str, Callable[[Sequence[bool]], bool]] = {
    "aten::__not__": lambda values: not values[0],
    "aten::__and__.bool": all,
    "aten::__or__.bool": any,
}
