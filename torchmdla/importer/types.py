"""What the importer takes and gives, and how PyTorch's types are written in the Torch dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchmdla.compiler.program import Argument, Result
from torchmdla.errors import CompileError
from torchmdla.importer.size_int import tracked


@dataclass(frozen=True)
class TensorMeta:
    """The type of a tensor that was seen at run time: ``strides`` are in elements, as ``Tensor.stride()``.
    ``quantisation``: scale and zero point of one that is quantised as a whole, whose ``dtype`` is that of its
    integers. ``bits``: of an input of int8, how many were enough for what it held; 0 if not fewer than it has."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    quantisation: tuple[float, int] | None = None
    bits: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        shape, strides = tuple(map(tracked, tensor.shape)), tuple(map(tracked, tensor.stride()))
        if not tensor.is_quantized or tensor.qscheme() != torch.per_tensor_affine:
            return cls(tensor.dtype, shape, strides)
        integers = torch.uint8 if tensor.dtype == torch.quint8 else torch.int8
        return cls(integers, shape, strides, (tensor.q_scale(), tensor.q_zero_point()))


def recorded(value: object) -> Any:
    """A value that was seen in a run, or its fake, as a :data:`Record` holds it."""
    if isinstance(value, torch.Tensor):
        return TensorMeta.of(value)
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    return value


# Products by the names that ``torch.backends.mkldnn`` has for them.
ProductKind = Literal["matmul", "conv", "rnn"]


@dataclass(frozen=True)
class Wanted:
    """What a device wants of the programs that it compiles (:class:`torchmdla.devices.Device`).

    Attributes:
        composite_ops: operators that are written as themselves, not in terms of others.
        bf16_products: products whose factors are rounded from float32 to bfloat16.
    """

    composite_ops: frozenset[str] = frozenset()
    bf16_products: frozenset[ProductKind] = frozenset()


NOTHING = Wanted()


# debugName of a value -> TensorMeta for a tensor, list of TensorMeta for a list of tensors, and for everything else the
# Python value itself: int (dtypes, layouts and memory formats too), float, bool, None, str, device, list.
Record = Mapping[str, object]


@dataclass(frozen=True)
class Binding:
    """How the runtime makes one argument of ``@forward``.

    The source is input ``index`` of the group, or the tensor of the subgraph's node number ``index`` (a
    ``prim::Constant``), or element ``element`` of it where that constant is a list; ``name`` is its debugName. Of a
    dynamic program it may be symbol ``index``, a scalar.
    The argument is ``source.permute(permutation)``, which is contiguous already when the strides are those
    recorded, unless ``copy``: then it must be made contiguous. A parameter that is ``unversioned`` may change without
    a new version: its content tells whether it has.
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
    """How the runtime makes one output of the group.

    ``"result"``: ``results[index].permute(permutation)``. ``"input"``: input ``index`` of the group, the same tensor.
    ``"constant"``: the Python value ``value``. Two outputs may name one result: the group's subgraph returns one
    value twice, and eager returns one tensor twice. ``strides``: those of eager's result, which no permutation tells of
    dimensions of size 1. ``quantisation``: of a result that is the integers of a quantised tensor.
    """

    source: Literal["result", "input", "constant"]
    index: int = -1
    permutation: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value: object = None
    quantisation: tuple[float, int] | None = None


@dataclass(frozen=True)
class ImportedGraph:
    """A group's subgraph as a program's text, and how the runtime calls it.

    ``mlir`` is a module with one public ``func.func @forward``; ``arguments`` and ``results`` are in its order, and
    ``bindings[i]`` makes ``arguments[i]``. An op's location is ``"aten::add.Tensor"("graph":7:0)``, where 7 is the
    number of the subgraph's node: the text does not depend on where the user's source lies, so neither does the
    program's hash. ``sources[7]`` is that place (``file:line``, empty when unknown), ``ops[7]``
    the op; :func:`located` reads a diagnostic.
    """

    mlir: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[OutputBinding, ...]
    sources: tuple[str, ...]
    ops: tuple[str, ...]


# The element type in the Torch dialect, and the number by which TorchScript and the Torch dialect know a dtype.
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

# What PyTorch's operators compute in where tensors are of dtypes that they only store (``at::opmath_type``; integers
# are C's).
COMPUTED: Mapping[torch.dtype, torch.dtype] = {
    **dict.fromkeys(HALVES, torch.float32),
    **dict.fromkeys((torch.int8, torch.uint8, torch.int16), torch.int32),
}

# The numbers by which TorchScript and the Torch dialect know a layout and a memory format.
LAYOUTS = {torch.strided: 0}
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's own name of a dtype, as ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def dtype_number(dtype: torch.dtype) -> int:
    """The number of a dtype in TorchScript and in the Torch dialect.

    Raises:
        CompileError: the Torch dialect has no such dtype.
    """
    return _lookup(dtype)[1]


def dtype_of_number(number: int) -> torch.dtype:
    """The inverse of :func:`dtype_number`.

    Raises:
        CompileError: no dtype that the Torch dialect has.
    """
    for dtype, (_, known) in _DTYPES.items():
        if known == number:
            return dtype
    raise CompileError(f"dtype number {number} is not supported")


def element_type(dtype: torch.dtype) -> str:
    """The element type in the Torch dialect, as ``"si64"``.

    Raises:
        CompileError: the Torch dialect has no such dtype.
    """
    return _lookup(dtype)[0]


def dtype_of_element(element: str) -> torch.dtype:
    """The inverse of :func:`element_type`.

    Raises:
        CompileError: no element type that the importer writes.
    """
    for dtype, (known, _) in _DTYPES.items():
        if known == element:
            return dtype
    raise CompileError(f"element type {element} is not supported")


def tensor_type(meta: TensorMeta) -> str:
    """The Torch dialect's value tensor type, as ``"!torch.vtensor<[2,3],f32>"``."""
    return f"!torch.vtensor<[{','.join(map(str, meta.shape))}],{element_type(meta.dtype)}>"


def _lookup(dtype: torch.dtype) -> tuple[str, int]:
    if dtype not in _DTYPES:
        raise CompileError(f"dtype {dtype_name(dtype)} is not supported")
    return _DTYPES[dtype]
