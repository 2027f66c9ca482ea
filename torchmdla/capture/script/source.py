"""Python source of a program's functions: control flow is Python's own, and regions run in PyTorch's interpreter."""

from __future__ import annotations

import keyword
import linecache
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchmdla import _C
from torchmdla.capture.script import calls
from torchmdla.capture.script.graph_text import make_graph
from torchmdla.capture.script.inlining import callee_of, class_of
from torchmdla.capture.script.nodes import WRITERS, attribute_of, identifier, slot_of
from torchmdla.capture.script.regions import Region, divide
from torchmdla.capture.script.slots import CHANGES
from torchmdla.importer.schemas import find_schema
from torchmdla.script.ir import Block, Constant, Graph, Node, Program, Type, Value
from torchmdla.script.numbers import wrap

if TYPE_CHECKING:
    from types import CodeType


class Context(Protocol):
    """Program to which a function belongs."""

    program: Program

    def python_class(self, type_: Type) -> type:
        """Return the Python class of objects and named tuples of a type."""

    def constant(self, value: Constant) -> Any:
        """Return a constant as Python's and PyTorch's objects."""

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the program."""

    def is_instance(self, value: Any, types: Sequence[Type]) -> bool:
        """Return whether a value has one of the types."""

    def fork(self, graph: Graph, arguments: Sequence[Any]) -> Any:
        """Return the future of a graph's result."""


