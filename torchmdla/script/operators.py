"""TorchScript's own operators, without PyTorch: on numbers, strings, lists, dicts, tuples and enumerations.

``OPERATORS`` has a Python function for each, by the name with the overload. The functions take all arguments of the
schema in order and give the results and errors of libtorch's operators (``register_prim_ops.cpp``). TorchScript's lists
and dicts are Python's, tuples are Python's, and an operator that changes its operand changes it in place.

Errors are of type RuntimeError with libtorch's text, as TorchScript's interpreter raises them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import singledispatch
from typing import Any

from torchmdla.script import numbers, strings
from torchmdla.script.ir import EnumValue
from torchmdla.script.numbers import Function, wrap
from torchmdla.script.strings import slice_of


class ScriptException(Exception):
    """Exception that a program raised (``prim::RaiseException``).

    Attributes:
        message: the text.
        class_name: the qualified name of the exception's class in Python, or None.
    """

    def __init__(self, message: str, class_name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.class_name = class_name


def _raise(message: str, class_name: str | None = None) -> None:
    raise ScriptException(message, class_name)


# Text


@singledispatch
def text_of(value: Any) -> str:
    """Return a value as TorchScript prints it. ``text_of.register`` adds types, such as tensors."""
    return str(value)


@text_of.register
def _(value: float) -> str:
    if math.isfinite(value) and abs(value) < 1e10 and value == int(value):
        return f"{'-' if math.copysign(1, value) < 0 and not value else ''}{int(value)}."
    return f"{value:.17g}"


@text_of.register
def _(value: complex) -> str:
    imaginary = text_of(value.imag)
    return f"{text_of(value.real)}{'' if imaginary.startswith('-') else '+'}{imaginary}j"


@text_of.register
def _(value: list) -> str:  # type: ignore[type-arg]
    return f"[{', '.join(map(text_of, value))}]"


@text_of.register
def _(value: tuple) -> str:  # type: ignore[type-arg]
    return f"({', '.join(map(text_of, value))}{',' if len(value) == 1 else ''})"


@text_of.register
def _(value: dict) -> str:  # type: ignore[type-arg]
    return f"{{{', '.join(f'{text_of(key)}: {text_of(item)}' for key, item in value.items())}}}"


@text_of.register
def _(value: EnumValue) -> str:
    return f"Enum<{value.class_name}.{value.name}>"


def format_text(text: str, *values: Any) -> str:
    """Return a text with values in place of ``{}``."""
    parts = text.split("{}")
    if len(parts) - 1 > len(values):
        raise RuntimeError(f"Too few arguments for format string: {text}")
    return "".join(part + text_of(value) for part, value in zip(parts[:-1], values, strict=False)) + parts[-1]


def format_percent(text: str, values: Any) -> str:
    """Return a text with values in place of ``%d`` and others, as the operator ``%`` does."""
    operands = values if isinstance(values, tuple) else (values,)
    result, begin, used = "", 0, 0
    while (place := text.find("%", begin)) >= 0:
        if place == len(text) - 1:
            raise RuntimeError("Incomplete format specifier")
        result += text[begin:place]
        key, begin = text[place + 1], place + 2
        if key == "%":
            result += "%"
            continue
        if used >= len(operands):
            raise RuntimeError("Too few arguments for format string")
        if key not in _SPECIFIERS:
            raise RuntimeError(f"The specifier %{key} is not supported in TorchScript format strings")
        result += _SPECIFIERS[key](key, operands[used])
        used += 1
    if used != len(operands):
        raise RuntimeError("Too many arguments for format string")
    return result + text[begin:]


def _number(key: str, value: Any) -> Any:
    if not isinstance(value, (int, float, complex)):
        raise RuntimeError(f"%{key} requires a number for formatting, but got {_tag(value)}")
    return value


def _format_integer(key: str, value: Any) -> str:
    number = _number(key, value)
    return str(int(number) if isinstance(number, int) else _to_int32(number))


def _to_int32(number: float) -> int:
    return int(number) if -(2.0**31) <= number < 2.0**31 else -(2**31)


def _format_float(key: str, value: Any) -> str:
    return f"{numbers.OPERATORS['aten::Float.int'](_number(key, value)):.6{key}}"


def _format_letter(key: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return chr(value & 255).encode("latin-1").decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or len(value) != 1:
        raise RuntimeError(f"%{key} requires an int or char for formatting, but got {_tag(value)}")
    return value


_SPECIFIERS: Mapping[str, Callable[[str, Any], str]] = {
    **dict.fromkeys("di", _format_integer),
    **dict.fromkeys("eEfF", _format_float),
    "c": _format_letter,
    "s": lambda key, value: text_of(value),
}

_TAGS: Mapping[type, str] = {
    type(None): "None", bool: "Bool", int: "Int", float: "Double", complex: "ComplexDouble", str: "String",
    tuple: "Tuple", dict: "GenericDict", EnumValue: "Enum",
}  # fmt: skip


def _tag(value: Any) -> str:
    """Return libtorch's name of a value's type."""
    if isinstance(value, list):
        return (
            {bool: "BoolList", int: "IntList", float: "DoubleList"}.get(type(value[0]), "GenericList")
            if value
            else "GenericList"
        )
    return _TAGS.get(type(value), "Tensor" if hasattr(value, "numel") else "Object")


# Lists


def _get(values: list[Any], index: int) -> Any:
    try:
        return values[index]
    except IndexError:
        raise RuntimeError("list index out of range") from None


def _set(values: list[Any], index: int, value: Any) -> list[Any]:
    try:
        values[index] = value
    except IndexError:
        raise RuntimeError("list index out of range") from None
    return values


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _pop(values: list[Any], index: int, message: str = "pop from empty list") -> Any:
    if not values:
        raise RuntimeError(message)
    try:
        return values.pop(index)
    except IndexError:
        raise RuntimeError("list index out of range") from None


def _delete(values: list[Any], index: int) -> None:
    _pop(values, index, "pop index out of range")


def _remove(values: list[Any], value: Any) -> None:
    try:
        values.remove(value)
    except ValueError:
        raise RuntimeError("list.remove(x): x not in list") from None


def _index(values: list[Any], value: Any) -> int:
    try:
        return values.index(value)
    except ValueError:
        raise RuntimeError(f"'{_streamed(value)}' is not in list") from None


def _streamed(value: Any) -> str:
    """Return a value as C++ writes it to a stream."""
    return f"{value:g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)


def _extend_in_place(values: list[Any], others: list[Any]) -> list[Any]:
    values += others
    return values


def _repeat_in_place(values: list[Any], count: int) -> list[Any]:
    values *= count
    return values


def _slice(values: list[Any], start: int | None, end: int | None, step: int) -> list[Any]:
    return values[slice_of(start, end, step)]


def _sort(values: list[Any], reverse: bool) -> None:
    values.sort(reverse=reverse)


def _smallest(values: list[Any]) -> Any:
    if not values:
        raise RuntimeError("min() arg is an empty sequence")
    return min(values)


def _largest(values: list[Any]) -> Any:
    if not values:
        raise RuntimeError("max() arg is an empty sequence")
    return max(values)


def _smaller_list(a: list[Any], b: list[Any]) -> list[Any]:
    return _chosen(a, b, operator.lt)


def _larger_list(a: list[Any], b: list[Any]) -> list[Any]:
    return _chosen(a, b, operator.gt)


def _chosen(a: list[Any], b: list[Any], compare: Callable[[Any, Any], bool]) -> list[Any]:
    for left, right in zip(a, b, strict=False):
        if left != right:
            return a if compare(left, right) else b
    return a if compare(len(a), len(b)) else b


def _list_range(count: int) -> list[int]:
    if count < 0:
        raise RuntimeError("vector::reserve")
    return list(range(count))


def _lists() -> Iterator[tuple[str, Function]]:
    for kind in ("int", "float", "bool", "str", "Tensor"):
        yield f"aten::remove.{kind}", _remove
        yield f"aten::index.list_{kind}", _index
        yield f"aten::count.{kind}", list.count
        yield f"aten::__contains__.{kind}_list", list.__contains__
        yield f"aten::eq.{kind}_list", operator.eq
        yield f"aten::ne.{kind}_list", operator.ne
        yield f"aten::any.{kind}", any
        yield f"aten::all.{kind}", all
        yield f"aten::sort.{kind}", _sort
        yield f"aten::sorted.{kind}", sorted
        yield f"prim::min.self_{kind}", _smallest
        yield f"prim::max.self_{kind}", _largest
        yield f"prim::min.{kind}_list", _smaller_list
        yield f"prim::max.{kind}_list", _larger_list
    yield "aten::sum.int", lambda values: wrap(sum(values))
    yield "aten::sum.bool", sum
    yield "aten::sum.float", lambda values: sum(values, 0.0)
    yield "aten::sum.complex", lambda values: sum(values, 0j)


_LISTS: Mapping[str, Function] = {
    "aten::__getitem__.t": _get,
    "aten::select.t": _get,
    "aten::_set_item.t": _set,
    "aten::append.t": _append,
    "aten::reverse.t": list.reverse,
    "aten::extend.t": list.extend,
    "aten::copy.t": list.copy,
    "aten::list.t": list,
    "aten::clear.t": list.clear,
    "aten::Delete.t": _delete,
    "aten::insert.t": list.insert,
    "aten::pop.t": _pop,
    "aten::add.t": operator.add,
    "aten::add_.t": _extend_in_place,
    "aten::mul.left_t": operator.mul,
    "aten::mul.right_": operator.mul,
    "aten::mul_.t": _repeat_in_place,
    "aten::slice.t": _slice,
    "aten::len.t": len,
    "aten::len.any": len,
    "prim::rangelist": _list_range,
}


# Dicts


def _look_up(values: dict[Any, Any], key: Any) -> Any:
    try:
        return values[key]
    except KeyError:
        raise RuntimeError(f"KeyError: {text_of(key)}") from None


def _pop_key(values: dict[Any, Any], key: Any) -> Any:
    try:
        return values.pop(key)
    except KeyError:
        raise RuntimeError(f"KeyError: {text_of(key)}") from None


def _delete_key(values: dict[Any, Any], key: Any) -> None:
    _pop_key(values, key)


def _pop_first(values: dict[Any, Any]) -> tuple[Any, Any]:
    if not values:
        raise RuntimeError("popitem(): dictionary is empty")
    key = next(iter(values))
    return key, values.pop(key)


_DICT: Mapping[str, Function] = {
    "aten::len.Dict_": len,
    "aten::keys.": list,
    "aten::values.": lambda values: list(values.values()),
    "aten::items.": lambda values: list(values.items()),
    "aten::__getitem__.Dict_": _look_up,
    "aten::get.": dict.get,
    "aten::get.default_": dict.get,
    "aten::setdefault.": dict.setdefault,
    "aten::Delete.Dict_": _delete_key,
    "aten::pop.Dict_": _pop_key,
    "aten::pop.Dict_default_": dict.pop,
    "aten::popitem.": _pop_first,
    "aten::clear.": dict.clear,
    "aten::update.": dict.update,
    "aten::copy.Dict_": dict.copy,
    "aten::__contains__.": dict.__contains__,
    "aten::_set_item.": dict.__setitem__,
    "aten::dict.": dict,
    "aten::dict.Dict_": dict,
}

_KEYS = ("str", "int", "bool", "float", "complex", "Tensor")


# Others


def _range_length(low: int, high: int, step: int) -> int:
    if not step:
        raise RuntimeError("range() arg 3 must not be zero")
    if step > 0 and low < high:
        return 1 + (high - 1 - low) // step
    if step < 0 and low > high:
        return 1 + (low - 1 - high) // -step
    return 0


def _is(a: Any, b: Any) -> bool:
    # Numbers and strings do not have an identity: those of one type that are equal are the same.
    return a is b or (type(a) is type(b) and isinstance(a, (int, float, complex, str)) and a == b)


def _unwrap(value: Any) -> Any:
    if value is None:
        raise RuntimeError("Unwrapping null optional")
    return value


def _enum_value(member: EnumValue) -> Any:
    return member.value


def _infer_size(a: list[int], b: list[int]) -> list[int]:
    count = max(len(a), len(b))
    result = [1] * count
    for place in range(count):
        left = a[place - count + len(a)] if place >= count - len(a) else 1
        right = b[place - count + len(b)] if place >= count - len(b) else 1
        if left != right and 1 not in (left, right):
            raise RuntimeError(
                f"The size of tensor a ({left}) must match the size of tensor b ({right})"
                f" at non-singleton dimension {place}"
            )
        result[place] = right if left == 1 else left
    return result


OPERATORS: Mapping[str, Function] = {
    **numbers.OPERATORS,
    **strings.OPERATORS,
    **dict(_lists()),
    **_LISTS,
    **{name + key: function for name, function in _DICT.items() for key in _KEYS},
    "aten::dict": dict,
    "aten::str": text_of,
    "aten::format": format_text,
    "aten::percentFormat": format_percent,
    "prim::RaiseException": _raise,
    "prim::EnumName": lambda member: member.name,
    **{f"prim::EnumValue.{kind}": _enum_value for kind in ("int", "float", "str")},
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: wrap(start + index * step),
    "aten::__is__": _is,
    "aten::__isnot__": lambda a, b: not _is(a, b),
    "aten::_unwrap_optional": _unwrap,
    "prim::unchecked_unwrap_optional": lambda value: value,
    "prim::unchecked_cast": lambda value: value,
    "aten::Size": lambda sizes: sizes,
    "aten::_infer_size": _infer_size,
    "aten::broadcast_shapes": _infer_size,
    "aten::_size_if_not_equal": lambda a, b: None if a == b else a,
    "prim::IfThenElse": lambda condition, a, b: a if condition else b,
    "prim::TupleIndex": _get,
    "aten::is_scripting": lambda: True,
    "aten::has_torch_function": lambda *values: False,
}
