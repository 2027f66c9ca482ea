"""A program whose functions are compiled to Python when they are first called."""

from __future__ import annotations

import collections
import enum
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchmdla import _C
from torchmdla.capture.script.errors import as_script_error
from torchmdla.capture.script.folding import fold_branches
from torchmdla.capture.script.inlining import CUSTOM, inline_calls
from torchmdla.capture.script.modes import mode_reads, specialise
from torchmdla.capture.script.signature import Signature
from torchmdla.capture.script.source import Source
from torchmdla.capture.script.tensors import Tensors
from torchmdla.script.ir import Class, Constant, EnumValue, Graph, Object, Program, StoredTensor, Type, Value


class LoadedProgram:
    """Program with Python classes for its classes, and functions that run its graphs.

    Args:
        program: the graphs.
        tensors: the source of the program's tensors.
        base: the Python class of modules.
    """

    def __init__(self, program: Program, tensors: Tensors, base: type) -> None:
        self.program = program
        self._tensors = tensors
        self._base = base
        self._classes: dict[str, type] = {}
        self._constants: dict[int, Any] = {}
        self._kept: list[Any] = []  # constants whose identity is a key of _constants
        self._sources: dict[str, Source] = {}  # by the file names in tracebacks
        self._bodies: dict[int, Callable[..., Any]] = {}

    # --- functions ---------------------------------------------------------------------------------

    def source(self, graph: Graph) -> str:
        """Return the Python source of a graph, for any modes of its modules."""
        return Source(fold_branches(inline_calls(graph, self.program), {}), self, {}).text

    def body(self, graph: Graph) -> Callable[..., Any]:
        """Return the function that runs a graph. It does not check its arguments."""
        if id(graph) not in self._bodies:
            self._bodies[id(graph)] = self._compile(inline_calls(graph, self.program))
        return self._bodies[id(graph)]

    def _compile(self, graph: Graph) -> Callable[..., Any]:
        def compile_for(modes: Mapping[Value, bool]) -> Callable[..., Any]:
            source = Source(fold_branches(graph, modes), self, modes)
            file = f"<torchmdla {graph.name} {len(self._sources)}>"
            self._sources[file] = source
            return source.compile(file)

        reads = mode_reads(graph, self.program)
        return specialise(graph.name, reads, compile_for) if reads else compile_for({})

    def function(self, name: str) -> Callable[..., Any]:
        graph = self.program.functions[name]

        def call(*arguments: Any) -> Any:
            return self.body(graph)(*arguments)

        return call

    def entry(self, graph: Graph) -> Callable[..., Any]:
        """Return the function that a user calls: with checks of types, and errors like TorchScript's."""
        signature = Signature(graph, self)
        body: Callable[..., Any] | None = None

        @functools.wraps(signature.template)
        def call(*positional: Any, **named: Any) -> Any:
            nonlocal body
            if body is None:
                body = self.body(graph)
            arguments = signature.bind(positional, named)
            try:
                return signature.convert_result(body(*arguments))
            except Exception as error:
                raise as_script_error(error, self._sources) from None

        return call

    def fork(self, graph: Graph, arguments: Sequence[Any]) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        try:
            future.set_result(self.body(graph)(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    # --- classes -----------------------------------------------------------------------------------

    def python_class(self, type_: Type) -> type:
        """Return the Python class of a class, a named tuple or an enumeration."""
        if type_.name not in self._classes:
            class_ = self.program.classes.get(type_.name)
            is_tuple = type_.kind == "NamedTuple" or (class_ is not None and class_.type.kind == "NamedTuple")
            make = self._named_tuple if is_tuple else self._make_class
            self._classes[type_.name] = make(type_, class_)
        return self._classes[type_.name]

    def _named_tuple(self, type_: Type, class_: Class | None) -> type:
        fields = list(class_.attributes) if class_ is not None else [f"f{k}" for k, _ in enumerate(type_.arguments)]
        defaults = (
            [self.constant(class_.defaults[name]) for name in fields if name in class_.defaults] if class_ else ()
        )
        return collections.namedtuple(_short(type_.name), fields, defaults=defaults)  # type: ignore[misc]

    def _make_class(self, type_: Type, class_: Class | None) -> type:
        if class_ is None:
            raise NotImplementedError(f"the program does not have the class {type_.name}")
        members: dict[str, Any] = {"_program": self, "_script_class": class_, "__module__": "torchmdla.script"}
        for name in class_.methods:
            members[name] = _Lazy(name, name, LoadedProgram.entry)
            members[f"_script_{name}"] = _Lazy(f"_script_{name}", name, LoadedProgram.body)
        for name, (getter, setter) in class_.properties.items():
            members[name] = property(_caller(getter), _caller(setter) if setter else None)
        for name, value in class_.constants.items():
            members.setdefault(name, self.constant(value))
        base = self._base if class_.is_module else ScriptInstance
        return type(_short(type_.name), (base,), members)

    # --- values ------------------------------------------------------------------------------------

    def constant(self, value: Constant) -> Any:
        """Return a value of the program as Python's and PyTorch's objects. Shared objects stay shared."""
        make = _MAKERS.get(type(value))
        if make is None:
            return value
        if id(value) not in self._constants:
            self._kept.append(value)
            make(self, value)
        return self._constants[id(value)]

    def forget_values(self) -> None:
        """Forget the values that were made so far. They live as long as the objects that have them."""
        self._constants.clear()
        self._kept.clear()
        self._tensors.forget()

    def _keep(self, value: Constant, result: Any) -> Any:
        self._constants[id(value)] = result
        return result

    def _tensor(self, value: StoredTensor) -> None:
        self._keep(value, self._tensors.tensor(value))

    def _list(self, value: list[Any]) -> None:
        self._keep(value, []).extend(map(self.constant, value))

    def _tuple(self, value: tuple[Any, ...]) -> None:
        items = tuple(map(self.constant, value))
        self._keep(value, type(value)(*items) if hasattr(value, "_fields") else items)

    def _dict(self, value: dict[Any, Any]) -> None:
        self._keep(value, {}).update((self.constant(key), self.constant(item)) for key, item in value.items())

    def _object(self, value: Object) -> None:
        if value.class_name.startswith(CUSTOM):
            self._keep(value, _C.make_custom_object(value.class_name, self.constant(value.state)))
            return
        class_ = self.program.classes[value.class_name]
        python_class = self.python_class(class_.type)
        result: Any = self._keep(value, object.__new__(python_class))
        result._initialise()
        for name, attribute in value.attributes.items():
            result._set(name, self.constant(attribute))
        if value.state is not None or ("__setstate__" in class_.methods and not value.attributes):
            result._script___setstate__(self.constant(value.state))

    # --- types -------------------------------------------------------------------------------------

    def is_instance(self, value: Any, types: Sequence[Type]) -> bool:
        return any(_has_type(value, type_, self) for type_ in types)

    def python_enum(self, value: EnumValue) -> Any:
        """Return the member of the Python enumeration, if this process can import it."""
        module, _, name = value.class_name.removeprefix("__torch__.").rpartition(".")
        try:
            class_ = getattr(importlib.import_module(module), name)
            return class_[value.name]
        except (ImportError, AttributeError, KeyError, ValueError):
            return value


_MAKERS: Mapping[type, Callable[[LoadedProgram, Any], None]] = {
    StoredTensor: LoadedProgram._tensor,
    list: LoadedProgram._list,
    tuple: LoadedProgram._tuple,
    dict: LoadedProgram._dict,
    Object: LoadedProgram._object,
}


class ScriptInstance:
    """Object of a class of the program that is not a module."""

    _program: LoadedProgram
    _script_class: Class

    def _initialise(self) -> None:
        pass

    def _set(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<{self._script_class.type.name} object>"


class _Lazy:
    """Method that is compiled when it is first used."""

    def __init__(self, name: str, method: str, make: Callable[[LoadedProgram, Graph], Callable[..., Any]]) -> None:
        self._name = name
        self._method = method
        self._make = make

    def __get__(self, instance: Any, owner: Any) -> Any:
        defining = next(class_ for class_ in owner.__mro__ if class_.__dict__.get(self._name) is self)
        function = self._make(owner._program, owner._script_class.methods[self._method])
        setattr(defining, self._name, function)
        return function if instance is None else function.__get__(instance, owner)


def _caller(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: getattr(self, name)(*arguments)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _has_type(value: Any, type_: Type, context: LoadedProgram) -> bool:
    test = _TESTS.get(type_.kind)
    return test is not None and test(value, type_, context)


def _has_class(value: Any, type_: Type, context: LoadedProgram) -> bool:
    script_class = getattr(value, "_script_class", None)
    if script_class is not None:
        return bool(script_class.type.name == type_.name)
    return isinstance(value, torch.ScriptObject) and value._type().qualified_name() == type_.name


def _has_fields(value: Any, type_: Type, context: LoadedProgram) -> bool:
    return isinstance(value, context.python_class(type_)) or (
        isinstance(value, tuple) and hasattr(value, "_fields") and len(value) == len(type_.arguments)
    )


def _is_of(kinds: type | tuple[type, ...], *others: type) -> Callable[[Any, Type, LoadedProgram], bool]:
    return lambda value, type_, context: isinstance(value, kinds) and not isinstance(value, others)


_TESTS: Mapping[str, Callable[[Any, Type, LoadedProgram], bool]] = {
    "Tensor": _is_of(torch.Tensor),
    "int": _is_of(int, bool),
    "float": _is_of(float),
    "complex": _is_of(complex),
    "bool": _is_of(bool),
    "str": _is_of(str),
    "number": _is_of((int, float, complex), bool),
    "NoneType": _is_of(type(None)),
    "Device": _is_of(torch.device),
    "Generator": _is_of(torch.Generator),
    "Stream": _is_of(torch.Stream),
    "Future": _is_of(torch._C.Future),
    "Any": lambda value, type_, context: True,
    "AnyList": _is_of(list),
    "AnyTuple": _is_of(tuple),
    "List": lambda value, type_, context: (
        isinstance(value, list) and all(_has_type(item, type_.arguments[0], context) for item in value)
    ),
    "Dict": lambda value, type_, context: (
        isinstance(value, dict)
        and all(
            _has_type(key, type_.arguments[0], context) and _has_type(item, type_.arguments[1], context)
            for key, item in value.items()
        )
    ),
    "Tuple": lambda value, type_, context: (
        isinstance(value, tuple)
        and len(value) == len(type_.arguments)
        and all(_has_type(item, inner, context) for item, inner in zip(value, type_.arguments, strict=True))
    ),
    "Optional": lambda value, type_, context: value is None or _has_type(value, type_.arguments[0], context),
    "Union": lambda value, type_, context: any(_has_type(value, inner, context) for inner in type_.arguments),
    "Class": _has_class,
    "Interface": lambda value, type_, context: hasattr(value, "_script_class"),
    "NamedTuple": _has_fields,
    "Enum": lambda value, type_, context: (
        (isinstance(value, EnumValue) and value.class_name == type_.name) or isinstance(value, enum.Enum)
    ),
}
