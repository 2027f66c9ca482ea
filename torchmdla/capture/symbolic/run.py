"""Symbolic run of a group's subgraph, on tensors without data whose sizes are symbols.

PyTorch's own shape functions and ``ShapeEnv`` do the work. Every size and integer of the group becomes an expression of
the symbols. Each decision of an operator, or of the importer, on a size becomes a guard. Where all guards hold, the
subgraph has the same structure, and its sizes are the values of the expressions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import Source
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchmdla.capture.symbolic.size_program import Places
from torchmdla.errors import CompileError
from torchmdla.importer import Record, TensorMeta
from torchmdla.importer.builder import takes_size_value
from torchmdla.importer.decompositions.convolutions import result_shape
from torchmdla.importer.decompositions.recurrent_steps import STEP_OPERATORS
from torchmdla.importer.decompositions.resize import RESIZED_SHAPES
from torchmdla.importer.schemas import call_in_order, overload_of, written_arguments
from torchmdla.importer.size_int import SizeInt, to_size_int
from torchmdla.importer.trace import leaves, qualified_name, without_modes
from torchmdla.importer.types import record_value

# Arguments of type ``int`` that are sizes or positions. The shape function shows how an operator uses them. Any other
# argument is a value.
_SIZES = frozenset(
    (
        *("size", "sizes", "shape", "self_size", "self_sizes", "input_size", "input_sizes", "output_size", "sym_size"),
        *("normalized_shape", "split_size", "split_sizes", "repeats", "stride", "strides", "storage_offset"),
        *("start", "end", "length", "index", "pad", "padding", "steps", "sections", "indices"),
    )
)

# Operators whose numbers of any type are positions too.
_RANGES = frozenset(("aten::arange", "aten::arange.start", "aten::arange.start_step"))

# Recurrent networks of padded sequences.
_NETWORKS = frozenset(("aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"))

# Operators whose programs have the steps of a sequence one by one.
RECURRENT = _NETWORKS | STEP_OPERATORS


class _SymbolSource(Source):
    """Source of a symbol for ``ShapeEnv``."""

    def __init__(self, number: int) -> None:
        self.number = number

    @cached_property
    def name(self) -> str:
        return f"size{self.number}"


class _SizeEnv(ShapeEnv):
    """Environment of the symbols and of the decisions on them."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False)
        # Numerators and denominators of the quotients that are used as values, in order.
        self.quotients: dict[tuple[sympy.Expr, sympy.Expr], None] = {}
        # The sizes of which a text was made, by their text.
        self.written: dict[str, SizeInt] = {}


class SymbolicRun:
    """One run of a subgraph in which the sizes at ``places`` are symbols with the values ``values``."""

    def __init__(self, places: Places, values: Sequence[int]) -> None:
        self.env = _SizeEnv()
        self.values = tuple(values)
        self._places = iter(places)
        self._mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        # PyTorch's cache keeps the results of operators for the symbols of every environment until the process ends.
        self._mode.cache_enabled = False
        # Results by operator and arguments: most layers of a model repeat the types of an earlier one.
        self._results: dict[Hashable, Any] = {}
        self._symints = [self._symbol(number, value) for number, value in enumerate(values)]
        # The sizes that are used as values, in order.
        self.values_of_sizes: dict[sympy.Expr, None] = {}
        self.symbols: list[sympy.Symbol] = [symint.node.expr for symint in self._symints]

    def __enter__(self) -> SymbolicRun:
        with ExitStack() as stack:
            stack.enter_context(without_modes())
            stack.enter_context(_disable_logging())
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(self._mode)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def input(self, seen: object) -> Any:
        """Return the group's next input, which was ``seen`` in a call."""
        if isinstance(seen, TensorMeta):
            sizes = [self._number(size) for size in seen.shape]
            return torch.empty_strided(sizes, _strides_like(seen, sizes), dtype=seen.dtype, device="cpu")
        if isinstance(seen, list):
            return [self.input(item) for item in seen]
        return self._number(seen) if type(seen) is int else seen

    def call(self, schema: Any, arguments: Sequence[Any]) -> Any:
        """Return the result of an operator; ``arguments`` are in the order of ``schema``.

        A size that is used as a value is fixed to one number, unless the operator takes it at run time. The result is
        that of an earlier call of the operator with arguments of the same types and values, if there was one.
        """
        name = qualified_name(schema)
        if written_arguments(schema) or any(map(_has_data, leaves(arguments))):
            return self._call(name, schema, arguments)
        key = name, _key_of(arguments)
        if key not in self._results:
            self._results[key] = self._call(name, schema, arguments)
        return self._results[key]

    def _call(self, name: str, schema: Any, arguments: Sequence[Any]) -> Any:
        dtypes = [leaf.dtype for leaf in leaves(arguments) if isinstance(leaf, torch.Tensor)]

        def prepare(argument: torch._C.Argument, value: Any) -> Any:
            is_size = name in _RANGES or argument.name in _SIZES
            value = _guard_sign(value) if is_size else value
            if takes_size_value(schema, argument, dtypes):
                return self._as_value(argument, value)
            return value if is_size else _specialise_value(value)

        arguments = [prepare(*pair) for pair in zip(schema.arguments, arguments, strict=True)]
        if name in _DECISIONS:
            _DECISIONS[name](*arguments)
        return _SHAPES[name](*arguments) if name in _SHAPES else call_in_order(overload_of(name), schema, arguments)

    def record(self, values: Mapping[str, Any], seen: Record, outputs: Collection[str]) -> Record:
        """Return a record of all values, with :class:`SizeInt` for integers that vary.

        An operator that takes a truth value, a float, or a tensor made of an integer fixes it. ``outputs`` of these
        kinds are fixed too.

        Args:
            values: values of the run.
            seen: record of the call.
            outputs: names of the results.
        """
        for name in outputs:
            if isinstance(seen[name], TensorMeta) or isinstance(values[name], torch.SymBool | torch.SymFloat):
                _specialise_value(values[name])
        return {name: _to_recorded(value, seen[name]) for name, value in values.items()}

    def _as_value(self, argument: Any, value: Any) -> Any:
        """Return a number that varies if the operator takes it at run time; fix it otherwise."""
        if not isinstance(value, torch.SymInt):
            return _specialise_value(value)
        self.values_of_sizes[value.node.expr] = None
        is_tensor = argument.type.kind() == "TensorType"
        return torch.empty((), dtype=torch.int64) if is_tensor else value

    @property
    def guards(self) -> list[sympy.Basic]:
        """Return the conditions under which all decisions so far are right."""
        return list(dict.fromkeys(guard.expr for guard in self.env.guards))

    def expression(self, size: int) -> sympy.Expr:
        """Return a size of the record as an expression of the symbols."""
        return size.symbolic.node.expr if isinstance(size, SizeInt) else sympy.Integer(size)

    def _symbol(self, number: int, value: int) -> torch.SymInt:
        source = _SymbolSource(number)
        symbol = self.env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        symint: Any = self.env.create_symintnode(symbol, hint=value, source=source)
        return symint  # type: ignore[no-any-return]

    def _number(self, seen: int) -> Any:
        place = next(self._places)
        return seen if place is None else self._symints[place]


