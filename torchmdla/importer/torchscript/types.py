"""TorchScript's types in the Torch dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import quote


def dialect_type(type_: Any) -> str:
    """Return a type of TorchScript as the Torch dialect writes it: ``"!torch.list<optional<int>>"``.

    Tensors are ``!torch.tensor``, because the sizes that a trace recorded need not hold.

    Raises:
        CompileError: If the dialect does not have the type.
    """
    return f"!torch.{_inner(type_)}"


def _inner(type_: Any) -> str:
    kind = type_.kind()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _NESTED:
        return _NESTED[kind](type_)
    raise CompileError(f"type {type_} has no form in the Torch dialect")


def _container(name: str) -> Callable[[Any], str]:
    return lambda type_: f"{name}<{', '.join(_inner(contained) for contained in type_.containedTypes())}>"


_PLAIN: Mapping[str, str] = {
    "TensorType": "tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "NumberType": "number",
    "StringType": "str",
    "DeviceObjType": "Device",
    "GeneratorType": "Generator",
    "NoneType": "none",
    "AnyType": "any",
}

_NESTED: Mapping[str, Callable[[Any], str]] = {
    "ListType": lambda type_: f"list<{_inner(type_.getElementType())}>",
    "OptionalType": lambda type_: f"optional<{_inner(type_.getElementType())}>",
    "TupleType": _container("tuple"),
    "UnionType": _container("union"),
    "DictType": lambda type_: f"dict<{_inner(type_.getKeyType())}, {_inner(type_.getValueType())}>",
    "ClassType": lambda type_: f"nn.Module<{quote(type_.qualified_name())}>",
}
