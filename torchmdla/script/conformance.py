"""Check that the attributes of objects in a pickle have the types that their classes declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmdla.script.ir import Class, EnumValue, Object, StoredTensor, Type

_PLAIN: Mapping[str, tuple[type, ...]] = {
    "Tensor": (StoredTensor,),
    "int": (int,),
    "float": (float,),
    "complex": (complex,),
    "number": (int, float, complex),
    "bool": (bool,),
    "str": (str,),
    "Device": (str,),
    "NoneType": (type(None),),
    "AnyList": (list,),
    "AnyTuple": (tuple,),
}


class Conformance:
    """Check of values against types. Shared containers are checked once.

    Args:
        class_of: returns a class by its qualified name; None for a class that the archive does not define.
    """

    def __init__(self, class_of: Callable[[str], Class | None]) -> None:
        self._class_of = class_of
        self._checked: set[tuple[int, Type]] = set()

    def fault_of(self, value: Object) -> str:
        """Return the name of an attribute that is missing or has another type than declared; empty if all conform."""
        class_ = self._class_of(value.class_name)
        if class_ is None or value.state is not None:
            return ""
        for name, type_ in class_.attributes.items():
            if name not in value.attributes or not self.conforms(value.attributes[name], type_):
                return name
        return ""

    def conforms(self, value: Any, type_: Type) -> bool:
        """Return whether a value has a type."""
        if plain := _PLAIN.get(type_.kind):
            return type(value) in plain
        if type_.kind == "Optional":
            return value is None or self.conforms(value, type_.arguments[0])
        if type_.kind in ("Class", "Interface"):
            return isinstance(value, Object) and (type_.kind == "Interface" or value.class_name == type_.name)
        if type_.kind == "Enum":
            return isinstance(value, EnumValue) and value.class_name == type_.name
        if type_.kind == "Union":
            return any(self.conforms(value, member) for member in type_.arguments)
        if type_.kind in _CONTAINERS:
            return self._conform(value, type_)
        return True

    def _conform(self, value: Any, type_: Type) -> bool:
        """Return whether a container and its parts have their types."""
        if type(value) is not _CONTAINERS[type_.kind]:
            return False
        if (id(value), type_) in self._checked:
            return True
        self._checked.add((id(value), type_))
        return _PARTS[type_.kind](self, value, type_.arguments)

    def _elements(self, value: list[Any], types: Sequence[Type]) -> bool:
        return all(self.conforms(part, types[0]) for part in value)

    def _items(self, value: dict[Any, Any], types: Sequence[Type]) -> bool:
        return all(self.conforms(key, types[0]) and self.conforms(part, types[1]) for key, part in value.items())

    def _fields(self, value: tuple[Any, ...], types: Sequence[Type]) -> bool:
        return len(value) == len(types) and all(map(self.conforms, value, types))


_PARTS: Mapping[str, Callable[[Conformance, Any, Sequence[Type]], bool]] = {
    "List": Conformance._elements,
    "Dict": Conformance._items,
    "Tuple": Conformance._fields,
    "NamedTuple": Conformance._fields,
}
_CONTAINERS: Mapping[str, type] = {"List": list, "Dict": dict, "Tuple": tuple, "NamedTuple": tuple}