def _has_data(argument: object) -> bool:
    """Return whether an argument is a tensor whose data may determine a result."""
    return isinstance(argument, torch.Tensor) and getattr(argument, "constant", argument) is not None


def _key_of(argument: object) -> Hashable:
    """Return a key that is equal for arguments which give an operator the same result."""
    if isinstance(argument, list | tuple):
        return tuple(map(_key_of, argument))
    if not isinstance(argument, torch.Tensor):
        return type(argument), argument.node.expr if isinstance(argument, torch.SymInt) else repr(argument)
    sizes = (*argument.shape, *argument.stride())
    return argument.dtype, *(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


@contextmanager
def clear_shape_caches() -> Iterator[None]:
    """Clear ``ShapeEnv``'s caches when the context ends.

    The caches belong to the class, have no bound, and hold every environment that used them until the process ends.
    """
    try:
        yield
    finally:
        for method in vars(ShapeEnv).values():
            if hasattr(method, "cache_clear"):
                method.cache_clear()


@contextmanager
def _disable_logging() -> Iterator[None]:
    """Disable PyTorch's log of failing shape functions, which are not errors of the user."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def _strides_like(seen: TensorMeta, sizes: Sequence[Any]) -> list[Any]:
    """Return strides for ``sizes`` in the same stride class as the recorded strides.

    ``stride_class`` in ``src/group/signature.cpp`` defines the classes.
    """
    if all(type(size) is int for size in sizes):
        return list(seen.strides)
    strides: list[Any] = list(seen.strides)
    inner: int | None = None
    order = sorted(range(len(sizes)), key=lambda dim: -seen.strides[dim])
    for dim in reversed(order):
        if inner is not None:
            around = _relation(seen.strides[dim], seen.strides[inner], seen.shape[inner])
            strides[dim] = around(strides[inner], sizes[inner])
        # The stride of a dimension of size 1 does not matter.
        if seen.shape[dim] != 1:
            inner = dim
    return strides


def _relation(stride: int, inner_stride: int, inner_size: int) -> Callable[[Any, Any], Any]:
    """Return the relation of a stride to the next inner dimension, as a function of the inner stride and size."""
    if stride == 0:
        return lambda inner, size: 0
    if stride == inner_stride:
        return lambda inner, size: inner
    if stride < inner_stride * inner_size:
        return lambda inner, size: inner + stride - inner_stride
    gap = 0 if stride == inner_stride * inner_size else 1
    return lambda inner, size: inner * size + gap


def _guard_sign(value: Any) -> Any:
    """Return ``value`` after a guard on its sign: negative positions count from the end, negative amounts remove."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, torch.SymInt):
            bool(each < 0)
    return value


def _guard_wraparound(value: torch.Tensor, shifts: Any, dims: Sequence[int]) -> None:
    """Fix how often a shift wraps around, which determines the source of each element."""
    sizes = [value.shape[dim] for dim in dims] if dims else [value.numel()]
    for shift, size in zip(shifts if isinstance(shifts, list | tuple) else [shifts], sizes, strict=True):
        if isinstance(size, torch.SymInt):
            int(shift // size)


def _check_index(value: torch.Tensor, source: torch.Tensor, dim: int, index: Any) -> None:
    size = value.shape[dim]
    if not -size <= index < size:
        raise CompileError(f"index {index} of {size} elements")


def _check_crop(value: torch.Tensor, pad: Sequence[Any], *settings: Any) -> None:
    """Check that negative amounts crop no more elements than there are, whatever the other side pads."""
    for dim, (front, back) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        left = value.shape[-dim]
        for amount in (front, back):
            if amount < 0:
                left = left + amount
                if left < 0:
                    raise CompileError(f"{amount} of {value.shape[-dim]} elements are cut off")


def _specialise_value(value: Any) -> Any:
    """Return ``value`` as it is in this run; a guard then fails at sizes where it differs."""
    if isinstance(value, list | tuple):
        return type(value)(map(_specialise_value, value))
    known = _KNOWN.get(type(value))
    return known(value) if known else value


_KNOWN: Mapping[type, Callable[[Any], object]] = {torch.SymBool: bool, torch.SymInt: int, torch.SymFloat: float}


def _to_recorded(value: Any, seen: object) -> Any:
    """Return a value of the run for its record.

    A number may be the 0-d tensor that tracing makes of a size; then ``seen`` is the result. An integer becomes a
    value, which is more than its type.
    """
    is_number = isinstance(value, int | float | torch.SymBool | torch.SymInt | torch.SymFloat)
    if is_number and isinstance(seen, TensorMeta) and not isinstance(value, torch.SymInt):
        return seen
    if isinstance(value, torch.device):
        return seen
    return _track_sizes(record_value(value))


def _track_sizes(seen: Any) -> Any:
    if isinstance(seen, TensorMeta):
        return TensorMeta(seen.dtype, tuple(map(to_size_int, seen.shape)), tuple(map(to_size_int, seen.strides)))
    if isinstance(seen, list):
        return [_track_sizes(item) for item in seen]
    if isinstance(seen, torch.SymBool | torch.SymFloat):
        return seen.node.hint
    return to_size_int(seen)


def _convolution(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> torch.Tensor:
    """Return the result of a convolution; arguments of ``_convolution`` after the groups have no effect."""
    if value.dim() != weight.dim():
        raise CompileError("a convolution without batch")
    sizes = result_shape(value.shape, weight.shape, *settings[:6])
    formats = [suggest_memory_format(each) for each in (value, weight)]
    preferred = next((each for each in formats if each != torch.contiguous_format), torch.contiguous_format)
    return torch.empty(sizes, dtype=value.dtype, memory_format=preferred)


def _plain_convolution(
    value: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    if isinstance(padding, str):
        raise CompileError("a convolution whose padding is computed")
    return _convolution(value, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _resize_shape_function(shape: Callable[..., list[int]]) -> Callable[..., torch.Tensor]:
    """Return a function that returns a resized image in its memory format."""

    def result(value: torch.Tensor, *settings: Any) -> torch.Tensor:
        return torch.empty(shape(value, *settings), dtype=value.dtype, memory_format=suggest_memory_format(value))

    return result


def _recurrent(
    sequence: torch.Tensor,
    state: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the results of a recurrent network: its outputs, and the last states."""
    states = [state] if isinstance(state, torch.Tensor) else list(state)
    last = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in states]
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    first, second = sequence.shape[:2]
    if batch_first:
        return sequence.new_empty([second, first, features]).transpose(0, 1), *last
    return sequence.new_empty([first, second, features]), *last


# Decisions of operators on sizes that their shape functions do not check.
_DECISIONS: Mapping[str, Callable[..., None]] = {
    "aten::roll": _guard_wraparound,
    "aten::select_scatter": _check_index,
    "aten::constant_pad_nd": _check_crop,
    "aten::pad": _check_crop,
}

# Operators whose own shape functions decide on more than shapes. PyTorch chooses an implementation of a convolution by
# the sizes. It runs a recurrent network step by step, which would fix the number of steps. It computes the positions at
# which a resized image is read. It makes a tensor of a number's value.
_SHAPES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(_NETWORKS, _recurrent),
    **{f"aten::conv{axes}d": _plain_convolution for axes in (1, 2, 3)},
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::scalar_tensor": lambda number, dtype, *_: torch.empty((), dtype=dtype or torch.get_default_dtype()),
    **dict.fromkeys(("aten::tril", "aten::triu"), lambda value, diagonal: value.new_empty(value.shape)),
    **{name: _resize_shape_function(shape) for name, shape in RESIZED_SHAPES.items()},
}
