"""TorchScript as it stands, in the Torch dialect: functions, and modules as graphs of objects.

A module becomes a ``torch.class_type`` for each class, with its attributes and methods, a private function for each
method, and a ``torch.nn_module`` for each object, which holds the values that its attributes have now. Upstream's
``torchscript-module-to-torch-backend-pipeline`` goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value, quote, symbol
from torchmdla.importer.literals import Literals
from torchmdla.importer.torchscript.annotations import Annotations, bound_of
from torchmdla.importer.torchscript.graph import Callee, Program, callee_of, has_unknown_calls, write_graph, write_value
from torchmdla.importer.torchscript.types import dialect_type
from torchmdla.importer.torchscript.writer import ScriptWriter


@dataclass(frozen=True)
class ImportedScript:
    """A module's text, what its resources must hold, and its functions and classes by name."""

    text: str
    resources: Mapping[str, Tensor]
    symbols: frozenset[str]


def import_script_function(
    function: torch.jit.ScriptFunction[Any, Any],
    bounds: Mapping[str, str],
    is_registered: Callable[[str], bool],
    known: Collection[str] = (),
) -> ImportedScript:
    """Writes a scripted or traced function under its qualified name, public, and those that it calls, private.

    Args:
        bounds: the type that is known of an argument, by its name.
        is_registered: whether the Torch dialect has an op of this name.
        known: functions that the module has already: they are only declared.

    Raises:
        ValueError: the function has no such argument.
        CompileError: something has no form in the dialect; names the node and its place.
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
    """Writes a scripted module with its classes, methods and objects.

    Args:
        is_registered, known: as for :func:`import_script_function`.

    Raises:
        ValueError: the annotations speak of what is not there.
        CompileError: something has no form in the dialect; names it.
    """
    root = module._c
    type_ = root._type()
    cu: Any = torch.jit._state._python_cu  # type: ignore[attr-defined]
    importer = _Importer(is_registered, known, is_python=cu.get_class(type_.qualified_name()) == type_)
    importer.module(root, annotations)
    return importer.finish()


@dataclass(frozen=True)
class _Class:
    """A class, by one of its objects: what TorchScript tells of it."""

    example: Any

    @property
    def name(self) -> str:
        return self.example._type().qualified_name()  # type: ignore[no-any-return]

    def attributes(self) -> dict[str, Any]:
        """The types of its attributes but submodules, by name."""
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
        self._methods: dict[tuple[str, str], Callee] = {}
        self._functions: dict[str, Any] = {}
        self._symbols: set[str] = set()
        self._program = Program(is_registered, self._methods, self._called)
        # Of the objects' tensors, by the memory that they show.
        self._tensors: dict[object, Value] = {}
        self._storages: set[int] = set()

    def finish(self) -> ImportedScript:
        """With the functions that are called; of those that the module has, declarations."""
        while missing := self._functions.keys() - self._symbols - self._known:
            for name in sorted(missing):
                self.function(name, self._functions[name], {}, "private")
        for name in sorted(self._functions.keys() & self._known):
            types, result = callee_of(self._functions[name].graph)
            self._writer.line(f"func.func private @{symbol(name)}({', '.join(types)}) -> {result}")
        return ImportedScript(self._writer.text(), self._literals.resources, frozenset(self._symbols))

    def function(self, name: str, function: Any, bounds: Mapping[str, str], visibility: str) -> None:
        """A function or a method."""
        graph = function.graph
        if has_unknown_calls(graph, self._program):
            graph = function.inlined_graph
        names = [argument.name for argument in function.schema.arguments]
        for argument in bounds:
            if argument not in names:
                raise ValueError(f"{name} has no argument {argument!r}; there are {', '.join(names)}")
        known = [bounds.get(one, "") for one in names]
        write_graph(self._writer, self._program, name, graph, visibility=visibility, bounds=known)
        self._symbols.add(name)

    def _called(self, type_: Any) -> tuple[str, Callee] | None:
        """A function that a graph calls. Those of a loaded archive cannot be looked up from Python."""
        name = str(type_)
        cu: Any = torch.jit._state._python_cu  # type: ignore[attr-defined]
        function = cu.find_function(name) if self._is_python else None
        if function is None:
            return None
        self._functions[name] = function
        return name, callee_of(function.graph)

    # Modules

    def module(self, root: Any, annotations: Annotations) -> None:
        """Classes, methods, objects."""
        classes = {_Class(one).name: _Class(one) for one in _objects(root)}
        exports = _exports(root, annotations)
        bounds = _bounds(root, annotations)
        for name, one in classes.items():
            for method in one.methods():
                self._methods[name, method] = callee_of(one.example._get_method(method).graph)
        for one in classes.values():
            self._class(one, exports)
        for name, one in classes.items():
            for method in one.methods():
                known = bounds.get((name, method), {})
                self.function(_method_symbol(name, method), one.example._get_method(method), known, "private")
        self._writer.location = "loc(unknown)"
        self._object(root)

    def _class(self, one: _Class, exports: Collection[tuple[str, str]] | None) -> None:
        def head(kind: str, name: str) -> str:
            is_private = exports is not None and (one.name, name) not in exports
            return f"torch.{kind} {'private ' * is_private}{quote(name)}"

        self._symbols.add(one.name)
        self._writer.line(f"torch.class_type @{symbol(one.name)} {{")
        with self._writer.indented():
            types = one.attributes() | {name: child._type() for name, child in one.submodules().items()}
            for name, type_ in types.items():
                with _blaming(f"attribute {name!r} of {one.name}"):
                    self._writer.line(f"{head('attr', name)} : {dialect_type(type_)}")
            for name in one.methods():
                self._writer.line(f"{head('method', name)}, @{symbol(_method_symbol(one.name, name))}")
        self._writer.line("}")

    def _object(self, one: Any) -> Value:
        class_ = _Class(one)
        slots = {}
        for name, type_ in class_.attributes().items():
            with _blaming(f"attribute {name!r} of {class_.name}"):
                slots[name] = self._value(one.getattr(name), type_)
        for name, child in class_.submodules().items():
            slots[name] = self._object(child)
        value = self._writer.fresh(dialect_type(one._type()))
        self._writer.line(f"{value.name} = torch.nn_module {{")
        with self._writer.indented():
            for name, slot in slots.items():
                self._writer.line(f"torch.slot {quote(name)}, {slot.name} : {slot.type}")
        self._writer.line(f"}} : {value.type}")
        return value

    def _value(self, value: Any, type_: Any) -> Value:
        """An attribute's value; tensors that are one are one value, so that a write to one is seen in the other."""
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


