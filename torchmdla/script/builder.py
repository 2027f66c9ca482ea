"""Builder of graphs: nodes are inserted into the block that is open, constants once for the whole graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from torchmdla.script.ir import Block, Constant, EnumValue, Graph, Node, Object, StoredTensor, Type, Value
from torchmdla.script.types import BOOL, COMPLEX, FLOAT, INT, NONE, STR, TENSOR, list_of, unify_all

_PLAIN: Mapping[type, Type] = {type(None): NONE, bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR}


class GraphBuilder:
    """Graph under construction.

    Attributes:
        graph: the graph.
        block: the block that is open.
        line: the line of the code, for the nodes' ``source``.
    """

    def __init__(self, graph: Graph, record: str) -> None:
        self.graph = graph
        self.block: Block = graph
        self.record = record
        self.line = 0
        self.producers: dict[Value, Node] = {}
        # Values that are read with a declared type other than their own.
        self.replaced: dict[Value, Value] = {}
        self._constants: dict[object, Value] = {}
        self._names = 0

    def value(self, type_: Type) -> Value:
        """Return a new value with a name of its own."""
        self._names += 1
        return Value(str(self._names), type_)

    def input(self, block: Block, type_: Type) -> Value:
        """Add an input to a block."""
        block.inputs.append(self.value(type_))
        return block.inputs[-1]

    def insert(
        self, op: str, inputs: Sequence[Value], types: Sequence[Type], attributes: Mapping[str, Constant] | None = None
    ) -> Node:
        """Insert a node into the block that is open."""
        node = Node(op, list(inputs), list(map(self.value, types)), dict(attributes or {}))
        node.source = f"{self.record}:{self.line}"
        self.block.nodes.append(node)
        for output in node.outputs:
            self.producers[output] = node
        return node

    def insert_one(
        self, op: str, inputs: Sequence[Value], type_: Type, attributes: Mapping[str, Constant] | None = None
    ) -> Value:
        """Insert a node with one result, and return the result."""
        return self.insert(op, inputs, (type_,), attributes).outputs[0]

    def constant(self, value: Constant, type_: Type | None = None) -> Value:
        """Return a constant. Equal constants are one value."""
        type_ = type_ or type_of_constant(value)
        key = (type_, constant_key(value))
        result = self._constants.get(key)
        if result is None:
            result = self._constants[key] = self.value(type_)
            self.producers[result] = Node("prim::Constant", [], [result], {"value": value})
        return result

    def finish(self) -> None:
        """Add the constants to the graph, and replace values that were read with another type."""
        self.graph.nodes[:0] = [self.producers[value] for value in self._constants.values()]
        replace(self.graph, self.replaced)

    def producer(self, value: Value) -> Node | None:
        """Return the node of a value; None for an input."""
        return self.producers.get(self.replaced.get(value, value))

    def is_constant(self, value: Value) -> bool:
        """Return whether the value is a constant."""
        node = self.producer(value)
        return node is not None and node.op == "prim::Constant"

    def constant_value(self, value: Value) -> Constant:
        """Return the value of a constant; None for other values."""
        node = self.producer(value)
        return node.attributes["value"] if node is not None and node.op == "prim::Constant" else None

    @contextlib.contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Open a block."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def tuple(self, values: Sequence[Value], type_: Type | None = None) -> Value:
        """Insert a tuple."""
        type_ = type_ or Type("Tuple", tuple(value.type for value in values))
        return self.insert_one("prim::TupleConstruct", values, type_)

    def list(self, element: Type, values: Sequence[Value]) -> Value:
        """Insert a list."""
        return self.insert_one("prim::ListConstruct", values, list_of(element))

    def unpack(self, value: Value) -> Sequence[Value]:
        """Return the elements of a tuple."""
        node = self.producer(value)
        if node is not None and node.op == "prim::TupleConstruct":
            return node.inputs
        return self.insert("prim::TupleUnpack", [value], value.type.arguments).outputs

    def cast(self, value: Value, type_: Type) -> Value:
        """Insert a cast without a check."""
        return self.insert_one("prim::unchecked_cast", [value], type_)


def constant_key(value: Constant) -> object:
    """Return a key that is equal for equal constants: 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, StoredTensor | Object):
        return id(value)
    if isinstance(value, list | tuple):
        return (type(value), *map(constant_key, value))
    if isinstance(value, dict):
        return (dict, *((constant_key(key), constant_key(item)) for key, item in value.items()))
    if isinstance(value, EnumValue):
        return (value.class_name, value.name)
    return (type(value), repr(value))


def type_of_constant(value: Constant) -> Type:
    """Return the type of a constant."""
    if type_ := _PLAIN.get(type(value)):
        return type_
    if isinstance(value, StoredTensor):
        return TENSOR
    if isinstance(value, EnumValue):
        return Type("Enum", name=value.class_name)
    if isinstance(value, Object):
        return Type("Class", name=value.class_name)
    if isinstance(value, list):
        return list_of((value and unify_all(list(map(type_of_constant, value)))) or TENSOR)
    if isinstance(value, tuple):
        return Type("Tuple", tuple(map(type_of_constant, value)))
    if isinstance(value, dict):
        keys = unify_all(list(map(type_of_constant, value))) if value else STR
        values = unify_all(list(map(type_of_constant, value.values()))) if value else TENSOR
        return Type("Dict", (keys or STR, values or TENSOR))
    return Type("Any")


def replace(block: Block, replaced: dict[Value, Value]) -> None:
    """Replace values where they are used."""
    if not replaced:
        return

    def resolve(value: Value) -> Value:
        while value in replaced:
            value = replaced[value]
        return value

    def visit(block: Block) -> None:
        for node in block.nodes:
            node.inputs = list(map(resolve, node.inputs))
            for inner in node.blocks:
                visit(inner)
        block.outputs = list(map(resolve, block.outputs))

    visit(block)
