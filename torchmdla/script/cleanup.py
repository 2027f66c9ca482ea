"""Passes that PyTorch runs on each graph when it loads a file (``runCleanupPasses`` of ``ir_emitter.cpp``).

Tuples that are only packed and unpacked are removed, dead nodes as well, constants of immutable types are computed,
and the outputs of branches and loops get the order of their uses.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from torchmdla.script.builder import GraphBuilder, constant_key, replace, type_of_constant
from torchmdla.script.ir import Block, Constant, Graph, Node, Value
from torchmdla.script.operators import OPERATORS
from torchmdla.script.schemas import Table
from torchmdla.script.types import is_mutable, is_subtype

# Nodes of the language that stay although their results are not used.
_EFFECTS = frozenset({"prim::SetAttr", "prim::CallFunction", "prim::CallMethod", "prim::Enter", "prim::Exit"})
# Results of these are not computed, although their inputs are constants. Two have any number of arguments.
_NOT_FOLDED = frozenset(
    {
        "prim::Constant",
        "prim::Uninitialized",
        "prim::unchecked_unwrap_optional",
        "aten::format",
        "aten::percentFormat",
    }
)


def clean(graph: Graph, operators: Table) -> None:
    """Run the passes on a graph."""
    nodes = list(graph.walk())
    kinds = {node.op for node in nodes}
    has_control_flow = not kinds.isdisjoint(("prim::If", "prim::Loop"))
    if "prim::RaiseException" in kinds:
        _Exits().run(graph)
    replaced: dict[Value, Value] = {}
    if not kinds.isdisjoint(("prim::TupleUnpack", "prim::TupleIndex")):
        _lower_tuples(graph, _producers(graph), replaced)
        replace(graph, replaced)
    remove_dead(graph, operators)
    if _Folding(graph).run():
        remove_dead(graph, operators)
    if has_control_flow:
        _OrderedOutputs(graph).run()
    graph.nodes = _used_constants(graph) + [node for node in graph.nodes if node.op != "prim::Constant"]


def _producers(block: Block) -> dict[Value, Node]:
    return {output: node for node in block.walk() for output in node.outputs}


def _used_constants(graph: Graph) -> list[Node]:
    used = {value for node in graph.walk() for value in node.inputs} | set(graph.outputs)
    used.update(value for node in graph.walk() for block in node.blocks for value in block.outputs)
    return [node for node in graph.nodes if node.op == "prim::Constant" and node.outputs[0] in used]


class _Exits:
    """Removal of nodes behind an exception (``exit_transforms.cpp``). Their results are uninitialised."""

    def run(self, block: Block) -> bool:
        """Return whether the block always raises."""
        for number, node in enumerate(block.nodes):
            always = [self.run(inner) for inner in node.blocks]
            if node.op == "prim::RaiseException" or (node.op == "prim::If" and all(always)):
                self._cut(block, number + 1)
                return True
        return False

    @staticmethod
    def _cut(block: Block, start: int) -> None:
        removed = [node for node in block.nodes[start:] if node.op != "prim::Constant"]
        lost = {output for node in removed for output in node.outputs}
        del block.nodes[start:]
        empty: dict[Value, Value] = {}
        for value in block.outputs:
            if value in lost and value not in empty:
                node = Node("prim::Uninitialized", outputs=[Value(value.name, value.type)])
                block.nodes.insert(0, node)
                empty[value] = node.outputs[0]
        block.outputs = [empty.get(value, value) for value in block.outputs]


def _lower_tuples(block: Block, producers: dict[Value, Node], replaced: dict[Value, Value]) -> None:
    """Connect the uses of a tuple's elements with the values that the tuple was made of."""
    for node in block.nodes:
        if node.op in ("prim::TupleUnpack", "prim::TupleIndex"):
            source = node.inputs[0]
            while source in replaced:
                source = replaced[source]
            producer = producers.get(source)
            if producer is not None and producer.op == "prim::TupleConstruct":
                _connect(node, producer.inputs, producers, replaced)
        for inner in node.blocks:
            _lower_tuples(inner, producers, replaced)