class Source:
    """Python source of one function, for modules in known modes.

    Attributes:
        text: the source.
        places: the place in the user's program of each line.
        variables: the functions, constants and regions that the source names.
        regions: the regions, by name.
    """

    def __init__(self, graph: Graph, context: Context, modes: Mapping[Value, bool]) -> None:
        self.variables: dict[str, Any] = {"append": list.append, "wrap": wrap, "is_grad_enabled": torch.is_grad_enabled}
        self.regions: dict[str, _C.ScriptRegion] = {}
        self.places: list[str] = []
        self._lines: list[str] = []
        self.graph = graph
        self.context = context
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set(self.variables) | set(keyword.kwlist)
        self.constants = {**_constants(graph, context), **modes}
        self._mutated = _mutated(graph, context.program)
        self._weights: set[Value] = set()
        self._slots: dict[Value, Node] = {}
        self._read_slots: set[Value] = set()
        self._bound: dict[str, tuple[str, list[Value]]] = {}  # name → region, and its last inputs
        self._write()
        self.text = "\n".join(self._lines) + "\n"

    def compile(self, file: str) -> Callable[..., Any]:
        """Return the function. ``file`` is its file name in tracebacks."""
        code: CodeType = compile(self.text, file, "exec")
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        namespace = dict(self.variables)
        exec(code, namespace)
        return namespace["function"]  # type: ignore[no-any-return]

    # --- lines -------------------------------------------------------------------------------------

    def _write(self) -> None:
        self.line(0, f"def function({', '.join(map(self.name, self.graph.inputs))}):")
        hoisted = list(self._hoisted())
        in_slots = [node for node in hoisted if slot_of(attribute_of(node), node, self.context.program)]
        if len(in_slots) >= _FEWEST_SLOTS:
            self._slots = {node.outputs[0]: node for node in in_slots}
        head, self._lines, places, self.places = self._lines, [], self.places, []
        for node in hoisted:
            if node.outputs[0] not in self._slots:
                self._node(node, 1)
        self.block(self._without(self.graph, set(map(id, hoisted))), 1)
        results = [self.expression(value) for value in self.graph.outputs]
        self.line(1, f"return {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}")
        body, self._lines, body_places, self.places = self._lines, head, self.places, places
        if self._slots:
            self._write_slots()
        self._lines += body
        self.places += body_places

    def _write_slots(self) -> None:
        """Write reads of parameters, buffers and submodules. The module has their values from the last call."""
        changes, module = self.variable("changes", CHANGES), self.name(self.graph.inputs[0])
        key = repr(f"_slots_of_{self.graph.name}")
        known = self.new_name("known")
        read = [self.name(value) for value in self._slots if value in self._read_slots]
        names = "".join(f", {name}" for name in [*read, *self._bound])
        self.line(1, f"{known} = {module}.__dict__.get({key})")
        self.line(1, f"if {known} is None or {known}[0] != {changes}[0]:")
        for node in self._slots.values():
            self._node(node, 2)
        for name, (region, values) in self._bound.items():
            self.line(2, f"{name} = {region}.bind({', '.join(map(self.expression, values))})")
        self.line(2, f"{module}.__dict__[{key}] = {changes}[0]{names},")
        self.line(1, "else:")
        self.line(2, f"_{names or ','} = {known}")

    def line(self, depth: int, text: str, place: str = "") -> None:
        self._lines.append("    " * depth + text)
        self.places.append(place)

    def _hoisted(self) -> Iterator[Node]:
        """Yield reads of modules' attributes that the function does not set. They go before everything else."""
        known: set[Value] = set(self.graph.inputs)
        for node in self.graph.walk():
            if node.op != "prim::GetAttr" or self._mutated is None or node.attributes["name"] in self._mutated:
                continue
            if node.outputs[0] in self.constants:
                continue
            class_ = class_of(node.inputs[0].type, self.context.program)
            if class_ is not None and class_.is_module and node.inputs[0] in known:
                known.add(node.outputs[0])
                if node.attributes["name"] in class_.parameters | class_.buffers:
                    self._weights.add(node.outputs[0])
                yield node

    def _without(self, block: Block, skipped: set[int]) -> Block:
        """Return the block without constants and hoisted nodes."""
        result = Block(block.inputs, outputs=block.outputs)
        for node in block.nodes:
            if node.op == "prim::Constant" or id(node) in skipped or self.constants.keys() & set(node.outputs):
                continue
            inner = [self._without(inner, skipped) for inner in node.blocks]
            result.nodes.append(Node(node.op, node.inputs, node.outputs, node.attributes, inner, node.source))
        return result

    def block(self, block: Block, depth: int) -> None:
        self._items(divide(block, self.constants), depth)

    def _items(self, items: list[Node | Region], depth: int) -> None:
        place = 0
        while place < len(items):
            item = items[place]
            place += 1
            if isinstance(item, Region):
                self._region(item, depth)
            elif item.op == "prim::Enter":
                end = _exit_of(item, items, place)
                self._with(item, items[place:end], depth)
                place = end + 1
            else:
                self._node(item, depth)

    def filled(self, write: Callable[[], None], depth: int) -> None:
        """Write lines, or ``pass`` if nothing else was written."""
        count = len(self._lines)
        write()
        if len(self._lines) == count:
            self.line(depth, "pass")

    # --- nodes -------------------------------------------------------------------------------------

    def _node(self, node: Node, depth: int) -> None:
        writer = WRITERS.get(node.op) or WRITERS.get(node.kind)
        if writer is not None:
            writer(self, node, depth)
        else:
            self._operator(node, depth)

    def _operator(self, node: Node, depth: int) -> None:
        operands = [self.expression(value) for value in node.inputs]
        expression = calls.EXPRESSIONS.get(node.op)
        if expression is not None:
            self.assign(node, expression.format(*operands), depth)
        elif node.op in _WRAPPED:
            self.assign(node, f"{operands[0]} {_WRAPPED[node.op]} {operands[1]}", depth)
            name = self.name(node.outputs[0])
            self.line(depth, f"if not -0x8000000000000000 <= {name} <= 0x7fffffffffffffff: {name} = wrap({name})")
        elif node.op in ("aten::__is__", "aten::__isnot__") and "None" in operands:
            self.assign(node, f"{operands[0]} is {'not ' if node.op.endswith('not__') else ''}{operands[1]}", depth)
        else:
            self.assign(node, self._call(node, operands), depth)

    def _call(self, node: Node, operands: list[str]) -> str:
        function = self.variable(identifier(node.op.replace("::", "_").replace(".", "_")), calls.function_of(node.op))
        if keywords := calls.keywords_of(node.op):
            first = len(operands) - len(keywords)
            named = [f"{name}={operand}" for name, operand in zip(keywords, operands[first:], strict=True)]
            operands = operands[:first] + named
        return f"{function}({', '.join(operands)})"

    def assign(self, node: Node, expression: str, depth: int) -> None:
        left = ", ".join(map(self.name, node.outputs))
        self.line(depth, f"{left} = {expression}" if left else expression, node.source)

    def _region(self, region: Region, depth: int) -> None:
        region.inputs.sort(key=lambda value: value in self._slots)
        graph, constants = make_graph(region, self.constants)
        inputs = [*region.inputs, *constants]
        name = f"region{len(self.regions)}"
        written = set(_written(region.nodes))
        weights = [
            place
            for place, value in enumerate(inputs)
            if (value in self._weights or isinstance(self.constants.get(value), torch.Tensor)) and value not in written
        ]
        self.regions[name] = self.variables[name] = _C.ScriptRegion(graph, self.graph.name, weights)
        left = ", ".join(map(self.name, region.outputs))
        call = f"{name}({', '.join(self._operands(name, inputs))})"
        sources = dict.fromkeys(node.source for node in region.nodes if node.source)
        self.line(depth, f"{left} = {call}" if left else call, next(iter(sources), ""))

    def _operands(self, region: str, inputs: list[Value]) -> Iterator[str]:
        """Yield the operands of a region. The module has those that are parameters, and the constants after them."""
        count = next((place for place, value in enumerate(inputs) if value in self._slots), len(inputs))
        yield from map(self.expression, inputs[:count])
        if count < len(inputs):
            name = self.new_name("bound")
            self._bound[name] = region, inputs[count:]
            yield name

    def _with(self, enter: Node, inside: list[Node | Region], depth: int) -> None:
        manager = self.expression(enter.inputs[0])
        self.assign(enter, f"{manager}.__enter__()", depth)
        self.line(depth, "try:")
        self.filled(lambda: self._items(inside, depth + 1), depth + 1)
        self.line(depth, "finally:")
        self.line(depth + 1, f"{manager}.__exit__(None, None, None)")

    def move(self, targets: Sequence[Value], values: Sequence[Value], depth: int) -> None:
        """Write an assignment of all values at once."""
        if targets:
            right = ", ".join(map(self.expression, values))
            self.line(depth, f"{', '.join(map(self.name, targets))} = {right}")

    # --- names -------------------------------------------------------------------------------------

    def name(self, value: Value) -> str:
        if value not in self._names:
            self._names[value] = self.new_name(identifier(value.name.replace(".", "_")))
        return self._names[value]

    def new_name(self, wanted: str) -> str:
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def expression(self, value: Value) -> str:
        if value not in self.constants:
            if value in self._slots:
                self._read_slots.add(value)
            return self.name(value)
        constant = self.constants[value]
        if constant is None or type(constant) in (bool, int, str) or _is_finite(constant):
            return repr(constant)
        if value not in self._names:
            self._names[value] = self.variable("constant", constant, is_new=True)
        return self._names[value]

    def variable(self, name: str, value: Any, is_new: bool = False) -> str:
        """Return the name of a function or constant."""
        if not is_new and self.variables.get(name) is value:
            return name
        name = self.new_name(name)
        self.variables[name] = value
        return name


