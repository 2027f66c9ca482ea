"""Inputs and results of the importer, and the names of PyTorch's types in the Torch dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from torchmdla.compiler.program import Argument, Result
from torchmdla.errors import CompileError
from torchmdla.importer.size_int import to_size_int

# The ``bits`` of a vector of zeros.
ZEROS = 1


@dataclass(frozen=True)
class TensorMeta:
    """Type of a tensor that was recorded at run time.

    Attributes:
        dtype: dtype of the elements. For a quantised tensor it is the dtype of the integers.
        shape: the sizes.
        strides: in elements, as ``Tensor.stride()``.
        quantisation: scale and zero point of a tensor that is quantised as a whole.
        bits: for an int8 input, the number of bits that its recorded content needs. :data:`ZEROS` for a vector of
            int64 whose recorded content is zeros. 0 if it needs all bits.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    quantisation: tuple[float, int] | None = None
    bits: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        shape, strides = tuple(map(to_size_int, tensor.shape)), tuple(map(to_size_int, tensor.stride()))
        if not tensor.is_quantized or tensor.qscheme() != torch.per_tensor_affine:
            return cls(tensor.dtype, shape, strides)
        integers = torch.uint8 if tensor.dtype == torch.quint8 else torch.int8
        return cls(integers, shape, strides, (tensor.q_scale(), tensor.q_zero_point()))


def record_value(value: object) -> Any:
    """Return a value that was recorded in a run, or its fake, in the form of a :data:`Record`."""
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [record_value(item) for item in value]
    return value


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

# Kinds of products, by the names in ``torch.backends.mkldnn``.
ProductKind = Literal["matmul", "conv", "rnn"]


@dataclass(frozen=True)
class ImportOptions:
    """Import options that a device (:class:`torchmdla.devices.Device`) sets for its programs.

    Attributes:
        composite_ops: operators that are kept, and not decomposed.
        bf16_products: products whose factors are rounded from float32 to bfloat16.
    """

    composite_ops: frozenset[str] = frozenset()
    bf16_products: frozenset[ProductKind] = frozenset()


DEFAULT_OPTIONS = ImportOptions()


# name of a value -> TensorMeta for a tensor, list of TensorMeta for a list of tensors, or the Python value itself
# otherwise: int (also for dtypes, layouts and memory formats), float, bool, None, str, device, list.
Record = Mapping[str, object]


@dataclass(frozen=True)
class Binding:
    """Rule by which the runtime makes one argument of ``@forward``.

    The argument is ``source.permute(permutation)``. It is already contiguous for the recorded strides, unless ``copy``
    is set. With ``copy`` the runtime must make it contiguous.

    Attributes:
        source: ``"input"`` for an input of the group. ``"constant"`` for the tensor of a ``prim::Constant``. ``"size"``
            for a symbol of a dynamic program, which is a scalar.
        index: the number of the input, of the subgraph's node, or of the symbol.
        name: the name of the source value.
        permutation: order of the source's dimensions.
        copy: whether the argument must be made contiguous.
        element: the element, if the source is a list.
        unversioned: whether a parameter may change without a new version. Its content shows a change.
    """

    source: Literal["input", "constant", "size"]
    index: int
    name: str
    permutation: tuple[int, ...] = ()
    copy: bool = False
    element: int | None = None
    unversioned: bool = False


@dataclass(frozen=True)
class OutputBinding:
    """Rule by which the runtime makes one output of the group.

    Two outputs may name one result: the group's subgraph returns one value twice, and eager returns one tensor twice.

    Attributes:
        source: ``"result"`` for ``results[index].permute(permutation)``. ``"input"`` for input ``index`` of the group,
            the same tensor. ``"constant"`` for the Python value ``value``.
        index: the number of the result or input.
        permutation: order of the result's dimensions.
        strides: the strides of eager's result. A permutation does not determine them for dimensions of size 1.
        value: the constant.
        quantisation: scale and zero point of a result that holds the integers of a quantised tensor.
    """

    source: Literal["result", "input", "constant"]
    index: int = -1
    permutation: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value: object = None
    quantisation: tuple[float, int] | None = None


