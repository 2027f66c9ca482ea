"""Arguments and results of a program's functions, as TorchScript takes and returns them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchmdla.capture.script.graph_text import type_text
from torchmdla.script.ir import EnumValue, Graph, Type

if TYPE_CHECKING:
    from torchmdla.capture.script.program import LoadedProgram

Converter = Callable[[Any], Any]


class Signature:
    """Parameters of a function: their types, names and default values.

    Lists, dicts and tuples are copied on their way in and out, as TorchScript does.
    """

    def __init__(self, graph: Graph, program: LoadedProgram) -> None:
        self._graph = graph
        self._program = program
        self.name = graph.name.rpartition(".")[2]
        self._is_method = bool(graph.parameters) and graph.inputs[0].type.kind in ("Class", "Interface")
        self._types = [value.type for value in graph.inputs]
        self._converters = [_converter(type_, program) for type_ in self._types]
        self._places = {name: place for place, name in enumerate(graph.parameters)}
        defaults = {name: program.constant(value) for name, value in graph.defaults.items()}
        self._defaults = [(name, defaults[name]) if name in defaults else None for name in graph.parameters]
        result = graph.outputs[0].type if len(graph.outputs) == 1 and graph.returns.kind == "Any" else graph.returns
        self._result = _result_converter(result, program)

    @property
    def template(self) -> Callable[..., Any]:
        """Return a function with the name, for ``functools.wraps``."""

        def template() -> None: ...

        template.__name__ = template.__qualname__ = self.name
        return template

    def bind(self, positional: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in order, converted to the parameters' types.

        Raises:
            RuntimeError: an argument is missing, unknown or of another type. The text is PyTorch's.
        """
        count = len(self._types)
        if len(positional) > count:
            taken = count - self._is_method
            raise RuntimeError(
                f"{self.name}() expected at most {taken} argument(s) but received "
                f"{len(positional) + len(named) - self._is_method} argument(s). Declaration: {self._declaration()}"
            )
        arguments = list(positional)
        used = 0
        for place in range(len(arguments), count):
            name = self._graph.parameters[place]
            if name in named:
                arguments.append(named[name])
                used += 1
            elif (default := self._defaults[place]) is not None:
                arguments.append(default[1])
            else:
                raise RuntimeError(
                    f"{self.name}() is missing value for argument '{name}'. Declaration: {self._declaration()}"
                )
        if used != len(named):
            self._refuse(named, len(positional))
        for place, convert in enumerate(self._converters):
            if convert is None:
                continue
            try:
                arguments[place] = convert(arguments[place])
            except TypeError:
                raise RuntimeError(self._mismatch(place, arguments[place])) from None
        return arguments

    def convert_result(self, value: Any) -> Any:
        """Return a result as Python sees it."""
        return value if self._result is None else self._result(value)

    def _refuse(self, named: Mapping[str, Any], count: int) -> None:
        unknown = [name for name in named if name not in self._places]
        if unknown:
            raise RuntimeError(
                f"Unknown keyword argument '{unknown[0]}' for operator '{self.name}'. Schema: {self._declaration()}"
            )
        twice = next(name for name in named if self._places[name] < count)
        raise RuntimeError(f"{self.name}() got multiple values for argument '{twice}'")

    def _mismatch(self, place: int, value: Any) -> str:
        return (
            f"{self.name}() Expected a value of type '{self._types[place]}' for argument "
            f"'{self._graph.parameters[place]}' but instead found type '{_type_name(value)}'.\n"
            f"Position: {place}\nValue: {value!r}\nDeclaration: {self._declaration()}"
        )

    def _declaration(self) -> str:
        parameters = []
        for name, type_, default in zip(self._graph.parameters, self._types, self._defaults, strict=True):
            text = f"{type_text(type_)} {name}"
            parameters.append(text if default is None else f"{text}={default[1]!r}")
        return f"{self.name}({', '.join(parameters)}) -> {type_text(self._graph.returns)}"