def _connect(node: Node, elements: Sequence[Value], producers: dict[Value, Node], replaced: dict[Value, Value]) -> None:
    if node.op == "prim::TupleUnpack":
        replaced.update(zip(node.outputs, elements, strict=True))
        return
    index = producers.get(node.inputs[1])
    position = index.attributes["value"] if index is not None and index.op == "prim::Constant" else None
    if isinstance(position, int) and -len(elements) <= position < len(elements):
        replaced[node.outputs[0]] = elements[position]


# Dead nodes


def remove_dead(graph: Graph, operators: Table) -> None:
    """Remove nodes without effects whose results are not used, as ``dead_code_elimination.cpp`` does."""
    _DeadCode(graph, operators).run()


class _DeadCode:
    def __init__(self, graph: Graph, operators: Table) -> None:
        self._graph = graph
        self._operators = operators
        self._live: set[Value] = set(graph.outputs)
        self._marked: set[Node] = set()
        self._returned: set[Block] = set()
        self._effects: dict[Node, bool] = {}
        self._uses = Counter(_uses(graph))

    def run(self) -> None:
        self._mark_block(self._graph, None, ())
        self._sweep(self._graph)

    def _has_effects(self, node: Node) -> bool:
        known = self._effects.get(node)
        if known is None:
            known = node.op in _EFFECTS or any(
                self._has_effects(inner) for block in node.blocks for inner in block.nodes
            )
            known = known or _has_effects(node.op, self._operators)
            self._effects[node] = known
        return known

    def _mark(self, node: Node, owners: Sequence[Node]) -> bool:
        if node in self._marked:
            return False
        for owner in (node, *owners):
            if owner not in self._marked:
                self._marked.add(owner)
                self._live.update(owner.inputs)
        return True

    def _mark_block(self, block: Block, owner: Node | None, owners: Sequence[Node]) -> bool:
        marked = False
        for node in block.nodes:
            if self._has_effects(node):
                marked |= self._mark(node, owners)
        if owner is not None and block not in self._returned:
            self._returned.add(block)
            self._mark_outputs(block, owner)
            marked = True
        for node in reversed(block.nodes):
            if node.op == "prim::Loop":
                while self._mark_block(node.blocks[0], node, (*owners, node)):
                    marked = True
            else:
                for inner in node.blocks:
                    marked |= self._mark_block(inner, node, (*owners, node))
            if any(output in self._live for output in node.outputs):
                marked |= self._mark(node, owners)
        return marked

    def _mark_outputs(self, block: Block, owner: Node) -> None:
        if owner.op != "prim::Loop":
            outputs = zip(block.outputs, owner.outputs, strict=True)
            self._live.update(inner for inner, outer in outputs if outer in self._live)
            return
        self._live.add(block.outputs[0])
        for inner, value, outer in zip(block.inputs[1:], block.outputs[1:], owner.outputs, strict=True):
            if outer in self._live or self._uses[inner]:
                self._live.add(value)

    def _sweep(self, block: Block) -> None:
        nodes: list[Node] = []
        for node in reversed(block.nodes):
            self._remove_outputs(node)
            for inner in node.blocks:
                self._sweep(inner)
            if node in self._marked or any(self._uses[output] for output in node.outputs):
                nodes.append(node)
            else:
                self._uses.subtract(_uses_of(node))
        block.nodes = nodes[::-1]

    def _remove_outputs(self, node: Node) -> None:
        if node.op == "prim::If":
            dead = [place for place, output in enumerate(node.outputs) if not self._uses[output]]
            for place in reversed(dead):
                del node.outputs[place]
                for block in node.blocks:
                    self._uses[block.outputs.pop(place)] -= 1
        elif node.op == "prim::Loop":
            (body,) = node.blocks
            for place in reversed(range(len(node.outputs))):
                if not self._uses[node.outputs[place]] and not self._uses[body.inputs[place + 1]]:
                    remove_carried(node, place)
                    # The counts of what the loop no longer passes on go down with it.
                    self._uses = Counter(_uses(self._graph))


def remove_carried(loop: Node, place: int) -> None:
    """Remove a variable that a loop carries."""
    (body,) = loop.blocks
    del loop.outputs[place], loop.inputs[place + 2], body.inputs[place + 1], body.outputs[place + 1]


