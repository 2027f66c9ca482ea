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

import torch
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
from torchmdla.importer.torchscript.writer import ScriptWriter
from torchmdla.importer.types import element_type


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
    function: torch.jit.ScriptFunction[Any, Any],
    arguments: Mapping[str, TensorSpec],
    is_registered: Callable[[str], bool],
    known: Collection[str] = (),
) -> ImportedScript:
    """Write a scripted or traced function as public, under its qualified name, and its callees as private.

    Args:
        function: the scripted or traced function.
        arguments: sizes and dtypes of arguments, by name. These have value semantics.
        is_registered: whether the Torch dialect has an op of this name.
        known: functions that the module already contains. They are only declared.

    Raises:
        ValueError: If the function does not have one of ``arguments``.
        CompileError: If a part has no form in the dialect. The error names the node and its place.
    """
    importer = _Importer(is_registered, known, is_python=True)
    importer.function(function.qualified_name, function, _bounds(arguments), "public")
    return importer.finish()


def import_script_module(
    module: torch.jit.ScriptModule,
    annotations: Annotations,
    is_registered: Callable[[str], bool],
    known: Collection[str] = (),
) -> ImportedScript:
    """Write a scripted module with its classes, methods and objects.

    Args:
        module: the scripted module.
        annotations: the module's annotations.
        is_registered: as for :func:`import_script_function`.
        known: as for :func:`import_script_function`.

    Raises:
        ValueError: If the annotations refer to a missing member.
        CompileError: If a part has no form in the dialect. The error names it.
    """
    root = module._c
    type_ = root._type()
    cu: Any = torch.jit._state._python_cu  # type: ignore[attr-defined]
    importer = _Importer(is_registered, known, is_python=cu.get_class(type_.qualified_name()) == type_)
    importer.module(root, annotations)
    return importer.finish()


class _Importer:
    def __init__(self, is_registered: Callable[[str], bool], known: Collection[str], *, is_python: bool) -> None:
        self._is_python = is_python
        self._known = frozenset(known)
        self._writer = ScriptWriter()
        self._methods: dict[tuple[str, str], FunctionType] = {}
        self._functions: dict[str, Any] = {}
        self._symbols: set[str] = set()
        self._callees = Callees(is_registered, self._methods, self._resolve_function)
        # Constants of the objects' tensors, keyed by the memory that the tensors view.
        self._tensors: dict[object, Value] = {}
        self._storages: set[int] = set()

    def finish(self) -> ImportedScript:
        """Return the imported text with the called functions, or declarations of those that the module contains."""
        while missing := self._functions.keys() - self._symbols - self._known:
            for name in sorted(missing):
                self.function(name, self._functions[name], {}, "private")
        for name in sorted(self._functions.keys() & self._known):
            types, result = function_type(self._functions[name].graph)
            self._writer.line(f"func.func private @{symbol(name)}({', '.join(types)}) -> {result}")
        return ImportedScript(self._writer.text(), self._writer.literals.resources, frozenset(self._symbols))

    def function(self, name: str, function: Any, bounds: Mapping[str, str], visibility: str) -> None:
        """Write a function or a method."""
        graph = function.graph
        calls = graph.findAllNodes("prim::CallFunction")
        if any(self._resolve_function(next(call.inputs()).node().output().type()) is None for call in calls):
            # Only PyTorch's inliner finds the functions of a loaded archive.
            graph = function.inlined_graph
        names = [argument.name for argument in function.schema.arguments]
        for argument in bounds:
            if argument not in names:
                raise ValueError(f"{name}: {unknown_name('argument', argument, names)}")
        known = [bounds.get(argument_name, "") for argument_name in names]
        GraphWriter(self._writer, self._callees).write(name, graph, visibility, known)
        self._symbols.add(name)

    def _resolve_function(self, type_: Any) -> tuple[str, FunctionType] | None:
        """Return a function that a graph calls, or None if Python does not know it, as in a loaded archive."""
        name = str(type_)
        cu: Any = torch.jit._state._python_cu  # type: ignore[attr-defined]
        function = cu.find_function(name) if self._is_python else None
        if function is None:
            return None
        self._functions[name] = function
        return name, function_type(function.graph)

    # Modules

    def module(self, root: Any, annotations: Annotations) -> None:
        """Write classes, methods and objects."""
        classes = {_class_name(instance): instance for instance in _objects(root)}
        exports = _exports(root, annotations)
        bounds = _method_bounds(root, annotations)
        methods = {
            (name, method): instance._get_method(method)
            for name, instance in classes.items()
            for method in instance._method_names()
        }
        self._methods.update((key, function_type(method.graph)) for key, method in methods.items())
        for name, instance in classes.items():
            self._class(name, instance, exports)
        for key, method in methods.items():
            self.function(".".join(key), method, bounds.get(key, {}), "private")
        self._writer.location = "loc(unknown)"
        self._object(root)

    def _class(self, class_name: str, instance: Any, exports: Collection[tuple[str, str]] | None) -> None:
        """Write the class of an object."""

        def head(kind: str, name: str) -> str:
            is_private = exports is not None and (class_name, name) not in exports
            return f"torch.{kind} {'private ' * is_private}{quote(name)}"

        self._symbols.add(class_name)
        self._writer.line(f"torch.class_type @{symbol(class_name)} {{")
        with self._writer.indented():
            types = _attributes(instance) | {name: child._type() for name, child in _submodules(instance).items()}
            for name, type_ in types.items():
                with _located_errors(f"attribute {name!r} of {class_name}"):
                    self._writer.line(f"{head('attr', name)} : {dialect_type(type_)}")
            for name in instance._method_names():
                self._writer.line(f"{head('method', name)}, @{symbol(f'{class_name}.{name}')}")
        self._writer.line("}")

    def _object(self, instance: Any) -> Value:
        slots = {}
        for name, type_ in _attributes(instance).items():
            with _located_errors(f"attribute {name!r} of {_class_name(instance)}"):
                slots[name] = self._value(instance.getattr(name), type_)
        for name, child in _submodules(instance).items():
            slots[name] = self._object(child)
        value = self._writer.fresh(dialect_type(instance._type()))
        self._writer.line(f"{value.name} = torch.nn_module {{")
        with self._writer.indented():
            for name, slot in slots.items():
                self._writer.line(f"torch.slot {quote(name)}, {slot.name} : {slot.type}")
        self._writer.line(f"}} : {value.type}")
        return value

    def _value(self, value: Any, type_: Any) -> Value:
        """Return an attribute's value. Equal views of memory share one value, so that a write to one affects all."""
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


