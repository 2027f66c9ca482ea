"""Records the ATen calls of a Python function on tensors that have types but no data.

A dispatch mode over meta tensors, rather than ``make_fx``: it needs no proxies and no symbolic shapes, costs a few
tens of microseconds an op, and gives exactly what the emitter wants, that is schemas, operands and result types.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions.convolutions import result_shape
from torchmdla.importer.size_int import symbolic, tracked
from torchmdla.importer.types import TensorMeta


@dataclass(frozen=True)
class Ref:
    """A tensor of a trace: the inputs come first, in order, then the results of the calls."""

    index: int


@dataclass(frozen=True)
class Call:
    """One op: schema name with overload, arguments in the schema's order, and its results.

    Tensors are :class:`Ref` in arguments and results; ``metas`` has the results' types in the same structure.
    """

    schema: torch._C.FunctionSchema
    arguments: tuple[object, ...]
    results: tuple[object, ...]
    metas: tuple[object, ...]


@dataclass(frozen=True)
class Trace:
    """The calls that make ``outputs`` (``Ref``, None, or lists of them), in order."""

    calls: tuple[Call, ...]
    outputs: tuple[object, ...]


def qualified_name(schema: torch._C.FunctionSchema) -> str:
    """Schema name with overload, as ``"aten::add.Tensor"``."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def map_structure(function: Callable[[Any], object], tree: object) -> object:
    """``function`` of every leaf of nested lists and tuples; both become tuples."""
    if isinstance(tree, list | tuple):
        return tuple(map_structure(function, item) for item in tree)
    return function(tree)