def _uses(block: Block) -> Iterator[Value]:
    for node in block.nodes:
        yield from _uses_of(node)
    yield from block.outputs


def _uses_of(node: Node) -> Iterator[Value]:
    yield from node.inputs
    for block in node.blocks:
        yield from _uses(block)


def _has_effects(op: str, operators: Table) -> bool:
    """Return whether an operator does more than compute its results."""
    return any(schema.has_effects for schema in operators.lookup(op.partition(".")[0]) if schema.name == op)


# Constants


class _Folding:
    """Computation of nodes whose inputs are constants of immutable types (``constant_propagation.cpp``)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = {
            node.outputs[0]: node.attributes["value"] for node in graph.walk() if node.op == "prim::Constant"
        }
        self._keys = {self._key(value): value for value in self._constants}
        self._replaced: dict[Value, Value] = {}
        self._added: list[Node] = []
        self._has_changed = False

    def run(self) -> bool:
        """Return whether the graph has changed."""
        self._visit(self._graph)
        replace(self._graph, self._replaced)
        self._graph.nodes[:0] = self._added
        return self._has_changed

    def _key(self, value: Value) -> object:
        return value.type, constant_key(self._constants[value])

    def _resolve(self, value: Value) -> Value:
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def _visit(self, block: Block) -> None:
        nodes: list[Node] = []
        for node in block.nodes:
            if node.op == "prim::Constant":
                nodes.append(node)
                continue
            node.inputs = list(map(self._resolve, node.inputs))
            are_constant = all(value in self._constants for value in node.inputs)
            if node.op == "prim::If":
                nodes += self._visit_if(node, are_constant)
            elif node.op == "prim::Loop":
                nodes += self._visit_loop(node)
            elif not (are_constant and self._fold(node)):
                nodes.append(node)
        block.nodes = nodes
        block.outputs = list(map(self._resolve, block.outputs))

    def _visit_if(self, node: Node, is_constant: bool) -> list[Node]:
        if is_constant:
            block = node.blocks[0 if self._constants[node.inputs[0]] else 1]
            self._visit(block)
            self._replaced.update(zip(node.outputs, block.outputs, strict=True))
            self._has_changed = True
            return block.nodes
        for block in node.blocks:
            self._visit(block)
        first, second = node.blocks
        for place in reversed(range(len(node.outputs))):
            left, right = first.outputs[place], second.outputs[place]
            if left is right or (
                left in self._constants and right in self._constants and self._key(left) == self._key(right)
            ):
                self._replaced[node.outputs[place]] = left
                del node.outputs[place], first.outputs[place], second.outputs[place]
                self._has_changed = True
        return [node]

    def _are_equal(self, left: Value, right: Value) -> bool:
        are_constant = left in self._constants and right in self._constants
        return are_constant and self._key(left) == self._key(right)

    def _visit_loop(self, node: Node) -> list[Node]:
        count, condition = (self._constants.get(value) for value in node.inputs[:2])
        if condition is False or (isinstance(count, int) and count <= 0):
            self._replaced.update(zip(node.outputs, node.inputs[2:], strict=True))
            self._has_changed = True
            return []
        (body,) = node.blocks
        self._visit(body)
        for place in reversed(range(len(node.outputs))):
            if body.inputs[place + 1] is body.outputs[place + 1]:
                self._replaced[node.outputs[place]] = node.inputs[place + 2]
                self._replaced[body.inputs[place + 1]] = node.inputs[place + 2]
                remove_carried(node, place)
                self._has_changed = True
        return [node]

    def _fold(self, node: Node) -> bool:
        """Replace a node by constants, and return whether that was possible."""
        if node.op in _NOT_FOLDED or node.op in _EFFECTS or node.blocks:
            return False
        if any(is_mutable(value.type) for value in (*node.inputs, *node.outputs)):
            return False
        results = _results(node, [self._constants[value] for value in node.inputs])
        if results is None:
            return False
        for output, result in zip(node.outputs, results, strict=True):
            self._replaced[output] = self._constant(output, result)
        self._has_changed = True
        return True

    def _constant(self, output: Value, result: Constant) -> Value:
        type_ = output.type if result is None or not is_plain(result) else type_of_constant(result)
        key = (type_, constant_key(result))
        if key not in self._keys:
            value = Value(f"{output.name}.constant", type_)
            self._constants[value] = result
            self._keys[key] = value
            self._added.append(Node("prim::Constant", [], [value], {"value": result}))
        return self._keys[key]


def is_plain(value: Constant) -> bool:
    """Return whether a constant's type follows from its value."""
    return isinstance(value, bool | int | float | complex | str)


