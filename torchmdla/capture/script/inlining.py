"""Inlining of calls, so that regions extend over methods and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchmdla.script.ir import Block, Class, Graph, Node, Program, Type, Value

# Prefix of PyTorch's own classes.
CUSTOM = "__torch__.torch.classes."

# Calls that are nested more deeply stay calls, which ends recursion. So do those of graphs that became too large.
_MOST_LEVELS = 64
_MOST_NODES = 100_000


def inline_calls(graph: Graph, program: Program) -> Graph:
    """Return a graph with the bodies of the methods and functions that it calls. Calls of interfaces remain."""
    inliner = _Inliner(program)
    values: dict[Value, Value] = {value: value for value in graph.inputs}
    result = Graph(graph.inputs, name=graph.name, parameters=graph.parameters, defaults=graph.defaults)
    result.returns = graph.returns
    inliner.copy(graph, result, values, 0)
    return result


def callee_of(node: Node, program: Program, functions: Mapping[Value, str]) -> Graph | None:
    """Return the graph that a node calls, or None if it is not a call, or depends on the object."""
    if node.op == "prim::CallFunction":
        return program.functions.get(functions.get(node.inputs[0], ""))
    if node.op == "prim::CallMethod":
        class_ = class_of(node.inputs[0].type, program)
        name = str(node.attributes["name"])
        if class_ is not None and class_.type.kind == "Class" and name in class_.methods:
            return class_.methods[name]
    return None


def class_of(type_: Type, program: Program) -> Class | None:
    """Return the program's class of objects, or None if PyTorch has the class."""
    return None if not type_.name or type_.name.startswith(CUSTOM) else program.classes.get(type_.name)


class _Inliner:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._functions: dict[Value, str] = {}
        self._count = 0

    def copy(self, source: Block, target: Block, values: dict[Value, Value], level: int) -> None:
        """Append the nodes and set the outputs of ``source``, in terms of ``values``."""
        for node in source.nodes:
            if node.op == "prim::Constant" and node.outputs[0].type.kind == "Function":
                self._functions[node.outputs[0]] = str(node.attributes["value"])
            callee = callee_of(node, self._program, self._functions)
            if callee is not None and level < _MOST_LEVELS and self._count < _MOST_NODES:
                self._inline(node, callee, target, values, level)
            else:
                target.nodes.append(self._copy_node(node, values, level))
        target.outputs = [values[value] for value in source.outputs]

    def _inline(self, call: Node, callee: Graph, target: Block, values: dict[Value, Value], level: int) -> None:
        operands = call.inputs[1:] if call.op == "prim::CallFunction" else call.inputs
        inner = dict(zip(callee.inputs, (values[operand] for operand in operands), strict=True))
        body = Block()
        self.copy(callee, body, inner, level + 1)
        target.nodes += body.nodes
        values.update(zip(call.outputs, body.outputs, strict=True))

    def _copy_node(self, node: Node, values: dict[Value, Value], level: int) -> Node:
        self._count += 1
        inputs = [values[value] for value in node.inputs]
        blocks = []
        for block in node.blocks:
            blocks.append(Block(_new_values(block.inputs, values)))
            self.copy(block, blocks[-1], values, level)
        result = Node(node.op, inputs, _new_values(node.outputs, values), node.attributes, blocks, node.source)
        if node.op == "prim::Constant" and node.outputs[0] in self._functions:
            self._functions[result.outputs[0]] = self._functions[node.outputs[0]]
        return result


def _new_values(originals: Sequence[Value], values: dict[Value, Value]) -> list[Value]:
    copies = [Value(value.name, value.type) for value in originals]
    values.update(zip(originals, copies, strict=True))
    return copies