def _class_name(instance: Any) -> str:
    return instance._type().qualified_name()  # type: ignore[no-any-return]


def _attributes(instance: Any) -> dict[str, Any]:
    """Return the types of an object's attributes except submodules, by name."""
    concrete: Any = torch._C.ConcreteModuleType.from_jit_type(instance._type())  # type: ignore[attr-defined]
    return {name: type_ for name, (type_, _) in sorted(concrete.get_attributes().items())}


def _submodules(instance: Any) -> dict[str, Any]:
    return dict(torch._C.ModuleDict(instance).items())  # type: ignore[attr-defined]


def _objects(root: Any) -> Iterator[Any]:
    yield root
    for child in _submodules(root).values():
        yield from _objects(child)


def _exports(root: Any, annotations: Annotations) -> set[tuple[str, str]] | None:
    """Return the exported (class, member) pairs, and the submodules on the paths to them. None means all."""
    if annotations.exports is None:
        return None
    exports = set()
    for path in annotations.exports:
        members = _members(root, path)
        owner, name = members[-1]
        if name not in owner._method_names() and not owner.hasattr(name):
            raise ValueError(f"the module has no method or attribute {path!r}")
        exports |= {(_class_name(holder), member) for holder, member in members}
    return exports


def _method_bounds(root: Any, annotations: Annotations) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return (class, method) → the known types of its arguments."""
    bounds: dict[tuple[str, str], Mapping[str, str]] = {}
    for path, arguments in annotations.arguments.items():
        owner, name = _members(root, path)[-1]
        if name not in owner._method_names():
            raise ValueError(f"the module has no method {path!r}")
        bounds[_class_name(owner), name] = _bounds(arguments, annotations.mutable.get(path, ()))
    return bounds


def _bounds(arguments: Mapping[str, TensorSpec], mutable: Collection[str] = ()) -> dict[str, str]:
    """Return the known types of arguments, such as ``"!torch.vtensor<[?,3],f32>"``, by name."""
    bounds = {}
    for name, spec in arguments.items():
        sizes = ",".join("?" if size is None else str(size) for size in spec.shape)
        kind = "tensor" if name in mutable else "vtensor"
        bounds[name] = f"!torch.{kind}<[{sizes}],{element_type(spec.dtype)}>"
    return bounds


def _members(root: Any, path: str) -> list[tuple[Any, str]]:
    """Return the members on ``path`` from ``root``, each as the object that has it and its name."""
    *parents, name = path.split(".")
    owner, members = root, []
    for parent in parents:
        children = _submodules(owner)
        if parent not in children:
            raise ValueError(f"the module has no submodule {parent!r} on the path {path!r}")
        members.append((owner, parent))
        owner = children[parent]
    return [*members, (owner, name)]
