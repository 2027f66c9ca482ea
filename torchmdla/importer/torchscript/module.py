"""Import of TorchScript functions, and of modules as graphs of objects, without changes into the Torch dialect.

Each class becomes a ``torch.class_type`` with its attributes and methods. Each method becomes a private function. Each
object becomes a ``torch.nn_module``, which holds the current values of its attributes. Upstream's
``torchscript-module-to-torch-backend-pipeline`` processes the result further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchmdla.errors import CompileError, unknown_name
from torchmdla.importer.emitter import Value, quote, symbol
from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.importer.torchscript.graph import (
    Callees,
    FunctionType,
    GraphWriter,
    dialect_type,
    function_type,
    write_value,
)
from torchmdla.importer.torchscript.writer import ScriptWriter, TensorOf
from torchmdla.importer.types import element_type
from torchmdla.script.ir import Class, Graph, Object, Program, Type


@dataclass(frozen=True)
class Annotations:
    """Annotations of a scripted module.

    Paths lead from the module through submodules, as in ``"encoder.layer.forward"``. Annotations belong to the classes
    at the ends of the paths. They also apply to other modules of these classes.

    Attributes:
        exports: the methods and attributes that can be used from outside; None for all.
        arguments: method → argument → sizes and dtype of that tensor.
        mutable: method → those of ``arguments`` whose writes are visible to both the caller and the program. The others
            have value semantics: callers promise that they need no writes to them. Upstream's passes require that.
    """

    exports: Sequence[str] | None = None
    arguments: Mapping[str, Mapping[str, TensorSpec]] = field(default_factory=dict)
    mutable: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ImportedScript:
    """Text of a module, the content of its resources, and the names of its functions and classes."""

    text: str
    resources: Mapping[str, Tensor]
    symbols: frozenset[str]


def import_script_function(
    graph: Graph,
    functions: Mapping[str, Graph],
    arguments: Mapping[str, TensorSpec],
    is_registered: Callable[[str], bool],
    known: Collection[str] = (),
) -> ImportedScript:
    """Write a function as public, under its qualified name, and its callees as private.

    Args:
        graph: the function.
        functions: those that it calls, by name.
        arguments: sizes and dtypes of arguments, by name. These have value semantics.
        is_registered: whether the Torch dialect has an op of this name.
        known: functions that the module already contains. They are only declared.

    Raises:
        ValueError: If the function does not have one of ``arguments``.
        CompileError: If a part has no form in the dialect. The error names the node and its place.
    """
    importer = _Importer(functions, is_registered, known)
    importer.function(graph, _bounds(arguments), "public")
    return importer.finish()


def import_script_module(
    program: Program,
    annotations: Annotations,
    is_registered: Callable[[str], bool],
    known: Collection[str],
    tensor_of: TensorOf,
) -> ImportedScript:
    """Write the module of a program with its classes, methods and objects.

    Args:
        program: the program.
        annotations: the module's annotations.
        is_registered: as for :func:`import_script_function`.
        known: as for :func:`import_script_function`.
        tensor_of: returns the tensor of a file.

    Raises:
        ValueError: If the annotations refer to a missing member.
        CompileError: If a part has no form in the dialect. The error names it.
    """
    importer = _Importer(program.functions, is_registered, known, tensor_of)
    importer.module(program, annotations)
    return importer.finish()


class _Importer:
    def __init__(
        self,
        functions: Mapping[str, Graph],
        is_registered: Callable[[str], bool],
        known: Collection[str],
        tensor_of: TensorOf | None = None,
    ) -> None:
        self._functions = functions
        self._known = frozenset(known)
        self._writer = ScriptWriter(tensor_of)
        self._methods: dict[tuple[str, str], FunctionType] = {}
        self._called: set[str] = set()
        self._symbols: set[str] = set()
        self._callees = Callees(is_registered, self._methods, self._call)
        # Constants of the objects' tensors, keyed by the memory that the tensors view.
        self._tensors: dict[object, Value] = {}
        self._storages: set[int] = set()

    def finish(self) -> ImportedScript:
        """Return the imported text with the called functions, or declarations of those that the module contains."""
        while missing := self._called - self._symbols - self._known:
            for name in sorted(missing):
                self.function(self._functions[name], {}, "private")
        for name in sorted(self._called & self._known):
            types, result = function_type(self._functions[name])
            self._writer.line(f"func.func private @{symbol(name)}({', '.join(types)}) -> {result}")
        return ImportedScript(self._writer.text(), self._writer.literals.resources, frozenset(self._symbols))

    def function(self, graph: Graph, bounds: Mapping[str, str], visibility: str) -> None:
        """Write a function or a method."""
        for argument in bounds:
            if argument not in graph.parameters:
                raise ValueError(f"{graph.name}: {unknown_name('argument', argument, graph.parameters)}")
        known = [bounds.get(parameter, "") for parameter in graph.parameters]
        GraphWriter(self._writer, self._callees).write(graph, visibility, known)
        self._symbols.add(graph.name)

    def _call(self, name: str) -> FunctionType:
        """Return the type of a function that a graph calls."""
        self._called.add(name)
        return function_type(self._functions[name])

    # Modules

    def module(self, program: Program, annotations: Annotations) -> None:
        """Write classes, methods and objects."""
        exports = _exports(program, annotations)
        bounds = _method_bounds(program, annotations)
        classes = [class_ for class_ in program.classes.values() if class_.is_module]
        methods = {(class_.type.name, name): method for class_ in classes for name, method in class_.methods.items()}
        self._methods.update((key, function_type(method)) for key, method in methods.items())
        for class_ in classes:
            self._class(class_, exports)
        for key, method in methods.items():
            self.function(method, bounds.get(key, {}), "private")
        self._writer.location = "loc(unknown)"
        self._object(program.root, program.classes)

    def _class(self, class_: Class, exports: Collection[tuple[str, str]] | None) -> None:
        class_name = class_.type.name

        def head(kind: str, name: str) -> str:
            is_private = exports is not None and (class_name, name) not in exports
            return f"torch.{kind} {'private ' * is_private}{quote(name)}"

        self._symbols.add(class_name)
        self._writer.line(f"torch.class_type @{symbol(class_name)} {{")
        with self._writer.indented():
            for name, type_ in class_.attributes.items():
                with _located_errors(f"attribute {name!r} of {class_name}"):
                    self._writer.line(f"{head('attr', name)} : {dialect_type(type_)}")
            for name, method in class_.methods.items():
                self._writer.line(f"{head('method', name)}, @{symbol(method.name)}")
        self._writer.line("}")

    def _object(self, instance: Object, classes: Mapping[str, Class]) -> Value:
        class_ = classes[instance.class_name]
        slots = {}
        for name, type_ in class_.attributes.items():
            value = instance.attributes[name]
            with _located_errors(f"attribute {name!r} of {instance.class_name}"):
                if isinstance(value, Object) and classes[value.class_name].is_module:
                    slots[name] = self._object(value, classes)
                else:
                    slots[name] = self._value(value, type_)
        result = self._writer.fresh(dialect_type(class_.type))
        self._writer.line(f"{result.name} = torch.nn_module {{")
        with self._writer.indented():
            for name, slot in slots.items():
                self._writer.line(f"torch.slot {quote(name)}, {slot.name} : {slot.type}")
        self._writer.line(f"}} : {result.type}")
        return result

    def _value(self, value: Any, type_: Type) -> Value:
        """Return an attribute's value. Equal views of memory share one value, so that a write to one affects all."""
        value = self._writer.loaded(value)
        if not isinstance(value, Tensor):
            return write_value(self._writer, value, type_)
        storage = value.untyped_storage()._cdata
        key = (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in self._tensors:
            if storage in self._storages and value.numel():
                raise CompileError("it shares memory with another attribute that has other sizes or strides")
            self._storages.add(storage)
            self._tensors[key] = self._writer.constant(value, type_)
        return self._tensors[key]


@contextmanager
def _located_errors(place: str) -> Iterator[None]:
    """Add a place to a ``CompileError`` that does not name an op."""
    try:
        yield
    except CompileError as error:
        if error.op:
            raise
        raise CompileError(f"{place}: {error.reason}", op="prim::GetAttr") from error


def _exports(program: Program, annotations: Annotations) -> set[tuple[str, str]] | None:
    """Return the exported (class, member) pairs, and the submodules on the paths to them. None means all."""
    if annotations.exports is None:
        return None
    exports = set()
    for path in annotations.exports:
        members = _members(program, path)
        owner, name = members[-1]
        if name not in owner.methods and name not in owner.attributes:
            raise ValueError(f"the module has no method or attribute {path!r}")
        exports |= {(holder.type.name, member) for holder, member in members}
    return exports


def _method_bounds(program: Program, annotations: Annotations) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return (class, method) → the known types of its arguments."""
    bounds: dict[tuple[str, str], Mapping[str, str]] = {}
    for path, arguments in annotations.arguments.items():
        owner, name = _members(program, path)[-1]
        if name not in owner.methods:
            raise ValueError(f"the module has no method {path!r}")
        bounds[owner.type.name, name] = _bounds(arguments, annotations.mutable.get(path, ()))
    return bounds


def _bounds(arguments: Mapping[str, TensorSpec], mutable: Collection[str] = ()) -> dict[str, str]:
    """Return the known types of arguments, such as ``"!torch.vtensor<[?,3],f32>"``, by name."""
    bounds = {}
    for name, spec in arguments.items():
        sizes = ",".join("?" if size is None else str(size) for size in spec.shape)
        kind = "tensor" if name in mutable else "vtensor"
        bounds[name] = f"!torch.{kind}<[{sizes}],{element_type(spec.dtype)}>"
    return bounds


def _members(program: Program, path: str) -> list[tuple[Class, str]]:
    """Return the members on ``path`` from the root, each as the class that has it and its name."""
    *parents, name = path.split(".")
    owner, members = program.root, []
    for parent in parents:
        members.append((program.classes[owner.class_name], parent))
        child = owner.attributes.get(parent)
        if not isinstance(child, Object):
            raise ValueError(f"the module has no submodule {parent!r} on the path {path!r}")
        owner = child
    return [*members, (program.classes[owner.class_name], name)]
