"""Graphs of TorchScript's programs: types, values, nodes, blocks, classes and objects.

Nodes have the names and operands of PyTorch's own graphs (``torch/csrc/jit/ir/ir.h``). Therefore one IR serves graphs
that are read from a file and those of ``torch._C.Graph``. This package does not import PyTorch.

A node's ``op`` is the name of an operator with its overload (``"aten::add.Tensor"``), whose inputs are all arguments of
the schema in order, or a node of the language:

=============================== =============================================================================
op                              attributes, blocks
=============================== =============================================================================
``prim::Constant``              ``value``: None, bool, int, float, complex, str, :class:`StoredTensor`,
                                :class:`Object`, :class:`EnumValue`, or lists, tuples and dicts of these. The
                                name of a function if the type is ``Function``
``prim::GetAttr``, ``SetAttr``  ``name`` of the attribute. The first input is the object
``prim::CallMethod``            ``name`` of the method. The first input is the object
``prim::CallFunction``          the first input is a constant of type ``Function``
``prim::CreateObject``          the class is the type of the result
``prim::ListConstruct``, ``TupleConstruct``, ``DictConstruct`` (keys and values alternate), ``ListUnpack``,
``TupleUnpack``, ``TupleIndex``, ``Uninitialized``, ``unchecked_cast``, ``RaiseException``, ``isinstance`` (``types``)
``prim::If``                    two blocks without inputs. Their outputs are the node's outputs
``prim::Loop``                  inputs: most iterations, first condition, initial values. One block, with the
                                iteration's number and the carried values as inputs, and the next condition and
                                the next values as outputs
``prim::Enter``, ``prim::Exit`` begin and end of ``with`` for the object that is the input
``prim::fork``                  one block without inputs, computed by another thread or at once
=============================== =============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Type:
    """Type of a value, written as TorchScript writes it: ``"Dict[str, List[Tensor]]"``.

    Attributes:
        kind: ``Tensor``, ``int``, ``float``, ``complex``, ``bool``, ``str``, ``number``, ``NoneType``, ``Device``,
            ``Generator``, ``Stream``, ``Any``, ``AnyList``, ``AnyTuple``, ``Function``, ``Capsule``, or with arguments
            ``List``, ``Dict``, ``Tuple``, ``Optional``, ``Union``, ``Future``, ``Await``, ``RRef``, or with a name
            ``Class``, ``NamedTuple``, ``Enum``, ``Interface``.
        arguments: the types of elements, keys and values, or of the members of a union. The fields of a named tuple.
        name: the qualified name.
    """

    kind: str
    arguments: tuple[Type, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            return self.name
        inner = ", ".join(map(str, self.arguments)) or ("()" if self.kind == "Tuple" else "")
        return f"{self.kind}[{inner}]" if inner else self.kind


@dataclass(eq=False, slots=True)
class Value:
    """Result of a node, or input of a block. Its name is unique in its graph."""

    name: str
    type: Type


@dataclass(eq=False, slots=True)
class Node:
    """Operation on values.

    Attributes:
        op: the name, with the overload if there is one.
        inputs: the operands.
        outputs: the results.
        attributes: what the table above lists.
        blocks: the inner blocks of control flow.
        source: the place in the user's program, as ``file:line``. Empty when unknown.
    """

    op: str
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    attributes: dict[str, Constant] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    source: str = ""

    @property
    def kind(self) -> str:
        """Return the name without the overload."""
        return self.op.partition(".")[0]


@dataclass(eq=False, slots=True)
class Block:
    """Sequence of nodes, with inputs and outputs."""

    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Return all nodes of this block and of the blocks inside, in order."""
        for node in self.nodes:
            yield node
            for block in node.blocks:
                yield from block.walk()


@dataclass(eq=False, slots=True)
class Graph(Block):
    """Function or method.

    A function has one output. A graph from PyTorch's optimiser may have several.

    Attributes:
        name: the qualified name.
        parameters: the names of the inputs in the user's program, ``self`` first for a method.
        defaults: the default values of parameters that have one.
        returns: the declared type of the result.
    """

    name: str = ""
    parameters: list[str] = field(default_factory=list)
    defaults: dict[str, Constant] = field(default_factory=dict)
    returns: Type = Type("Any")

    def __str__(self) -> str:
        return print_graph(self)


