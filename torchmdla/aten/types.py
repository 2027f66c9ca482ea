"""Types in the dialect for the values of PyTorch's type system.

| PyTorch | dialect |
|---|---|
| ``Tensor`` | ``tensor<…>`` |
| ``int``, and values that TorchScript writes as an int (dtypes, layouts, memory formats) | an integer type |
| ``float`` | a float type |
| ``bool`` | ``i1`` |
| ``Scalar`` | any of the last three, or complex |
| ``str``, ``Device`` | ``!aten.str`` |
| ``None``, an optional that is absent | ``none`` |
| lists and tuples | ``tuple<…>`` |

A literal integer is ``i32`` if the value fits, else ``i64``. A literal float is ``f32`` if that is exact, else ``f64``.
Element types of tensors are signless (``i64``), except unsigned ones (``ui8``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch_mlir import ir

# Element types by torch dtype.
ELEMENT_TYPES: Mapping[torch.dtype, str] = {
    torch.uint8: "ui8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.bool: "i1",
}

STRING = "!aten.str"


def tensor_type(dtype: torch.dtype, shape: tuple[int | None, ...]) -> str:
    """Return the type of a tensor; a size of None is not known.

    Raises:
        ValueError: MLIR has no such element type.
    """
    if dtype not in ELEMENT_TYPES:
        raise ValueError(f"the aten dialect has no element type for {dtype}")
    sizes = "".join("?x" if size is None else f"{size}x" for size in shape)
    return f"tensor<{sizes}{ELEMENT_TYPES[dtype]}>"


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

    ``repeated`` is the N of ``int[N]``. Any type fits a PyTorch type that the table above lacks (generators,
    dictionaries, classes).
    """
    kind = expected.kind()
    if kind == "OptionalType":
        return is_none(type_) or fits(type_, _element(expected), repeated)
    if kind == "ListType":
        if isinstance(type_, ir.TupleType):
            return all(fits(item, _element(expected)) for item in elements_of(type_))
        return repeated is not None and fits(type_, _element(expected))
    return kind not in _FITS or _FITS[kind](type_)


def describe(expected: torch._C.JitType, repeated: int | None = None) -> str:
    """Return a description of the types that :func:`fits` accepts."""
    kind = expected.kind()
    if kind == "OptionalType":
        return f"{describe(_element(expected), repeated)}, or none"
    if kind == "ListType":
        alternative = f", or one {describe(_element(expected))}" if repeated is not None else ""
        return f"a tuple with each element {describe(_element(expected))}{alternative}"
    return _WORDS.get(kind, f"a value of type {expected}")


def _element(type_: torch._C.JitType) -> torch._C.JitType:
    element: torch._C.JitType = type_.getElementType()  # type: ignore[attr-defined]
    return element


def _is_bool(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width == 1


def _is_int(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width > 1


def _is_float(type_: ir.Type) -> bool:
    return isinstance(type_, ir.FloatType)


def _is_complex(type_: ir.Type) -> bool:
    return isinstance(type_, ir.ComplexType)


def _is_number(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType) or _is_float(type_) or _is_complex(type_)


def _is_string(type_: ir.Type) -> bool:
    return str(type_) == STRING


_FITS: Mapping[str, Callable[[ir.Type], bool]] = {
    "TensorType": is_tensor,
    "IntType": _is_int,
    "SymIntType": _is_int,
    "FloatType": _is_float,
    "BoolType": _is_bool,
    "ComplexType": _is_complex,
    "NumberType": _is_number,
    "StringType": _is_string,
    "DeviceObjType": _is_string,
    "NoneType": is_none,
}

_WORDS: Mapping[str, str] = {
    "TensorType": "a tensor",
    "IntType": "an integer",
    "SymIntType": "an integer",
    "FloatType": "a float",
    "BoolType": "i1",
    "ComplexType": "a complex number",
    "NumberType": "a number",
    "StringType": STRING,
    "DeviceObjType": STRING,
    "NoneType": "none",
}