def _results(node: Node, values: list[Constant]) -> Sequence[Constant] | None:
    """Return the results of a node for constant inputs; None if they are not known."""
    if function := _FOLDED.get(node.op):
        return function(node, values)
    operator = OPERATORS.get(node.op)
    if operator is None or len(node.outputs) != 1:
        return None
    try:
        return [operator(*values)]
    except Exception:  # an operator that fails does so when the program runs
        return None


_FOLDED: dict[str, Callable[[Node, list[Constant]], Sequence[Constant] | None]] = {
    "prim::TupleConstruct": lambda node, values: [tuple(values)],
    "prim::TupleUnpack": lambda node, values: list(values[0]),  # type: ignore[call-overload]
    "prim::TupleIndex": lambda node, values: [values[0][values[1]]],  # type: ignore[index]
    "prim::unchecked_cast": lambda node, values: values,
    "prim::isinstance": lambda node, values: [
        any(is_subtype(type_of_constant(values[0]), type_) for type_ in node.attributes["types"])  # type: ignore[attr-defined]
    ],
}


# Order of outputs


class _OrderedOutputs:
    """Order of the outputs of branches and loops by their first use (``CanonicalizeOutputs``)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._first_use: dict[Value, int] = {}

    def run(self) -> None:
        self._number_uses()
        self._visit(self._graph)

    def _number_uses(self) -> None:
        self._first_use = {}
        for number, value in enumerate(_uses(self._graph)):
            self._first_use.setdefault(value, number)

    def _visit(self, block: Block) -> None:
        for node in reversed(block.nodes):
            if node.blocks:
                uses = [self._first_use.get(output, sys.maxsize) for output in node.outputs]
                order = sorted(range(len(uses)), key=lambda place: uses[place])
                if order != list(range(len(uses))):
                    _permute(node, order)
                    self._number_uses()
            for inner in node.blocks:
                self._visit(inner)


def _permute(node: Node, order: Sequence[int]) -> None:
    is_loop = node.op == "prim::Loop"
    node.outputs = [node.outputs[place] for place in order]
    if is_loop:
        node.inputs[2:] = [node.inputs[place + 2] for place in order]
        node.blocks[0].inputs[1:] = [node.blocks[0].inputs[place + 1] for place in order]
    for block in node.blocks:
        block.outputs[is_loop:] = [block.outputs[place + is_loop] for place in order]


def move_constants_in(builder: GraphBuilder, subgraph: Graph) -> list[Value]:
    """Make a closed graph of nodes that use values from outside, and return these values.

    Constants are copied into the graph, but for numbers: PyTorch emits literals of numbers outside of closures. The
    other values become its inputs.
    """
    inside = {output for node in subgraph.walk() for output in node.outputs}
    inside.update(value for node in subgraph.walk() for block in node.blocks for value in block.inputs)
    captured: dict[Value, Value] = {}
    constants: dict[Value, Value] = {}
    for value in _uses(subgraph):
        value = builder.replaced.get(value, value)
        if value in inside or value in captured or value in constants:
            continue
        is_copied = builder.is_constant(value) and not _is_literal(builder.constant_value(value))
        (constants if is_copied else captured)[value] = builder.value(value.type)
    replace(subgraph, {**builder.replaced, **captured, **constants})
    subgraph.inputs = list(captured.values())
    copies = [
        Node("prim::Constant", [], [copy], {"value": builder.constant_value(value)})
        for value, copy in constants.items()
    ]
    subgraph.nodes[:0] = copies
    return list(captured)


def _is_literal(value: Constant) -> bool:
    return type(value) in (int, float) and math.copysign(1, value) > 0  # type: ignore[arg-type]