def leaves(tree: object) -> Iterable[object]:
    """The leaves of nested lists and tuples."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def spelled_numbers(tree: object) -> tuple[str, ...]:
    """Return the numbers of a structure as text, and all else but types of tensors, for keys of caches: 1, 1.0 and True
    are equal in Python, and so are 0.0 and -0.0."""
    return tuple(repr(leaf) for leaf in leaves(tree) if not isinstance(leaf, TensorMeta))


def trace(function: Callable[..., object], arguments: Sequence[object]) -> Trace:
    """Calls ``function`` with a meta tensor for every :class:`TensorMeta` in ``arguments`` and records what it does.

    Raises:
        CompileError: the function refuses the arguments, or does what a program cannot express (writes to a tensor).
    """
    recorder = _Recorder()
    with isolated():
        inputs = map_structure(recorder.input, arguments)
        try:
            with _for_symbols(inputs), recorder:
                result = function(*inputs)  # type: ignore[misc]
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(f"its decomposition failed: {error}") from error
    outputs = result if isinstance(result, tuple | list) else (result,)
    refs = map_structure(recorder.ref, outputs)
    return Trace(_live(recorder.calls, refs), refs)  # type: ignore[arg-type]


def _for_symbols(inputs: object) -> AbstractContextManager[object]:
    """Some of PyTorch's kernels take symbolic sizes, and strides, in Python only."""
    sizes = ((*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else [leaf] for leaf in leaves(inputs))
    if not any(isinstance(size, torch.SymInt) for size in itertools.chain.from_iterable(sizes)):
        return nullcontext()
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()  # type: ignore[no-any-return]


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise the first op imports torch._dynamo, most of a second, to keep it away from the recorder."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # Holds every tensor for as long as its id is a key.
        self._tensors: list[torch.Tensor] = []
        self._indices: dict[int, int] = {}

    def input(self, value: object) -> object:
        if not isinstance(value, TensorMeta):
            return symbolic(value)
        shape, strides = map(symbolic, value.shape), map(symbolic, value.strides)
        tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype, device="meta")
        self._define(tensor)
        return tensor

    def ref(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return tracked(value)
        if id(value) not in self._indices:
            raise CompileError("its decomposition makes a tensor from data")
        return Ref(self._indices[id(value)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise CompileError(f"its decomposition writes to a tensor ({func})")
        arguments = map_structure(self.ref, in_schema_order(func._schema, args, kwargs))
        out = _result(func, args, kwargs)
        results = out if isinstance(out, tuple | list) and len(func._schema.returns) != 1 else (out,)
        for leaf in leaves(results):
            self._define(leaf)
        self.calls.append(
            Call(func._schema, arguments, map_structure(self.ref, results), map_structure(_meta, results))  # type: ignore[arg-type]
        )
        return out

    def _define(self, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._indices[id(value)] = len(self._tensors)
            self._tensors.append(value)


def _result(func: Any, args: Any, kwargs: Any) -> object:
    """What an op makes of meta tensors, without the Python kernels that import SymPy or torch._dynamo (a second)."""
    if torch.Tag.pointwise in func.tags:
        return _elementwise(func, args, kwargs)
    if func in _SHAPES:
        return _SHAPES[func](*args, **kwargs)
    return func(*args, **kwargs)


def _joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return torch.empty(shape, dtype=dtype, device="meta")


def _normalised(value: torch.Tensor, shape: Sequence[int], *_: object) -> tuple[torch.Tensor, ...]:
    """Of ``native_layer_norm``: the values, the mean and the reciprocal deviation."""
    statistics = [*value.shape[: value.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty_like(value), value.new_empty(statistics), value.new_empty(statistics)


def _reduced(
    value: torch.Tensor, dims: Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Of a sum or mean over ``dims``, all of them where none are given."""
    reduced = {dim % value.dim() for dim in dims or range(value.dim())} if value.dim() else set()
    sizes = [1 if dim in reduced else size for dim, size in enumerate(value.shape)]
    if not keepdim:
        sizes = [size for dim, size in enumerate(sizes) if dim not in reduced]
    kept = value.dtype if value.is_floating_point() or value.is_complex() else torch.int64
    return torch.empty(sizes, dtype=dtype or kept, device="meta")


def _convolved(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> torch.Tensor:
    """Of ``aten::convolution``."""
    return value.new_empty(result_shape(value.shape, weight.shape, *settings))


def _padded(value: torch.Tensor, sizes: Sequence[int], *_: object) -> torch.Tensor:
    """By ``sizes`` before and after each dimension, the last dimension's pair first."""
    shape = list(value.shape)
    for k in range(0, len(sizes), 2):
        shape[-1 - k // 2] += sizes[k] + sizes[k + 1]
    return value.new_empty(shape)


_SHAPES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.sum.dim_IntList: _reduced,
    torch.ops.aten.mean.dim: _reduced,
    torch.ops.aten.native_layer_norm.default: _normalised,
    torch.ops.aten.mm.default: lambda a, b: a.new_empty([a.size(0), b.size(1)]),
    torch.ops.aten.bmm.default: lambda a, b: a.new_empty([a.size(0), a.size(1), b.size(2)]),
    torch.ops.aten.addmm.default: lambda bias, a, b, **_: a.new_empty([a.size(0), b.size(1)]),
    torch.ops.aten._softmax.default: lambda value, *_: torch.empty_like(value),
    torch.ops.aten.cat.default: _joined,
    torch.ops.aten.convolution.default: _convolved,
    torch.ops.aten.constant_pad_nd.default: _padded,
}


def _elementwise(func: Any, args: Any, kwargs: Any) -> object:
    """The result of an elementwise op on meta tensors, by running it on one element.

    PyTorch's own meta kernels of these ops are Python, import torch._dynamo, and are ten times slower.
    """
    sizes = [leaf.shape for leaf in leaves([args, list(kwargs.values())]) if isinstance(leaf, torch.Tensor)]

    def one_element(value: Any) -> object:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return value.node.hint  # Its value decides nothing here.
        return torch.ones([1] * value.dim(), dtype=value.dtype) if isinstance(value, torch.Tensor) else value

    element = func(
        *(map_structure(one_element, arg) for arg in args),
        **{key: map_structure(one_element, value) for key, value in kwargs.items()},
    )
    return torch.empty(_broadcast(sizes), dtype=element.dtype, device="meta")


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """As ``torch.broadcast_shapes``, which imports SymPy."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]


def isolated() -> ExitStack:
    """Keeps the caller's modes (dispatch, function, grad, inference) out, from the call on: for ``with``."""
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    # Under inference mode composite ops would reach the recorder whole.
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def in_schema_order(schema: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """The arguments of a call as one list, defaults filled in."""
    rest = schema.arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest)]


def _meta(value: object) -> object:
    return TensorMeta.of(value) if isinstance(value, torch.Tensor) else value


def _live(calls: Sequence[Call], outputs: object) -> tuple[Call, ...]:
    """Without the calls that nothing uses: a decomposition may compute what it only asks the size of."""
    needed = {leaf for leaf in leaves(outputs) if isinstance(leaf, Ref)}
    kept: list[Call] = []
    for call in reversed(calls):
        if not needed.isdisjoint(leaves(call.results)):
            needed.update(leaf for leaf in leaves(call.arguments) if isinstance(leaf, Ref))
            kept.append(call)
    return tuple(reversed(kept))
