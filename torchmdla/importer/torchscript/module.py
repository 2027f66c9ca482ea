"""Import of TorchScript functions, and of modules as graphs of objects, without changes into the Torch dialect.

Each class becomes a ``torch.class_type`` with its attributes and methods. Each method becomes a private function. Each
object becomes a ``torch.nn_module``, which holds the current values of its attributes. Upstream's
``torchscript-module-to-torch-backend-pipeline`` processes the result further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdla.errors import CompileError, unknown_name
from torchmdla.importer.emitter import Value, quote, symbol
from torchmdla.importer.literals import Literals
from torchmdla.importer.torchscript.annotations import Annotations, bound_of
from torchmdla.importer.torchscript.graph import (
    Callees,
    FunctionType,
    function_type,
    has_unknown_calls,
    write_graph,
    write_value,
)
from torchmdla.importer.torchscript.types import dialect_type
from torchmdla.importer.torchscript.writer import ScriptWriter


@dataclass(frozen=True)
class ImportedScript:
    """Text of a module, the content of its resources, and the names of its functions and classes."""

    text: str
    resources: Mapping[str, Tensor]
    symbols: frozenset[str]


def import_script_function(
    function: torch.jit.ScriptFunction[Any, Any],
    bounds: Mapping[str, str],
    is_registered: Callable[[str], bool],
    known: Collection[str] = (),
) -> ImportedScript:
    """Write a scripted or traced function as public, under its qualified name, and its callees as private.

    Args:
        function: the scripted or traced function.
        bounds: the known types of arguments, by name.
        is_registered: whether the Torch dialect has an op of this name.
        known: functions that the module already contains. They are only declared.

    Raises:
        ValueError: If the function does not have an argument of ``bounds``.
        CompileError: If a part has no form in the dialect. The error names the node and its place.
    """
    importer = _Importer(is_registered, known, is_python=True)
    importer.function(function.qualified_name, function, bounds, "public")
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


@dataclass(frozen=True)
class _Class:
    """Class of TorchScript, represented by one of its objects."""

    example: Any

    @property
    def name(self) -> str:
        return self.example._type().qualified_name()  # type: ignore[no-any-return]

    def attributes(self) -> dict[str, Any]:
        """Return the types of its attributes except submodules, by name."""
        concrete: Any = torch._C.ConcreteModuleType.from_jit_type(self.example._type())  # type: ignore[attr-defined]
        return {name: type_ for name, (type_, _) in sorted(concrete.get_attributes().items())}

    def methods(self) -> list[str]:
        return list(self.example._method_names())

    def submodules(self) -> dict[str, Any]:
        return _submodules(self.example)


class _Importer:
    def __init__(self, is_registered: Callable[[str], bool], known: Collection[str], *, is_python: bool) -> None:
        self._is_python = is_python
        self._known = frozenset(known)
        self._literals = Literals()
        self._writer = ScriptWriter(self._literals)
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
        return ImportedScript(self._writer.text(), self._literals.resources, frozenset(self._symbols))

    def function(self, name: str, function: Any, bounds: Mapping[str, str], visibility: str) -> None:
        """Write a function or a method."""
        graph = function.graph
        if has_unknown_calls(graph, self._callees):
            graph = function.inlined_graph
        names = [argument.name for argument in function.schema.arguments]
        for argument in bounds:
            if argument not in names:
                raise ValueError(f"{name}: {unknown_name('argument', argument, names)}")
        known = [bounds.get(argument_name, "") for argument_name in names]
        write_graph(self._writer, self._callees, name, graph, visibility=visibility, bounds=known)
        self._symbols.add(name)

    def _resolve_function(self, type_: Any) -> tuple[str, FunctionType] | None:
        """Return a function that a graph calls. Functions of a loaded archive cannot be looked up from Python."""
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
        classes = {_Class(member).name: _Class(member) for member in _objects(root)}
        exports = _exports(root, annotations)
        bounds = _bounds(root, annotations)
        for name, member in classes.items():
            for method in member.methods():
                self._methods[name, method] = function_type(member.example._get_method(method).graph)
        for member in classes.values():
            self._class(member, exports)
        for name, member in classes.items():
            for method in member.methods():
                known = bounds.get((name, method), {})
                self.function(_method_symbol(name, method), member.example._get_method(method), known, "private")
        self._writer.location = "loc(unknown)"
        self._object(root)

    def _class(self, class_: _Class, exports: Collection[tuple[str, str]] | None) -> None:
        def head(kind: str, name: str) -> str:
            is_private = exports is not None and (class_.name, name) not in exports
            return f"torch.{kind} {'private ' * is_private}{quote(name)}"

        self._symbols.add(class_.name)
        self._writer.line(f"torch.class_type @{symbol(class_.name)} {{")
        with self._writer.indented():
            types = class_.attributes() | {name: child._type() for name, child in class_.submodules().items()}
            for name, type_ in types.items():
                with _located_errors(f"attribute {name!r} of {class_.name}"):
                    self._writer.line(f"{head('attr', name)} : {dialect_type(type_)}")
            for name in class_.methods():
                self._writer.line(f"{head('method', name)}, @{symbol(_method_symbol(class_.name, name))}")
        self._writer.line("}")

    def _object(self, instance: Any) -> Value:
        class_ = _Class(instance)
        slots = {}
        for name, type_ in class_.attributes().items():
            with _located_errors(f"attribute {name!r} of {class_.name}"):
                slots[name] = self._value(instance.getattr(name), type_)
        for name, child in class_.submodules().items():
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
            self._tensors[key] = self._writer.constant(value)
        return self._tensors[key]


class _located_errors:  # noqa: N801  (a context manager that reads like a function)
    """Context manager that adds a place to a ``CompileError``."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CompileError) and not error.op:
            raise CompileError(f"{self._place}: {error.reason}", op="prim::GetAttr") from error


def _method_symbol(class_name: str, method: str) -> str:
    return f"{class_name}.{method}"


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
        owner, name = _resolve(root, path)
        if name not in owner._method_names() and not owner.hasattr(name):
            raise ValueError(f"the module has no method or attribute {path!r}")
        exports.add((owner._type().qualified_name(), name))
        parents = path.split(".")[:-1]
        for count, parent in enumerate(parents):
            holder, _ = _resolve(root, ".".join(parents[: count + 1]))
            exports.add((holder._type().qualified_name(), parent))
    return exports


def _bounds(root: Any, annotations: Annotations) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return (class, method) → the known types of its arguments."""
    bounds: dict[tuple[str, str], Mapping[str, str]] = {}
    for path, arguments in annotations.arguments.items():
        owner, name = _resolve(root, path)
        if name not in owner._method_names():
            raise ValueError(f"the module has no method {path!r}")
        mutable = annotations.mutable.get(path, ())
        known = {argument: bound_of(spec, argument in mutable) for argument, spec in arguments.items()}
        bounds[owner._type().qualified_name(), name] = known
    return bounds


def _resolve(root: Any, path: str) -> tuple[Any, str]:
    """Return the object that has the member at ``path``, and the member's name."""
    *parents, name = path.split(".")
    owner = root
    for parent in parents:
        children = _submodules(owner)
        if parent not in children:
            raise ValueError(f"the module has no submodule {parent!r} on the path {path!r}")
        owner = children[parent]
    return owner, name
