"""Regions: parts of a program's graphs that PyTorch's interpreter runs, in which groups are formed.

A region is a sequence of nodes of one block. Its inputs and outputs cross the border between Python and PyTorch's
interpreter, which copies lists and dicts. Therefore a region may read a list or dict from outside, but not write to it
or return it. A list or dict that leaves the region has no other reference inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchmdla.capture.script.inlining import CUSTOM
from torchmdla.importer.schemas import find_schema
from torchmdla.script.ir import Block, Node, Type, Value


@dataclass(eq=False)
class Region:
    """Nodes that run together, with the values that they read and those that are used after them."""

    nodes: list[Node]
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)


_SCALARS = frozenset({"Tensor", "int", "float", "bool", "complex", "str", "number", "NoneType", "Device"})
_CONTAINERS = frozenset({"List", "Dict"})

# Nodes of the language that PyTorch's interpreter runs without Python's objects.
_LANGUAGE = frozenset(
    {
        "prim::Constant", "prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct", "prim::ListUnpack",
        "prim::TupleUnpack", "prim::TupleIndex", "prim::If", "prim::Loop", "prim::unchecked_cast",
        "prim::Uninitialized", "prim::tolist", "prim::RaiseException",
    }
)  # fmt: skip

# Operators with a schema that need Python, or that change the modes in which groups are compiled.
_OUTSIDE = frozenset(
    {
        "aten::set_grad_enabled", "aten::backward", "aten::wait", "aten::manual_seed", "aten::sort.any",
        "aten::sorted.any", "prim::Print", "prim::PythonOp", "prim::ModuleContainerIndex", "aten::save",
        "aten::get_autocast_dtype",
    }
)  # fmt: skip


def is_plain(type_: Type) -> bool:
    """Return whether values of the type cannot be changed in place by the language, apart from tensors."""
    if type_.kind in ("Optional", "Tuple"):
        return all(map(is_plain, type_.arguments))
    return type_.kind in _SCALARS or (type_.kind == "Class" and type_.name.startswith(CUSTOM))


def is_portable(type_: Type) -> bool:
    """Return whether values of the type may be in a region."""
    if type_.kind in _CONTAINERS or type_.kind in ("Optional", "Tuple"):
        return all(map(is_portable, type_.arguments))
    return is_plain(type_)


def has_container(type_: Type) -> bool:
    """Return whether a value of the type is, or contains, a list or dict."""
    return type_.kind in _CONTAINERS or any(map(has_container, type_.arguments))


def divide(block: Block, constants: Iterable[Value]) -> list[Node | Region]:
    """Return the nodes of a block with regions in place of the nodes that may be in them.

    A region computes with tensors. ``constants`` are values that are known to all regions.
    """
    division = _Division(block, set(constants))
    while excluded := division.find_violations():
        division.outside |= excluded
    return division.items()


class _Division:
    def __init__(self, block: Block, constants: set[Value]) -> None:
        self._block = block
        self._constants = constants
        self._reads = {id(node): set(values_read(node)) for node in block.nodes}
        self._used = set(_values_used(block))
        self.outside: set[int] = {id(node) for node in block.nodes if not _is_allowed(node)}
        self._regions: list[Region] = []

    def items(self) -> list[Node | Region]:
        regions = {id(region.nodes[0]): region for region in self._form()}
        inside = {id(node): region for region in regions.values() for node in region.nodes}
        result: list[Node | Region] = []
        for node in self._block.nodes:
            if id(node) in regions:
                result.append(regions[id(node)])
            elif id(node) not in inside:
                result.append(node)
        return result

    def find_violations(self) -> set[int]:
        """Return nodes that cannot be in a region because a list or dict would cross its border."""
        return {id(node) for region in self._form() for node in self._violations(region)}

    def _form(self) -> Iterator[Region]:
        run: list[Node] = []
        for node in [*self._block.nodes, None]:
            if node is not None and id(node) not in self.outside:
                run.append(node)
                continue
            if any(map(_computes_with_tensors, run)):
                yield self._complete(_trimmed(run))
            run = []

    def _complete(self, nodes: list[Node]) -> Region:
        members = set(map(id, nodes))
        defined = {value: None for node in nodes for value in node.outputs}
        inputs = {
            value: None
            for node in nodes
            for value in values_read(node)
            if value not in defined and value not in self._constants
        }
        used = set(self._block.outputs)
        for node in self._block.nodes:
            if id(node) not in members:
                used |= self._reads[id(node)]
        return Region(nodes, list(inputs), [value for value in defined if value in used])

    def _violations(self, region: Region) -> Iterator[Node]:
        outside = {value for value in region.inputs if has_container(value.type)}
        leaving = {value for value in region.outputs if has_container(value.type)}
        for node in region.nodes:
            reads = self._reads[id(node)]
            if (
                any(not _only_reads(inner, value) for value in outside & reads for inner in _with_inner(node))
                or any(not _is_new(node, value) for value in leaving.intersection(node.outputs))
                or any(self._refers_to(inner, value) for value in leaving & reads for inner in _with_inner(node))
            ):
                yield node

    def _refers_to(self, node: Node, value: Value) -> bool:
        """Return whether a node keeps or returns a list or dict that it reads."""
        if any(value in block.outputs for block in node.blocks):
            return True
        if value not in node.inputs or node.blocks:
            return False
        schema = find_schema(node.op)
        if schema is None or node.op in _IDENTITIES:
            return True
        if not any(operand.is_write for operand in schema.arguments):
            return False
        # The operator may keep the value in its first operand, or return that.
        return node.inputs[0] is not value or any(
            has_container(result.type) and result in self._used for result in node.outputs
        )


def _trimmed(nodes: list[Node]) -> list[Node]:
    """Return the nodes up to the last that computes with tensors, from the first that these need."""
    last = max(place for place, node in enumerate(nodes) if _computes_with_tensors(node))
    first = 0
    while not _computes_with_tensors(nodes[first]) and not _is_read(nodes[first], nodes[first + 1 : last + 1]):
        first += 1
    return nodes[first : last + 1]


def _is_read(node: Node, others: Sequence[Node]) -> bool:
    return any(value in node.outputs for other in others for value in values_read(other))


def values_read(node: Node) -> Iterator[Value]:
    """Yield the values from outside that a node and its blocks read."""
    yield from node.inputs
    for block in node.blocks:
        defined = set(block.inputs)
        for inner in block.nodes:
            yield from (value for value in values_read(inner) if value not in defined)
            defined.update(inner.outputs)
        yield from (value for value in block.outputs if value not in defined)


def _values_used(block: Block) -> Iterator[Value]:
    yield from block.outputs
    for node in block.nodes:
        yield from node.inputs
        for inner in node.blocks:
            yield from _values_used(inner)


def _computes_with_tensors(node: Node) -> bool:
    return any(
        _holds_tensors(value.type)
        for inner in _with_inner(node)
        for value in [*inner.inputs, *inner.outputs]
        if inner.op not in _LANGUAGE or inner.op == "prim::tolist"
    )


def _holds_tensors(type_: Type) -> bool:
    return type_.kind == "Tensor" or any(map(_holds_tensors, type_.arguments))


def _with_inner(node: Node) -> Iterator[Node]:
    yield node
    for block in node.blocks:
        yield from block.walk()


def _is_allowed(node: Node) -> bool:
    return all(_is_allowed_alone(inner) for inner in _with_inner(node)) and all(
        is_portable(value.type) for inner in _with_inner(node) for block in inner.blocks for value in block.inputs
    )


def _is_allowed_alone(node: Node) -> bool:
    if node.op in _OUTSIDE or not all(is_portable(value.type) for value in [*node.inputs, *node.outputs]):
        return False
    return node.op in _LANGUAGE or find_schema(node.op) is not None


def _only_reads(node: Node, value: Value) -> bool:
    """Return whether a node does not write to a list or dict, and does not return it."""
    if any(value in block.outputs for block in node.blocks):
        return False
    if value not in node.inputs:
        return True
    schema = find_schema(node.op)
    if schema is None or any(map(has_container, value.type.arguments)):
        return False
    places = [place for place, operand in enumerate(node.inputs) if operand is value]
    if any(place >= len(schema.arguments) or schema.arguments[place].is_write for place in places):
        return False
    # An element is not an alias of a list of tensors or numbers.
    return node.op not in _IDENTITIES


# Operators that return one of their operands.
_IDENTITIES = frozenset({"aten::_unwrap_optional", "prim::unchecked_unwrap_optional", "prim::IfThenElse", "aten::Size"})


def _is_new(node: Node, value: Value) -> bool:
    """Return whether a node makes a list or dict that nothing else refers to."""
    if node.op in ("prim::ListConstruct", "prim::DictConstruct", "prim::tolist"):
        return not any(has_container(operand.type) for operand in node.inputs)
    schema = find_schema(node.op)
    if schema is None or node.op in _IDENTITIES or any(operand.is_write for operand in schema.arguments):
        return False
    return not any(map(has_container, value.type.arguments)) or value.type.kind not in _CONTAINERS