def _type_name(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "Tensor"
    return "Optional[NoneType]" if value is None else type(value).__name__


# --- arguments -------------------------------------------------------------------------------------


def _converter(type_: Type, program: LoadedProgram) -> Converter | None:
    """Return the function that converts an argument, or raises TypeError; None if every object is taken."""
    make = _CONVERTERS.get(type_.kind)
    return None if make is None else make(type_, program)


def _exactly(kinds: type | tuple[type, ...]) -> Callable[[Type, LoadedProgram], Converter]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError
        return value

    return lambda type_, program: convert


def _to_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _numbers_of_objects().get(value) if isinstance(value, _ENUMERATED) else None
    if number is None:
        raise TypeError
    return number


# Objects of PyTorch that are integers in TorchScript.
_ENUMERATED = (torch.dtype, torch.layout, torch.memory_format)


def _numbers_of_objects() -> Mapping[Any, int]:
    if not _NUMBERS:
        _NUMBERS.update({torch.strided: 0, torch.sparse_coo: 1, torch._mkldnn: 5})  # type: ignore[attr-defined]
        _NUMBERS.update(
            {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
        )
        for number, name in enumerate(_DTYPES):
            _NUMBERS[getattr(torch, name)] = number
    return _NUMBERS


_NUMBERS: dict[Any, int] = {}
_DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16",
)  # fmt: skip


def _to_float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _list(type_: Type, program: LoadedProgram) -> Converter:
    convert = _converter(type_.arguments[0], program)

    def apply(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return list(value) if convert is None else list(map(convert, value))

    return apply


def _dict(type_: Type, program: LoadedProgram) -> Converter:
    key, item = (_converter(argument, program) or _same for argument in type_.arguments)

    def apply(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError
        return {key(name): item(content) for name, content in value.items()}

    return apply


def _tuple(type_: Type, program: LoadedProgram) -> Converter:
    converters = [_converter(argument, program) or _same for argument in type_.arguments]

    def apply(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(converters):
            raise TypeError
        return tuple(convert(item) for convert, item in zip(converters, value, strict=True))

    return apply


def _named_tuple(type_: Type, program: LoadedProgram) -> Converter:
    class_ = program.python_class(type_)
    plain = _tuple(type_, program) if type_.arguments else tuple
    return lambda value: class_(*plain(value))


def _optional(type_: Type, program: LoadedProgram) -> Converter | None:
    convert = _converter(type_.arguments[0], program)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _union(type_: Type, program: LoadedProgram) -> Converter:
    converters = [_converter(argument, program) or _same for argument in type_.arguments]

    def apply(value: Any) -> Any:
        for convert in converters:
            try:
                return convert(value)
            except TypeError:
                continue
        raise TypeError

    return apply


def _enum(type_: Type, program: LoadedProgram) -> Converter:
    def apply(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return EnumValue(type_.name, value.name, value.value)
        if isinstance(value, EnumValue):
            return value
        raise TypeError

    return apply


def _same(value: Any) -> Any:
    return value


_CONVERTERS: Mapping[str, Callable[[Type, LoadedProgram], Converter | None]] = {
    "Tensor": _exactly(torch.Tensor),
    "int": lambda type_, program: _to_int,
    "float": lambda type_, program: _to_float,
    "bool": _exactly(bool),
    "str": _exactly(str),
    "complex": _exactly(complex),
    "number": _exactly((int, float, complex)),
    "NoneType": _exactly(type(None)),
    "Device": lambda type_, program: lambda value: torch.device(value),
    "List": _list,
    "Dict": _dict,
    "Tuple": _tuple,
    "NamedTuple": _named_tuple,
    "Optional": _optional,
    "Union": _union,
    "Enum": _enum,
}


# --- results ---------------------------------------------------------------------------------------


def _result_converter(type_: Type, program: LoadedProgram) -> Converter | None:
    """Return the function that converts a result; None if nothing changes."""
    make = _RESULTS.get(type_.kind)
    return None if make is None else make(type_, program)


def _result_list(type_: Type, program: LoadedProgram) -> Converter:
    convert = _result_converter(type_.arguments[0], program)
    return list if convert is None else lambda value: list(map(convert, value))


def _result_dict(type_: Type, program: LoadedProgram) -> Converter:
    convert = _result_converter(type_.arguments[1], program)
    return dict if convert is None else lambda value: {key: convert(item) for key, item in value.items()}


def _result_tuple(type_: Type, program: LoadedProgram) -> Converter | None:
    converters = [_result_converter(argument, program) for argument in type_.arguments]
    if not any(converters):
        return None
    functions = [convert or _same for convert in converters]

    def apply(value: Any) -> Any:
        items = [convert(item) for convert, item in zip(functions, value, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)

    return apply


def _result_optional(type_: Type, program: LoadedProgram) -> Converter | None:
    convert = _result_converter(type_.arguments[0], program)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _result_of_any_type(type_: Type, program: LoadedProgram) -> Converter:
    def apply(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(apply, value))
        if isinstance(value, dict):
            return {key: apply(item) for key, item in value.items()}
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(apply, value))
        return program.python_enum(value) if isinstance(value, EnumValue) else value

    return apply


_RESULTS: Mapping[str, Callable[[Type, LoadedProgram], Converter | None]] = {
    "List": _result_list,
    "Dict": _result_dict,
    "Tuple": _result_tuple,
    "NamedTuple": _result_tuple,
    "Optional": _result_optional,
    "Enum": lambda type_, program: program.python_enum,
    **dict.fromkeys(("Any", "Union", "AnyList", "AnyTuple"), _result_of_any_type),
}