@dataclass(eq=False, slots=True)
class Class:
    """Class of TorchScript: of modules, of other objects, an enumeration, a named tuple or an interface.

    Attributes:
        type: its type. Its kind distinguishes classes, enumerations, named tuples and interfaces.
        is_module: whether its objects are modules.
        attributes: the type of each attribute, in order. The fields of a named tuple.
        constants: the values of ``Final`` attributes, and the members of an enumeration.
        constant_types: the types of ``Final`` attributes.
        parameters: the names of attributes that are parameters.
        buffers: the names of attributes that are buffers.
        methods: its methods, by name. Property getters and setters are methods. Those of an interface have inputs and
            the type of the result, and are empty otherwise.
        properties: getter and setter of each property.
        hooks: the methods that run before, and those that run after ``forward``.
        defaults: the default values of a named tuple's fields.
    """

    type: Type
    is_module: bool = False
    attributes: dict[str, Type] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    constant_types: dict[str, Type] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    methods: MutableMapping[str, Graph] = field(default_factory=dict)
    properties: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    hooks: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    defaults: dict[str, Constant] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Object:
    """Object of a class, such as a module. Objects may be shared, and refer to each other.

    ``state`` is the value that ``__getstate__`` returned, for a class with ``__setstate__`` that was not called yet.
    """

    class_name: str
    attributes: dict[str, Constant] = field(default_factory=dict)
    state: Constant = None


@dataclass(frozen=True, slots=True)
class EnumValue:
    """Member of an enumeration."""

    class_name: str
    name: str
    value: Constant


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of tensors in a file.

    Attributes:
        record: the name of the record in the archive.
        offset: the position of the first byte in the file. The file can be mapped.
        size: bytes.
        device: the device that the tensor was saved from, such as ``"cpu"`` or ``"cuda:0"``.
    """

    record: str
    offset: int
    size: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Scheme of a quantised tensor. For channels, ``scale`` and ``zero_point`` are tensors along ``axis``."""

    scale: float | StoredTensor
    zero_point: int | StoredTensor
    axis: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class StoredTensor:
    """Tensor in a file. Tensors may share a storage.

    Attributes:
        storage: the memory.
        dtype: the name of the dtype, such as ``"float32"`` or ``"qint8"``.
        shape: the sizes.
        strides: in elements.
        offset: the position of the first element in the storage, in elements.
        requires_grad: whether it needs a gradient.
        is_parameter: whether it is a parameter.
        quantisation: the scheme of a quantised tensor.
    """

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    is_parameter: bool = False
    quantisation: Quantisation | None = None


# A constant of a graph from ``torch._C.Graph`` may also be an object of PyTorch, such as a tensor or a device.
Constant: TypeAlias = object


@dataclass(eq=False, slots=True)
class Program:
    """Whole program of a file.

    Attributes:
        root: the module that was saved.
        classes: all classes, by qualified name.
        functions: all functions, by qualified name.
        version: the version of the operators that the file was written for (``version`` of the archive).
        path: the file.
    """

    root: Object
    classes: MutableMapping[str, Class]
    functions: MutableMapping[str, Graph]
    version: int
    path: str

    def method(self, name: str = "forward") -> Graph:
        """Return a method of the root module.

        Raises:
            KeyError: the module does not have it. The message lists the methods.
        """
        methods = self.classes[self.root.class_name].methods
        if name not in methods:
            raise KeyError(f"the program does not have the method {name!r}. It has: {', '.join(methods) or 'none'}")
        return methods[name]

    def __str__(self) -> str:
        methods = [graph for class_ in self.classes.values() for graph in class_.methods.values()]
        return "\n".join(map(print_graph, [*methods, *self.functions.values()]))


# Printing, in the form that PyTorch prints its graphs in


def print_graph(graph: Graph) -> str:
    """Return a graph as text, one node a line."""
    head = f"graph {graph.name}({_typed(graph.inputs)}):"
    return "\n".join([head, *_lines(graph, 1), f"  return ({_names(graph.outputs)})"]) + "\n"


def _lines(block: Block, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in block.nodes:
        left = f"{_typed(node.outputs)} = " if node.outputs else ""
        attributes = f"[{_attributes(node.attributes)}]" if node.attributes else ""
        place = f" # {node.source}" if node.source else ""
        yield f"{indent}{left}{node.op}{attributes}({_names(node.inputs)}){place}"
        for number, inner in enumerate(node.blocks):
            yield f"{indent}  block{number}({_typed(inner.inputs)}):"
            yield from _lines(inner, depth + 2)
            yield f"{indent}    -> ({_names(inner.outputs)})"


def _typed(values: Sequence[Value]) -> str:
    return ", ".join(f"%{value.name} : {value.type}" for value in values)


def _names(values: Sequence[Value]) -> str:
    return ", ".join(f"%{value.name}" for value in values)


def _attributes(attributes: Mapping[str, Constant]) -> str:
    return ", ".join(f"{name}={_constant(value)}" for name, value in attributes.items())


def _constant(value: Constant) -> str:
    if isinstance(value, StoredTensor):
        return f"<Tensor {value.dtype}{list(value.shape)}>"
    if isinstance(value, Object):
        return f"<{value.class_name}>"
    return f"<{type(value).__name__}>" if hasattr(value, "numel") else repr(value)