class _blaming:  # noqa: N801  (a context manager that reads like a function)
    """Says of a ``CompileError`` where it comes from."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CompileError) and not error.op:
            raise CompileError(f"{self._place}: {error.reason}", op="prim::GetAttr") from error


def _method_symbol(class_name: str, method: str) -> str:
    return f"{class_name}.{method}"


def _submodules(one: Any) -> dict[str, Any]:
    return dict(torch._C.ModuleDict(one).items())  # type: ignore[attr-defined]


def _objects(root: Any) -> Iterator[Any]:
    yield root
    for child in _submodules(root).values():
        yield from _objects(child)


def _exports(root: Any, annotations: Annotations) -> set[tuple[str, str]] | None:
    """The (class, member) that can be used from outside, with the submodules on the way to them; None for all."""
    if annotations.exports is None:
        return None
    exports = set()
    for path in annotations.exports:
        owner, name = _found(root, path)
        if name not in owner._method_names() and not owner.hasattr(name):
            raise ValueError(f"the module has no method or attribute {path!r}")
        exports.add((owner._type().qualified_name(), name))
        parents = path.split(".")[:-1]
        for count, parent in enumerate(parents):
            holder, _ = _found(root, ".".join(parents[: count + 1]))
            exports.add((holder._type().qualified_name(), parent))
    return exports


def _bounds(root: Any, annotations: Annotations) -> dict[tuple[str, str], Mapping[str, str]]:
    """(class, method) → the types that are known of its arguments."""
    bounds: dict[tuple[str, str], Mapping[str, str]] = {}
    for path, arguments in annotations.arguments.items():
        owner, name = _found(root, path)
        if name not in owner._method_names():
            raise ValueError(f"the module has no method {path!r}")
        mutable = annotations.mutable.get(path, ())
        known = {argument: bound_of(spec, argument in mutable) for argument, spec in arguments.items()}
        bounds[owner._type().qualified_name(), name] = known
    return bounds


def _found(root: Any, path: str) -> tuple[Any, str]:
    """The object that has the member at ``path``, and the member's name."""
    *parents, name = path.split(".")
    owner = root
    for parent in parents:
        children = _submodules(owner)
        if parent not in children:
            raise ValueError(f"the module has no submodule {parent!r} on the path {path!r}")
        owner = children[parent]
    return owner, name
