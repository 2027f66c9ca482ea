"""Recorder of the ATen calls of a Python function on tensors that have types but no data.

It is a dispatch mode over meta tensors instead of ``make_fx``. It needs no proxies and no symbolic shapes, and costs a
few tens of microseconds an op. It gives exactly the emitter's inputs: schemas, operands and result types.
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
from torchmdla.importer.size_int import to_size_int, to_symbolic
from torchmdla.importer.types import TensorMeta


@dataclass(frozen=True)
class Ref:
    """Tensor of a trace. The inputs come first, in order, then the results of the calls."""

    index: int


@dataclass(frozen=True)
class Call:
    """Record of one op: its schema, arguments in the schema's order, and results.

    Tensors are :class:`Ref` in arguments and results. ``metas`` has the results' types in the same structure.
    """

    schema: torch._C.FunctionSchema
    arguments: tuple[object, ...]
    results: tuple[object, ...]
    metas: tuple[object, ...]


@dataclass(frozen=True)
class Trace:
    """Sequence of the calls that compute ``outputs`` (``Ref``, None, or lists of them)."""

    calls: tuple[Call, ...]
    outputs: tuple[object, ...]


def qualified_name(schema: torch._C.FunctionSchema) -> str:
    """Return the schema name with overload, such as ``"aten::add.Tensor"``."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def map_structure(function: Callable[[Any], object], tree: object) -> object:
    """Apply ``function`` to every leaf of nested lists and tuples. Both become tuples."""
    if isinstance(tree, list | tuple):
        return tuple(map_structure(function, item) for item in tree)
    return function(tree)


def leaves(tree: object) -> Iterable[object]:
    """Yield the leaves of nested lists and tuples."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def number_cache_key(tree: object) -> tuple[str, ...]:
    """Return the leaves of a structure as text, except types of tensors, for cache keys.

    Python considers 1, 1.0 and True equal, and also 0.0 and -0.0.
    """
    return tuple(repr(leaf) for leaf in leaves(tree) if not isinstance(leaf, TensorMeta))


def trace(function: Callable[..., object], arguments: Sequence[object]) -> Trace:
    """Call ``function`` with a meta tensor for every :class:`TensorMeta` in ``arguments`` and record its calls.

    Raises:
        CompileError: If the function refuses the arguments, or if a program cannot express it (writes to a tensor).
    """
    recorder = _Recorder()
    with without_modes():
        inputs = map_structure(recorder.input, arguments)
        try:
            with _support_symbols(inputs), recorder:
                result = function(*inputs)  # type: ignore[misc]
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(f"its decomposition failed: {error}") from error
    outputs = result if isinstance(result, tuple | list) else (result,)
    refs = map_structure(recorder.ref, outputs)
    return Trace(_eliminate_dead_calls(recorder.calls, refs), refs)  # type: ignore[arg-type]


def _support_symbols(inputs: object) -> AbstractContextManager[object]:
    """Return a context in which kernels accept symbolic sizes and strides, which some support only in Python."""
    sizes = ((*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else [leaf] for leaf in leaves(inputs))
    if not any(isinstance(size, torch.SymInt) for size in itertools.chain.from_iterable(sizes)):
        return nullcontext()
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()  # type: ignore[no-any-return]


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise the first op imports torch._dynamo, which takes most of a second."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # Keeps every tensor alive while its id is a key.
        self._tensors: list[torch.Tensor] = []
        self._indices: dict[int, int] = {}

    def input(self, value: object) -> object:
        if not isinstance(value, TensorMeta):
            return to_symbolic(value)
        shape, strides = map(to_symbolic, value.shape), map(to_symbolic, value.strides)
        tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype, device="meta")
        self._define(tensor)
        return tensor

    def ref(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return to_size_int(value)
        if id(value) not in self._indices:
            raise CompileError("its decomposition makes a tensor from data")
        return Ref(self._indices[id(value)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise CompileError(f"its decomposition writes to a tensor ({func})")
        arguments = map_structure(self.ref, in_schema_order(func._schema, args, kwargs))
        out = _run_on_meta(func, args, kwargs)
        results = out if isinstance(out, tuple | list) and len(func._schema.returns) != 1 else (out,)
        for leaf in leaves(results):
            self._define(leaf)
        metas = map_structure(lambda leaf: TensorMeta.of(leaf) if isinstance(leaf, torch.Tensor) else leaf, results)
        self.calls.append(Call(func._schema, arguments, map_structure(self.ref, results), metas))  # type: ignore[arg-type]
        return out

    def _define(self, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._indices[id(value)] = len(self._tensors)
            self._tensors.append(value)


def _run_on_meta(func: Any, args: Any, kwargs: Any) -> object:
    """Run an op on meta tensors, without the Python kernels that import SymPy or torch._dynamo (a second)."""
    if torch.Tag.pointwise in func.tags:
        return _run_elementwise(func, args, kwargs)
    if func in _META_KERNELS:
        return _META_KERNELS[func](*args, **kwargs)
    return func(*args, **kwargs)


def _meta_cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return torch.empty(shape, dtype=dtype, device="meta")


def _meta_layer_norm(value: torch.Tensor, shape: Sequence[int], *_: object) -> tuple[torch.Tensor, ...]:
    """Return the result types of ``native_layer_norm``: the values, the mean and the reciprocal deviation."""
    statistics = [*value.shape[: value.dim() - len(shape)], *[1] * len(shape)]
    return torch.empty_like(value), value.new_empty(statistics), value.new_empty(statistics)


def _meta_reduction(
    value: torch.Tensor, dims: Sequence[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the result type of a sum or mean over ``dims``, or over all dimensions without ``dims``."""
    reduced = {dim % value.dim() for dim in dims or range(value.dim())} if value.dim() else set()
    sizes = [1 if dim in reduced else size for dim, size in enumerate(value.shape)]
    if not keepdim:
        sizes = [size for dim, size in enumerate(sizes) if dim not in reduced]
    sum_dtype = value.dtype if value.is_floating_point() or value.is_complex() else torch.int64
    return torch.empty(sizes, dtype=dtype or sum_dtype, device="meta")


