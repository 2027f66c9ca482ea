"""Python's values as values of the C interface."""

from __future__ import annotations

import ctypes
from typing import Any

from torchmdla_runtime.arrays import NUMBERS, as_array, copy_of, tensor_of
from torchmdla_runtime.library import Value

_NONE, _BOOLEAN, _INTEGER, _REAL, _STRING, _TENSOR, _LIST, _TUPLE, _DICT = range(9)


class Arguments:
    """Values of a call, with the objects whose memory they refer to."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._owners: list[Any] = []
        self.values = (Value * len(arguments))(*map(self._convert, arguments))

    def _convert(self, argument: Any) -> Value:
        value = Value()
        content = value.content
        # A bool is also an int.
        if argument is None:
            value.kind = _NONE
        elif isinstance(argument, bool):
            value.kind, content.integer = _BOOLEAN, argument
        elif isinstance(argument, int):
            value.kind, content.integer = _INTEGER, argument
        elif isinstance(argument, float):
            value.kind, content.real = _REAL, argument
        elif isinstance(argument, str):
            self._set_text(value, argument.encode())
        elif isinstance(argument, list | tuple):
            self._set_items(value, _LIST if isinstance(argument, list) else _TUPLE, list(argument))
        elif isinstance(argument, dict):
            self._set_items(value, _DICT, [part for pair in argument.items() for part in pair])
        else:
            self._set_tensor(value, argument)
        return value

    def _set_text(self, value: Value, text: bytes) -> None:
        buffer = ctypes.create_string_buffer(text)
        self._owners.append(buffer)
        value.kind, value.count, value.content.text = _STRING, len(text), ctypes.addressof(buffer)

    def _set_items(self, value: Value, kind: int, items: list[Any]) -> None:
        converted = (Value * len(items))(*map(self._convert, items))
        self._owners.append(converted)
        value.kind, value.count, value.content.items = kind, len(items), converted

    def _set_tensor(self, value: Value, argument: Any) -> None:
        array = as_array(argument)
        if array is None or array.dtype not in NUMBERS:
            raise TypeError(f"methods do not take a {type(argument).__name__}{'' if array is None else array.dtype}")
        tensor = tensor_of(array, NUMBERS[array.dtype])
        self._owners += [array, tensor]
        value.kind, value.content.tensor = _TENSOR, ctypes.pointer(tensor)


def result_of(value: Value) -> Any:
    """Return a result as a value of Python. Tensors become new arrays."""
    content = value.content
    if value.kind == _NONE:
        return None
    if value.kind == _BOOLEAN:
        return bool(content.integer)
    if value.kind == _INTEGER:
        return content.integer
    if value.kind == _REAL:
        return content.real
    if value.kind == _STRING:
        return ctypes.string_at(content.text, value.count).decode(errors="surrogateescape")
    if value.kind == _TENSOR:
        return copy_of(content.tensor.contents)
    items = [result_of(content.items[place]) for place in range(value.count)]
    if value.kind == _DICT:
        return dict(zip(items[::2], items[1::2], strict=True))
    return tuple(items) if value.kind == _TUPLE else items