def _is_finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _constants(graph: Graph, context: Context) -> dict[Value, Any]:
    return {
        node.outputs[0]: node.attributes["value"]
        if node.outputs[0].type.kind == "Function"
        else context.constant(node.attributes["value"])
        for node in graph.walk()
        if node.op == "prim::Constant"
    }


def _mutated(graph: Graph, program: Program, level: int = 0) -> set[str] | None:
    """Return the names of the attributes that a graph, or one that it calls, sets; None if the graphs are unknown."""
    names: set[str] = set()
    functions = {
        node.outputs[0]: str(node.attributes["value"])
        for node in graph.walk()
        if node.op == "prim::Constant" and node.outputs[0].type.kind == "Function"
    }
    for node in graph.walk():
        if node.op == "prim::SetAttr":
            names.add(str(node.attributes["name"]))
        for callee in _callees(node, program, functions):
            inner = None if callee is None or level > _MOST_LEVELS else _mutated(callee, program, level + 1)
            if inner is None:
                return None
            names |= inner
    return names


_MOST_LEVELS = 8
# Fewer attributes are read in every call.
_FEWEST_SLOTS = 4


def _callees(node: Node, program: Program, functions: Mapping[Value, str]) -> Iterator[Graph | None]:
    if node.op in ("prim::CallMethod", "prim::CallFunction"):
        yield callee_of(node, program, functions)
    elif node.op in ("prim::Enter", "prim::Exit"):
        class_ = class_of(node.inputs[0].type, program)
        yield None if class_ is None else class_.methods.get("__enter__" if node.op == "prim::Enter" else "__exit__")
    elif isinstance(graph := node.attributes.get("Subgraph"), Graph):
        yield graph


def _exit_of(enter: Node, items: Sequence[Node | Region], start: int) -> int:
    for place in range(start, len(items)):
        item = items[place]
        if isinstance(item, Node) and item.op == "prim::Exit" and item.inputs[0] is enter.inputs[0]:
            return place
    raise NotImplementedError("a `with` statement does not end in the block in which it begins")


def _written(nodes: Sequence[Node]) -> Iterator[Value]:
    for node in nodes:
        schema = find_schema(node.op)
        if schema is not None:
            pairs = zip(node.inputs, schema.arguments, strict=False)
            yield from (value for value, argument in pairs if argument.is_write)
        for block in node.blocks:
            yield from _written(block.nodes)


# Operators on integers that wrap around.
_WRAPPED = {"aten::add.int": "+", "aten::sub.int": "-", "aten::mul.int": "*"}