def _meta_pad(value: torch.Tensor, sizes: Sequence[int], *_: object) -> torch.Tensor:
    """Return the type of ``value`` padded by ``sizes``, which begin with the last dimension's pair."""
    shape = list(value.shape)
    for k in range(0, len(sizes), 2):
        shape[-1 - k // 2] += sizes[k] + sizes[k + 1]
    return value.new_empty(shape)


_META_KERNELS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.sum.dim_IntList: _meta_reduction,
    torch.ops.aten.mean.dim: _meta_reduction,
    torch.ops.aten.native_layer_norm.default: _meta_layer_norm,
    torch.ops.aten.mm.default: lambda a, b: a.new_empty([a.size(0), b.size(1)]),
    torch.ops.aten.bmm.default: lambda a, b: a.new_empty([a.size(0), a.size(1), b.size(2)]),
    torch.ops.aten.addmm.default: lambda bias, a, b, **_: a.new_empty([a.size(0), b.size(1)]),
    torch.ops.aten._softmax.default: lambda value, *_: torch.empty_like(value),
    torch.ops.aten.cat.default: _meta_cat,
    torch.ops.aten.convolution.default: lambda x, weight, _, *settings: x.new_empty(
        result_shape(x.shape, weight.shape, *settings)
    ),
    torch.ops.aten.constant_pad_nd.default: _meta_pad,
}


def _run_elementwise(func: Any, args: Any, kwargs: Any) -> object:
    """Return the result of an elementwise op on meta tensors. Its dtype comes from a run on one element.

    PyTorch's meta kernels of these ops are Python, import torch._dynamo, and are ten times slower.
    """
    sizes = [leaf.shape for leaf in leaves([args, list(kwargs.values())]) if isinstance(leaf, torch.Tensor)]

    def one_element(value: Any) -> object:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return value.node.hint  # Its value has no influence here.
        return torch.ones([1] * value.dim(), dtype=value.dtype) if isinstance(value, torch.Tensor) else value

    element = func(
        *(map_structure(one_element, arg) for arg in args),
        **{key: map_structure(one_element, value) for key, value in kwargs.items()},
    )
    return torch.empty(_broadcast_shapes(sizes), dtype=element.dtype, device="meta")


def _broadcast_shapes(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the broadcast shape, as ``torch.broadcast_shapes`` does, which imports SymPy."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]


def without_modes() -> ExitStack:
    """Disable the caller's modes (dispatch, function, grad, inference), and return a context that restores them."""
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    # Under inference mode composite ops would reach the recorder without decomposition.
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def in_schema_order(schema: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """Return the arguments of a call as one list, with defaults filled in."""
    rest = schema.arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest)]


def _eliminate_dead_calls(calls: Sequence[Call], outputs: object) -> tuple[Call, ...]:
    """Return the calls without unused ones: a decomposition may compute a tensor only to read its size."""
    needed = {leaf for leaf in leaves(outputs) if isinstance(leaf, Ref)}
    retained: list[Call] = []
    for call in reversed(calls):
        if not needed.isdisjoint(leaves(call.results)):
            needed.update(leaf for leaf in leaves(call.arguments) if isinstance(leaf, Ref))
            retained.append(call)
    return tuple(reversed(retained))