@dataclass(frozen=True)
class ImportedGraph:
    """Program text of a group's subgraph, and the rules by which the runtime calls it.

    ``mlir`` is a module with one public ``func.func @forward``. ``arguments`` and ``results`` are in its order, and
    ``bindings[i]`` makes ``arguments[i]``. An op's location is ``"aten::add.Tensor"("graph":7:0)``, where 7 is the
    number of the subgraph's node. The text, and so the program's hash, does not depend on the location of the user's
    source. ``sources[7]`` is the node's place (``file:line``, empty when unknown) and ``ops[7]`` is its op.
    :func:`with_location` reads a diagnostic.
    """

    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[OutputBinding, ...]
    sources: tuple[str, ...]
    ops: tuple[str, ...]


# The element type in the Torch dialect, and the number of a dtype in TorchScript and the Torch dialect.
_DTYPES: dict[torch.dtype, tuple[str, int]] = {
    torch.uint8: ("ui8", 0),
    torch.int8: ("si8", 1),
    torch.int16: ("si16", 2),
    torch.int32: ("si32", 3),
    torch.int64: ("si64", 4),
    torch.float16: ("f16", 5),
    torch.float32: ("f32", 6),
    torch.float64: ("f64", 7),
    torch.complex64: ("complex<f32>", 9),
    torch.complex128: ("complex<f64>", 10),
    torch.bool: ("i1", 11),
    torch.bfloat16: ("bf16", 15),
}


# Floats of 16 bits.
HALVES = (torch.float16, torch.bfloat16)

# Dtypes that PyTorch's operators compute in for tensors of dtypes that they only store (``at::opmath_type``; integers
# follow C).
COMPUTED: Mapping[torch.dtype, torch.dtype] = {
    **dict.fromkeys(HALVES, torch.float32),
    **dict.fromkeys((torch.int8, torch.uint8, torch.int16), torch.int32),
}

# The numbers of layouts and memory formats in TorchScript and the Torch dialect.
LAYOUTS = {torch.strided: 0}
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's own name of a dtype, such as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def dtype_number(dtype: torch.dtype) -> int:
    """Return the number of a dtype in TorchScript and in the Torch dialect.

    Raises:
        CompileError: If the Torch dialect does not have the dtype.
    """
    return _look_up(_DTYPES, dtype, f"dtype {dtype_name(dtype)}")[1]


def dtype_of_number(number: int) -> torch.dtype:
    """Return the dtype of a number, as the inverse of :func:`dtype_number`.

    Raises:
        CompileError: If the number is not a dtype of the Torch dialect.
    """
    return _look_up({known: dtype for dtype, (_, known) in _DTYPES.items()}, number, f"dtype number {number}")


def element_type(dtype: torch.dtype) -> str:
    """Return the element type in the Torch dialect, such as ``"si64"``.

    Raises:
        CompileError: If the Torch dialect does not have the dtype.
    """
    return _look_up(_DTYPES, dtype, f"dtype {dtype_name(dtype)}")[0]


def dtype_of_element(element: str) -> torch.dtype:
    """Return the dtype of an element type, as the inverse of :func:`element_type`.

    Raises:
        CompileError: If the importer does not write this element type.
    """
    return _look_up({known: dtype for dtype, (known, _) in _DTYPES.items()}, element, f"element type {element}")


def tensor_type(meta: TensorMeta) -> str:
    """Return the Torch dialect's value tensor type, such as ``"!torch.vtensor<[2,3],f32>"``."""
    return f"!torch.vtensor<[{','.join(map(str, meta.shape))}],{element_type(meta.dtype)}>"


def _look_up(table: Mapping[KeyT, ValueT], key: KeyT, description: str) -> ValueT:
    if key not in table:
        raise CompileError(f"{description} is not supported")
    return table[key]
