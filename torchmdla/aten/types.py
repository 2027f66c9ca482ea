"""Types in the dialect for the values of PyTorch's type system.

``docs/aten.md`` has the table. Element types of tensors are signless (``i64``), except unsigned ones (``ui8``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch_mlir import ir

from torchmdla.importer.types import element_type

STRING = "!aten.str"


def tensor_type(dtype: torch.dtype, shape: tuple[int | None, ...]) -> str:
    """Return the type of a tensor; a size of None is not known.

    Raises:
        CompileError: the dialect has no such element type.
    """
    sizes = "".join("?x" if size is None else f"{size}x" for size in shape)
    return f"tensor<{sizes}{element_type(dtype).removeprefix('s')}>"


def is_tensor(type_: ir.Type) -> bool:
    """Return whether a type is a tensor type."""
    return isinstance(type_, ir.RankedTensorType | ir.UnrankedTensorType)


def is_none(type_: ir.Type) -> bool:
    """Return whether a type is the type of None."""
    return isinstance(type_, ir.NoneType)


def elements_of(type_: ir.Type) -> list[ir.Type]:
    """Return the types in a ``tuple<…>``."""
    tuple_ = ir.TupleType(type_)
    return [tuple_.get_type(index) for index in range(tuple_.num_types)]


def fits(type_: ir.Type, expected: torch._C.JitType, repeated: int | None = None) -> bool:
    """Return whether a value of ``type_`` may be used where the schema expects ``expected``.

    ``repeated`` is the N of ``int[N]``. Any type fits a PyTorch type that the table below lacks (generators,
    dictionaries, classes).
    """
    kind = expected.kind()
    if kind == "OptionalType":
        return is_none(type_) or fits(type_, _element(expected), repeated)
    if kind == "ListType":
        if isinstance(type_, ir.TupleType):
            return all(fits(item, _element(expected)) for item in elements_of(type_))
        return repeated is not None and fits(type_, _element(expected))
    return kind not in _KINDS or _KINDS[kind][1](type_)


def describe(expected: torch._C.JitType, repeated: int | None = None) -> str:
    """Return a description of the types that :func:`fits` accepts."""
    kind = expected.kind()
    if kind == "OptionalType":
        return f"{describe(_element(expected), repeated)}, or none"
    if kind == "ListType":
        alternative = f", or one {describe(_element(expected))}" if repeated is not None else ""
        return f"a tuple with each element {describe(_element(expected))}{alternative}"
    return _KINDS[kind][0] if kind in _KINDS else f"a value of type {expected}"


def _element(type_: torch._C.JitType) -> torch._C.JitType:
    element: torch._C.JitType = type_.getElementType()  # type: ignore[attr-defined]
    return element


_Kind = tuple[str, Callable[[ir.Type], bool]]
_INTEGER: _Kind = ("an integer", lambda type_: isinstance(type_, ir.IntegerType) and type_.width > 1)
_STRING: _Kind = (STRING, lambda type_: str(type_) == STRING)

# Description and test of the types in the dialect, by the kind of PyTorch's type.
_KINDS: Mapping[str, _Kind] = {
    "TensorType": ("a tensor", is_tensor),
    "IntType": _INTEGER,
    "SymIntType": _INTEGER,
    "FloatType": ("a float", lambda type_: isinstance(type_, ir.FloatType)),
    "BoolType": ("i1", lambda type_: isinstance(type_, ir.IntegerType) and type_.width == 1),
    "ComplexType": ("a complex number", lambda type_: isinstance(type_, ir.ComplexType)),
    "NumberType": ("a number", lambda type_: isinstance(type_, ir.IntegerType | ir.FloatType | ir.ComplexType)),
    "StringType": _STRING,
    "DeviceObjType": _STRING,
    "NoneType": ("none", is_none),
}
