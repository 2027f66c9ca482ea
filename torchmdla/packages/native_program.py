"""Lowering of methods to instructions of the native runtime's machine (``src/native/machine.h``)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import torchmdla_runtime as runtime
from torchmdla.importer.script_graph import convert_type
from torchmdla.packages.fields import SCALAR_TYPES, FieldWriter
from torchmdla.packages.native_capture import GROUP, Captured, module_at, object_paths
from torchmdla.packages.weights import Weights
from torchmdla.script.ir import Block, Graph, Node, Type, Value

# The order of ``Opcode`` in src/native/program.h.
_CODES = (
    "call", "group", "move", "release", "jump", "branch", "loop", "increment", "get", "set", "finish",
)  # fmt: skip

# The order of ``Kind`` in src/native/value.h.
_NONE, _BOOLEAN, _INTEGER, _REAL, _DEVICE, _STRING, _TENSOR, _LIST, _TUPLE, _DICT = range(10)

# The order of ``Type::Kind`` in src/native/program.h.
_KINDS = {
    "Any": 0, "NoneType": 1, "bool": 2, "int": 3, "float": 4, "number": 5, "str": 6, "Tensor": 7, "List": 8, "Dict": 9,
    "Tuple": 10, "NamedTuple": 10, "Optional": 11, "Union": 11,
}  # fmt: skip

_MOST_OPERANDS = (1 << 12) - 1

# Operators without a result that a program does not need: they print.
_SILENT = frozenset({"aten::warn", "prim::Print"})


@dataclass(frozen=True)
class Refused:
    """Operator or value of a method that does not run natively.

    Attributes:
        method: the method's name.
        op: the operator, or the parameter.
        source: the place in the user's program, as ``file:line``. Empty when unknown.
        reason: why it does not run.
    """

    method: str
    op: str
    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.source}' if self.source else ''}: {self.reason}"


@dataclass
class Constants:
    """Constants of all methods, without duplicates. Tensors are weights of the file."""

    weights: Weights
    values: list[Any] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)

    def add(self, value: Any) -> int:
        """Return the number of a constant.

        Raises:
            ValueError: the runtime does not have such values.
        """
        key = _constant_key(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]

    def write(self, writer: FieldWriter) -> None:
        writer.list(self.values, lambda value: self._write(writer, value))

    def _write(self, writer: FieldWriter, value: Any) -> None:
        kind = _constant_kind(value)
        writer.byte(kind)
        if kind == _BOOLEAN:
            writer.byte(value)
        elif kind == _INTEGER:
            writer.integer(value)
        elif kind == _REAL:
            writer.real(value)
        elif kind == _STRING:
            writer.text(value)
        elif kind == _TENSOR:
            tensor = value.detach().contiguous()
            writer.byte(SCALAR_TYPES[tensor.dtype])
            writer.integers(tensor.shape)
            writer.integers(tensor.stride())
            writer.integer(self.weights.add(tensor))
        elif kind in (_LIST, _TUPLE):
            writer.list(value, lambda item: self._write(writer, item))
        elif kind == _DICT:
            writer.list([part for pair in value.items() for part in pair], lambda item: self._write(writer, item))

    def add_weights(self) -> None:
        """Add the tensors to the weights, whose number the file has before the constants."""
        self.write(FieldWriter())


def _constant_kind(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        if value.dtype not in SCALAR_TYPES or value.is_sparse or value.is_quantized or value.device.type != "cpu":
            raise ValueError(f"a tensor constant is {value.dtype} on {value.device}")
        return _TENSOR
    if isinstance(value, torch.device):
        if value.type != "cpu":
            raise ValueError(f"it uses the device {value}")
        return _DEVICE
    for kind, number in _CONSTANT_KINDS:
        if isinstance(value, kind):
            return number
    raise ValueError(f"the runtime does not have values of {type(value).__name__}")


_CONSTANT_KINDS = (
    (type(None), _NONE), (bool, _BOOLEAN), (int, _INTEGER), (float, _REAL), (str, _STRING), (list, _LIST),
    (tuple, _TUPLE), (dict, _DICT),
)  # fmt: skip


def _constant_key(value: Any) -> object:
    kind = _constant_kind(value)
    if kind == _TENSOR:
        return kind, id(value)
    if kind in (_LIST, _TUPLE):
        return kind, tuple(map(_constant_key, value))
    if kind == _DICT:
        return kind, tuple((_constant_key(key), _constant_key(item)) for key, item in value.items())
    return kind, repr(value)


@dataclass(frozen=True)
class Parameter:
    """Parameter of a method. ``fallback`` is the number of its default among the constants."""

    name: str
    type: Type
    fallback: int | None


@dataclass(frozen=True)
class Method:
    """Method as the file has it: words of instructions."""

    name: str
    schema: str
    parameters: Sequence[Parameter]
    registers: int
    words: Sequence[int]

    def write(self, writer: FieldWriter) -> None:
        writer.text(self.name)
        writer.text(self.schema)
        writer.integer(len(self.parameters))
        for parameter in self.parameters:
            writer.text(parameter.name)
            writer.text(str(parameter.type))
            _write_type(writer, parameter.type)
            writer.byte(parameter.fallback is not None)
            if parameter.fallback is not None:
                writer.integer(parameter.fallback)
        writer.raw(struct.pack("<I", self.registers))
        writer.integer(len(self.words))
        writer.raw(struct.pack(f"<{len(self.words)}I", *self.words))


def _write_type(writer: FieldWriter, type_: Type) -> None:
    writer.byte(_KINDS[type_.kind])
    arguments = [*type_.arguments, Type("NoneType")] if type_.kind == "Optional" else type_.arguments
    writer.list(arguments, lambda argument: _write_type(writer, argument))


@dataclass
class Program:
    """Methods of a program, and what they share.

    Attributes:
        constants: the constants.
        sources: places in the user's program.
        operators: the names of operators.
        attributes: path and constant of each attribute.
        methods: the methods.
        refused: the operators and values that do not run natively.
    """

    constants: Constants
    sources: list[str] = field(default_factory=lambda: [""])
    operators: list[str] = field(default_factory=list)
    attributes: dict[str, int] = field(default_factory=dict)
    methods: list[Method] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def write(self, writer: FieldWriter) -> None:
        writer.list(self.sources, writer.text)
        writer.integer(len(self.attributes))
        for name, constant in self.attributes.items():
            writer.text(name)
            writer.integer(constant)
        writer.list(self.operators, writer.text)
        writer.list(self.methods, lambda method: method.write(writer))


def lower_program(captured: Captured, weights: Weights) -> Program:
    """Return the methods of a program as instructions. ``refused`` has what does not run natively."""
    program = Program(Constants(weights))
    for name, graph in captured.methods.items():
        _MethodLowering(captured, program, name, graph).lower()
    return program


def _number(values: list[str], value: str) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)


@dataclass(frozen=True)
class _Label:
    """Place of an instruction that is not known yet."""

    number: int


class _MethodLowering:
    """Lowering of one method. Each value has a register; a constant follows the registers."""

    def __init__(self, captured: Captured, program: Program, name: str, graph: Graph) -> None:
        self._captured = captured
        self._program = program
        self._name = name
        self._graph = graph
        self._objects = object_paths(graph)
        self._registers: dict[Value, int] = {}
        self._constants: dict[Value, int] = {}
        self._count = 0
        self._instructions: list[tuple[str, list[int], list[int | _Constant], int | _Label, int]] = []
        self._labels: dict[_Label, int] = {}
        self._source = 0

    def lower(self) -> None:
        schema = self._captured.schemas[self._name]
        arguments = [argument for argument in schema.arguments if argument.name != "self"]
        inputs = [value for value in self._graph.inputs if value not in self._objects]
        for value in inputs:
            self._define(value)
        parameters = [self._parameter(argument) for argument in arguments]
        if len(parameters) != len(inputs):
            self._refuse("parameters", "the optimised method has other parameters")
        self._block(self._graph)
        self._finish()
        head = ", ".join(
            f"{parameter.name}: {parameter.type}"
            + ("" if parameter.fallback is None else f" = {self._program.constants.values[parameter.fallback]!r}")
            for parameter in parameters
        )
        returned = ", ".join(str(convert_type(result.type)) for result in schema.returns)
        self._program.methods.append(
            Method(self._name, f"{self._name}({head}) -> {returned}", parameters, self._count, self._words())
        )

    def _parameter(self, argument: Any) -> Parameter:
        type_ = convert_type(argument.type)
        if unknown := [part.kind for part in _parts(type_) if part.kind not in _KINDS]:
            self._refuse(f"parameter {argument.name}", f"the runtime does not have values of {unknown[0]}")
            type_ = Type("Any")
        if not argument.has_default_value():
            return Parameter(argument.name, type_, None)
        return Parameter(argument.name, type_, self._constant(argument.default_value))

    def _finish(self) -> None:
        results = self._graph.outputs
        if len(results) == 1:
            self._emit("finish", inputs=[self._use(results[0])])
            return
        register = self._new_register()
        self._emit("call", [register], [self._use(value) for value in results], self._operator("prim::TupleConstruct"))
        self._emit("finish", inputs=[register])

    # Registers and constants

    def _new_register(self) -> int:
        self._count += 1
        return self._count - 1

    def _define(self, value: Value) -> int:
        register = self._registers[value] = self._new_register()
        return register

    def _use(self, value: Value) -> int | _Constant:
        if value in self._constants:
            return _Constant(self._constants[value])
        if value in self._objects:
            self._refuse(value.type.name, "an object is used as a value")
            return _Constant(self._constant(None))
        return self._registers[value]

    def _constant(self, value: Any) -> int:
        try:
            return self._program.constants.add(value)
        except ValueError as error:
            self._refuse("prim::Constant", str(error))
            return self._program.constants.add(None)

    def _refuse(self, op: str, reason: str) -> None:
        refused = Refused(self._name, op, self._program.sources[self._source], reason)
        if refused not in self._program.refused:
            self._program.refused.append(refused)

    def _operator(self, name: str) -> int:
        return _number(self._program.operators, name)

    # Instructions

    def _emit(
        self,
        code: str,
        outputs: Sequence[int] = (),
        inputs: Sequence[int | _Constant] = (),
        detail: int | _Label = 0,
    ) -> None:
        if max(len(outputs), len(inputs)) > _MOST_OPERANDS:
            self._refuse(code, f"it has more than {_MOST_OPERANDS} operands")
            return
        self._instructions.append((code, list(outputs), list(inputs), detail, self._source))

    def _label(self) -> _Label:
        label = _Label(len(self._labels))
        self._labels[label] = -1
        return label

    def _place(self, label: _Label) -> None:
        self._labels[label] = len(self._instructions)

    def _words(self) -> list[int]:
        words = []
        for code, outputs, inputs, detail, source in self._instructions:
            words.append(_CODES.index(code) | len(outputs) << 8 | len(inputs) << 20)
            words.append(self._labels[detail] if isinstance(detail, _Label) else detail)
            words.append(source)
            words += outputs
            words += [value.number + self._count if isinstance(value, _Constant) else value for value in inputs]
        return words

    # Nodes

    def _block(self, block: Block) -> None:
        """Emit the nodes of a block. A register is released after the last node that reads it."""
        last = _last_uses(block)
        for node in block.nodes:
            self._source = _number(self._program.sources, node.source)
            self._node(node)
            dead = [self._registers[value] for value in last.get(node, ()) if value in self._registers]
            if dead:
                self._emit("release", dead)

    def _node(self, node: Node) -> None:
        if node.op in _LOWERINGS:
            _LOWERINGS[node.op](self, node)
        elif node.kind == GROUP:
            self._group(node)
        elif node.op in _SILENT:
            return
        elif runtime.provides(node.op) and not node.blocks:
            inputs = [self._use(value) for value in node.inputs]
            self._emit("call", [self._define(value) for value in node.outputs], inputs, self._operator(node.op))
        else:
            self._refuse(node.op, self._captured.reasons.get(node.op, "the runtime does not have it"))
            for value in node.outputs:
                self._define(value)

    def _group(self, node: Node) -> None:
        number = self._captured.numbers[node]
        group = self._captured.groups[number]
        for reason in group.refused:
            self._refuse("a group of operators", reason)
        if any(value in self._objects for value in node.inputs):
            self._refuse("a group of operators", "it reads weights of a module that is not frozen")
        inputs = [self._use(value) for value in node.inputs]
        self._emit("group", [self._define(value) for value in node.outputs], inputs, number)

    def _constant_node(self, node: Node) -> None:
        if node.outputs[0].type.kind == "Function":
            self._refuse("prim::CallFunction", "a function is used as a value")
        self._constants[node.outputs[0]] = self._constant(node.attributes.get("value"))

    def _get(self, node: Node) -> None:
        if node.outputs[0] not in self._objects:
            self._emit("get", [self._define(node.outputs[0])], detail=self._attribute(node))

    def _set(self, node: Node) -> None:
        self._emit("set", inputs=[self._use(node.inputs[1])], detail=self._attribute(node))

    def _attribute(self, node: Node) -> int:
        name = str(node.attributes["name"])
        if node.inputs[0] not in self._objects:
            self._refuse(node.op, f"{name} is an attribute of an object that the program makes")
            return 0
        path = self._objects[node.inputs[0]]
        place = f"{path}.{name}".strip(".")
        if place not in self._program.attributes:
            value = module_at(self._captured.module, path).getattr(name)
            self._program.attributes[place] = self._constant(value)
        return list(self._program.attributes).index(place)

    def _chunk(self, node: Node) -> None:
        chunks, dimension = (self._constant(node.attributes[name]) for name in ("chunks", "dim"))
        parts = self._new_register()
        inputs = [self._use(node.inputs[0]), _Constant(chunks), _Constant(dimension)]
        self._emit("call", [parts], inputs, self._operator("aten::chunk"))
        outputs = [self._define(value) for value in node.outputs]
        self._emit("call", outputs, [parts], self._operator("prim::ListUnpack"))
        self._emit("release", [parts])

    def _if(self, node: Node) -> None:
        otherwise, end = self._label(), self._label()
        outputs = [self._define(value) for value in node.outputs]
        self._emit("branch", inputs=[self._use(node.inputs[0])], detail=otherwise)
        for block in node.blocks:
            if block is node.blocks[1]:
                self._emit("jump", detail=end)
                self._place(otherwise)
            self._block(block)
            self._move(outputs, [self._use(value) for value in block.outputs])
            self._release_results(block)
        self._place(end)

    def _loop(self, node: Node) -> None:
        (body,) = node.blocks
        begin, end = self._label(), self._label()
        most, condition, *initial = (self._use(value) for value in node.inputs)
        number, *carried = (self._define(value) for value in body.inputs)
        holds = self._new_register()
        self._move([number, holds, *carried], [_Constant(self._constant(0)), condition, *initial])
        self._place(begin)
        self._emit("loop", inputs=[number, most, holds], detail=end)
        self._block(body)
        results, targets = [self._use(value) for value in body.outputs], [holds, *carried]
        if set(results) & set(targets):  # a value moves from one register of the loop to another
            copies = [self._new_register() for _ in results]
            self._move(copies, results)
            results = list(copies)
        self._move(targets, results)
        self._release_results(body)
        self._emit("increment", [number])
        self._emit("jump", detail=begin)
        self._place(end)
        self._registers.update(zip(node.outputs, carried, strict=True))

    def _move(self, outputs: Sequence[int], inputs: Sequence[int | _Constant]) -> None:
        if outputs:
            self._emit("move", outputs, inputs)

    def _release_results(self, block: Block) -> None:
        """Release the values of a block that its outputs were the last to read."""
        defined = {value for node in block.nodes for value in node.outputs}
        if dead := sorted({self._registers[v] for v in block.outputs if v in defined and v in self._registers}):
            self._emit("release", dead)


@dataclass(frozen=True)
class _Constant:
    """Operand that is a constant."""

    number: int


_LOWERINGS = {
    "prim::Constant": _MethodLowering._constant_node,
    "prim::GetAttr": _MethodLowering._get,
    "prim::SetAttr": _MethodLowering._set,
    "prim::ConstantChunk": _MethodLowering._chunk,
    "prim::If": _MethodLowering._if,
    "prim::Loop": _MethodLowering._loop,
}


def _parts(type_: Type) -> Iterator[Type]:
    yield type_
    for argument in type_.arguments:
        yield from _parts(argument)


def _last_uses(block: Block) -> Mapping[Node, list[Value]]:
    """Return for each node of a block the block's values that no later node reads. Outputs of the block live on."""
    last: dict[Value, Node] = {}
    for node in block.nodes:
        for value in node.outputs:
            last[value] = node
        for value in _read_values(node):
            if value in last:
                last[value] = node
    for value in block.outputs:
        last.pop(value, None)
    ends: dict[Node, list[Value]] = {}
    for value, node in last.items():
        ends.setdefault(node, []).append(value)
    return ends


def _read_values(node: Node) -> Iterator[Value]:
    yield from node.inputs
    for block in node.blocks:
        for inner in block.nodes:
            yield from _read_values(inner)
        yield from block.outputs
