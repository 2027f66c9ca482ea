"""Python source of the language's nodes: containers, attributes, calls, objects and control flow."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchmdla.capture.script.inlining import CUSTOM, class_of
from torchmdla.capture.script.regions import values_read
from torchmdla.capture.script.slots import CHANGES
from torchmdla.script.ir import Block, Graph, Node, Program, Type

if TYPE_CHECKING:
    from torchmdla.capture.script.source import Source


def identifier(text: str) -> str:
    """Return a text as a name of Python."""
    return text if text.isidentifier() else "v" + "".join(c if c.isalnum() and c.isascii() else "_" for c in text)


def _write_list(source: Source, node: Node, depth: int) -> None:
    source.assign(node, f"[{', '.join(map(source.expression, node.inputs))}]", depth)


def _write_tuple(source: Source, node: Node, depth: int) -> None:
    operands = ", ".join(map(source.expression, node.inputs))
    type_ = node.outputs[0].type
    if type_.kind == "NamedTuple":
        class_ = source.variable(identifier(type_.name.rpartition(".")[2]), source.context.python_class(type_))
        source.assign(node, f"{class_}({operands})", depth)
    else:
        source.assign(node, f"({operands}{',' if len(node.inputs) == 1 else ''})", depth)


def _write_dict(source: Source, node: Node, depth: int) -> None:
    operands = [source.expression(value) for value in node.inputs]
    pairs = ", ".join(f"{key}: {value}" for key, value in zip(operands[::2], operands[1::2], strict=True))
    source.assign(node, f"{{{pairs}}}", depth)


def _write_unpacking(source: Source, node: Node, depth: int) -> None:
    operand = source.expression(node.inputs[0])
    if node.kind == "prim::ListUnpack":
        operand = f"{source.variable('unpack', _unpack)}({operand}, {len(node.outputs)})"
    if node.outputs:
        left = ", ".join(map(source.name, node.outputs)) + ("," if len(node.outputs) == 1 else "")
        source.line(depth, f"{left} = {operand}", node.source)


def _unpack(values: list[Any], count: int) -> list[Any]:
    if len(values) != count:
        raise RuntimeError(f"Expected {count} elements in a list but found {len(values)}")
    return values


def _write_slice(source: Source, node: Node, depth: int) -> None:
    begin, end = node.attributes["beg"], node.attributes["end"]
    source.assign(node, f"{source.expression(node.inputs[0])}[{begin}:{end}]", depth)


def attribute_of(node: Node) -> str:
    return str(node.attributes["name"])


def slot_of(name: str, node: Node, program: Program) -> str:
    """Return the dict of a module that has the attribute, or an empty string."""
    class_ = class_of(node.inputs[0].type, program)
    if class_ is None or not class_.is_module:
        return ""
    if name in class_.parameters:
        return "_parameters"
    if name in class_.buffers:
        return "_buffers"
    type_ = class_.attributes.get(name, Type("Any"))
    inner = class_of(type_, program)
    return "_modules" if inner is not None and inner.is_module and inner.type.kind == "Class" else ""


def _attribute(source: Source, node: Node) -> str:
    """Return the expression of an attribute, as quick as its object allows."""
    name = attribute_of(node)
    value = source.expression(node.inputs[0])
    if slot := slot_of(name, node, source.context.program):
        return f"{value}.{slot}[{name!r}]"
    class_ = class_of(node.inputs[0].type, source.context.program)
    is_module = class_ is not None and class_.is_module
    # An object of an interface may be a module. A module looks at every attribute that is set, which takes time.
    is_any_object = class_ is not None and class_.attributes.get(name, Type("Any")).kind == "Interface"
    is_slow = is_module and not is_any_object and node.op == "prim::SetAttr"
    if name.isidentifier() and not keyword.iskeyword(name) and not is_slow:
        return f"{value}.{name}"
    return f"{value}.__dict__[{name!r}]"


def _write_get(source: Source, node: Node, depth: int) -> None:
    source.assign(node, _attribute(source, node), depth)


def _write_set(source: Source, node: Node, depth: int) -> None:
    source.line(depth, f"{_attribute(source, node)} = {source.expression(node.inputs[1])}", node.source)
    if node.attributes["name"] == "training":
        source.line(depth, f"{source.variable('changes', CHANGES)}[0] += 1")


def _write_method(source: Source, node: Node, depth: int) -> None:
    value, *operands = map(source.expression, node.inputs)
    prefix = "" if node.inputs[0].type.name.startswith(CUSTOM) else "_script_"
    source.assign(node, f"{value}.{prefix}{node.attributes['name']}({', '.join(operands)})", depth)


def _write_function(source: Source, node: Node, depth: int) -> None:
    name = str(source.constants[node.inputs[0]])
    function = source.variable(identifier(name.rpartition(".")[2]), source.context.function(name))
    source.assign(node, f"{function}({', '.join(map(source.expression, node.inputs[1:]))})", depth)


def _write_object(source: Source, node: Node, depth: int) -> None:
    type_ = node.outputs[0].type
    class_ = source.variable(identifier(type_.name.rpartition(".")[2]), source.context.python_class(type_))
    source.assign(node, f"{class_}.__new__({class_})", depth)


def _write_is_instance(source: Source, node: Node, depth: int) -> None:
    test = source.variable("is_instance", source.context.is_instance)
    types = source.variable("types", tuple(node.attributes["types"]), is_new=True)  # type: ignore[arg-type]
    source.assign(node, f"{test}({source.expression(node.inputs[0])}, {types})", depth)


def _write_fork(source: Source, node: Node, depth: int) -> None:
    """Write a call of the forked graph. A block has no inputs: it becomes a graph with those that it reads."""
    graph = node.attributes.get("Subgraph")
    inputs = node.inputs
    if graph is None:
        block = node.blocks[0]
        read = list(dict.fromkeys(values_read(node)))
        free = [value for value in read if value not in source.constants]
        constants = [
            Node("prim::Constant", [], [value], {"value": source.constants[value]})
            for value in read
            if value in source.constants
        ]
        graph = Graph(free, [*constants, *block.nodes], block.outputs, f"{source.graph.name}.fork")
        inputs = [*node.inputs, *free]
    fork = source.variable("fork", source.context.fork)
    name = source.variable("forked", graph, is_new=True)
    source.assign(node, f"{fork}({name}, [{', '.join(map(source.expression, inputs))}])", depth)


def _write_if(source: Source, node: Node, depth: int) -> None:
    source.line(depth, f"if {source.expression(node.inputs[0])}:", node.source)
    for number, block in enumerate(node.blocks):
        if number and not (block.nodes or block.outputs):
            break
        if number:
            source.line(depth, "else:")
        source.filled(lambda block=block: _write_branch(source, node, block, depth + 1), depth + 1)  # type: ignore[misc]


def _write_branch(source: Source, node: Node, block: Block, depth: int) -> None:
    source.block(block, depth)
    source.move(node.outputs, block.outputs, depth)


def _write_body(source: Source, block: Block, depth: int) -> None:
    source.block(block, depth)
    source.move(block.inputs[1:], block.outputs[1:], depth)


def _write_loop(source: Source, node: Node, depth: int) -> None:
    block = node.blocks[0]
    number, *carried = block.inputs
    most, first, *initial = node.inputs
    following, *results = block.outputs
    source.move(carried, initial, depth)
    if source.constants.get(first) is True and source.constants.get(following) is True:
        source.line(depth, f"for {source.name(number)} in range({source.expression(most)}):", node.source)
        source.filled(lambda: _write_body(source, block, depth + 1), depth + 1)
    else:
        condition = source.new_name("condition")
        source.line(depth, f"{condition} = {source.expression(first)}", node.source)
        source.line(depth, f"{source.name(number)} = 0")
        source.line(depth, f"while {condition} and {source.name(number)} < {source.expression(most)}:", node.source)
        source.block(block, depth + 1)
        source.line(depth + 1, f"{condition} = {source.expression(following)}")
        source.move(carried, results, depth + 1)
        source.line(depth + 1, f"{source.name(number)} += 1")
    source.move(node.outputs, carried, depth)


WRITERS: Mapping[str, Callable[[Source, Node, int], None]] = {
    "prim::ListConstruct": _write_list,
    "prim::TupleConstruct": _write_tuple,
    "prim::DictConstruct": _write_dict,
    "prim::TupleUnpack": _write_unpacking,
    "prim::ListUnpack": _write_unpacking,
    "prim::TupleSlice": _write_slice,
    "prim::GetAttr": _write_get,
    "prim::SetAttr": _write_set,
    "prim::CallMethod": _write_method,
    "prim::CallFunction": _write_function,
    "prim::CreateObject": _write_object,
    "prim::isinstance": _write_is_instance,
    "prim::fork": _write_fork,
    "prim::If": _write_if,
    "prim::Loop": _write_loop,
}
