"""Random expressions in the families that the compiler's rules and kernels are for.

The families are products, norms, softmax, attention, convolutions, recurrences and quantised values.

A family draws one expression of PyTorch as text, along any dimension. Operands may be permuted, expanded, of
size 1 or used twice. ``fuzz.passes`` and ``fuzz.drawing`` draw from the families, each with its own :class:`Source`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


class NothingFits(Exception):
    """Error of a place that no tensor fits, or of a statement that does not run."""


@dataclass(frozen=True)
class Operand:
    """Float tensor as text.

    Attributes:
        text: the expression of the tensor.
        sizes: as text. Sizes that are equal in every call have equal texts.
        dtype: the name of its dtype.
    """

    text: str
    sizes: tuple[str, ...]
    dtype: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.sizes)


class Source(ABC):
    """Source of the operands and the random choices of an expression."""

    @abstractmethod
    def number(self, least: int, most: int) -> int:
        """Draw an integer. Both bounds are included."""

    @abstractmethod
    def operands(self) -> Sequence[Operand]:
        """Return the available float tensors."""

    @abstractmethod
    def parameter(self, kind: str, *sizes: str) -> str:
        """Return the name of a new tensor.

        Args:
            kind: the name of a float dtype, ``positive`` for positive floats, ``int8`` or ``int4``.
            sizes: its sizes, as text.
        """

    def choose(self, choices: Sequence[T]) -> T:
        """Draw an element of ``choices``.

        Raises:
            NothingFits: If ``choices`` is empty.
        """
        if not choices:
            raise NothingFits
        return choices[self.number(0, len(choices) - 1)]

    def draw_bool(self) -> bool:
        return bool(self.number(0, 1))

    def order(self, count: int) -> tuple[int, ...]:
        """Draw a permutation."""
        rest = list(range(count))
        return tuple(rest.pop(self.number(0, len(rest) - 1)) for _ in range(count))

    def dim(self, x: Operand) -> int:
        return self.number(-x.rank, x.rank - 1) if x.rank else 0

    def operand(self, rank: int | None = None) -> Operand:
        """Draw a tensor, often a recent one, or a view of a tensor. It has ``rank`` dimensions unless that is None."""
        operands = self.operands()
        x = self.choose([*operands[-2:], *operands])
        while rank is not None and x.rank > rank:
            dim = self.number(0, x.rank - 1)
            x = replace(x, text=f"{x.text}.select({dim}, 0)", sizes=x.sizes[:dim] + x.sizes[dim + 1 :])
        while rank is not None and x.rank < rank:
            x = _with_dimension(self, x)
        if x.rank > 1 and self.number(0, 3) == 0:
            order = self.order(x.rank)
            x = replace(x, text=f"{x.text}.permute({order})", sizes=tuple(x.sizes[d] for d in order))
        return x

    def like(self, x: Operand) -> str:
        """Draw another tensor or a view of ``x`` that broadcasts with ``x``, or a number."""
        fitting = [other.text for other in self.operands() if _broadcasts(x.sizes, other.sizes)]
        views = [f"{x.text}.flip(0)", f"{x.text}.mT"] if x.rank > 1 else []
        return self.choose([*fitting, *views, "0.5"])


def _with_dimension(source: Source, x: Operand) -> Operand:
    """Return a tensor with one more dimension, which is of size 1 or expanded."""
    dim, size = source.number(0, x.rank), source.choose(("1", "2", "3"))
    text = f"{x.text}.unsqueeze({dim})"
    if size != "1":
        text += f".expand({', '.join([*['-1'] * dim, size, *['-1'] * (x.rank - dim)])})"
    return replace(x, text=text, sizes=(*x.sizes[:dim], size, *x.sizes[dim:]))


def _broadcasts(left: Sequence[str], right: Sequence[str]) -> bool:
    return all(a == b or "1" in (a, b) for a, b in zip(reversed(left), reversed(right), strict=False))


# Products.


def _factor(source: Source, x: Operand) -> str:
    """Draw a factor of a product: ``x`` itself, or an expression of ``x`` that a rule moves behind the product."""
    dim, text = source.dim(x), x.text
    return source.choose(
        (
            text,
            f"torch.softmax({text}, {dim})",
            f"({text} * torch.rsqrt({text}.square().mean({dim}, keepdim=True) + 0.1))",
            f"({text} / {text}.exp().sum({dim}, keepdim=True))",
            f"({text} * {source.like(x)})",
            f"{text}.to(torch.bfloat16).float()",
            _quantised_value(source, x),
        )
    )


def _einsum(source: Source) -> str:
    """Draw a product of two operands. Dimensions of equal size may be shared, and shared dimensions may be summed."""
    left, right = source.operand(), source.operand()
    letters = "abcdefghij"
    first = letters[: left.rank]
    rest, second = list(letters[len(first) :]), ""
    for size in right.sizes:
        same = [c for c, length in zip(first, left.sizes, strict=True) if length == size and c not in second]
        second += source.choose([*same, rest.pop(0)])
    shared = [c for c in first if c in second]
    summed = {c for c in shared if source.draw_bool()}
    names = [c for c in dict.fromkeys(first + second) if c not in summed]
    output = "".join(names[k] for k in source.order(len(names)))
    return f'torch.einsum("{first},{second}->{output}", [{_factor(source, left)}, {_factor(source, right)}])'


def _matmul(source: Source) -> str:
    """Draw a product of two operands whose sizes fit."""
    operands = source.operands()
    pairs = [
        (a, b) for a in operands for b in operands if a.rank and b.rank and a.sizes[-1] == b.sizes[max(-2, -b.rank)]
    ]
    if not pairs or source.number(0, 3) == 0:
        x = source.operand(source.number(2, 3))
        return f"{_factor(source, x)} @ {_factor(source, x)}.mT"
    left, right = source.choose(pairs)
    return f"{_factor(source, left)} @ {_factor(source, right)}"


def _linear(source: Source) -> str:
    """Draw a product with weights, with or without an epilogue, or two products of the same operand."""
    x = source.operand(source.number(1, 3))
    columns = source.choose(("1", "3", "4", "8", "16", "32"))
    factor, numbers = _factor(source, x), source.parameter(x.dtype, columns)
    result, other = (
        f"torch.nn.functional.linear({factor}, {source.parameter(x.dtype, columns, x.sizes[-1])})" for _ in range(2)
    )
    return source.choose(
        (
            result,
            f"{result} * {numbers}",
            f"{result} * {numbers} + {numbers}",
            f"{result}.relu()",
            f"{result}.mT @ {other}",
            f"{result} * {other}.sigmoid()",
        )
    )


def _cast(source: Source) -> str:
    """Draw a tensor that is rounded to a 16-bit float, and a function of the rounded tensor."""
    kind = source.choose(("bfloat16", "bfloat16", "float16"))
    function = source.choose(("", ".relu()", ".abs()", ".neg().relu()", ".tanh()", ".clamp(-1.0, 0.5)"))
    return f"{source.operand().text}.to(torch.{kind}){function}.float()"


# Softmax and norms.


def _softmax(source: Source) -> str:
    x = source.operand()
    dim = source.dim(x)
    function = source.choose(("softmax", "softmax", "log_softmax"))
    return f"torch.{function}({x.text}, {dim})"


def _reduction(source: Source) -> str:
    x = source.operand()
    function = source.choose(("sum", "mean", "amax", "amin", "logsumexp", "var", "max"))
    part = "[0]" if function == "max" else ""
    return f"{x.text}.{function}({source.dim(x)}, keepdim={source.draw_bool()}){part}"


def _written_norm(source: Source) -> str:
    """Draw a norm along one dimension that is written with elementwise operators and reductions."""
    x = source.operand()
    dim, text = source.dim(x), x.text
    square = f"{text}.square()"
    return source.choose(
        (
            f"{text} * torch.rsqrt({square}.mean({dim}, keepdim=True) + 0.1)",
            f"{text} * torch.rsqrt({square}.mean({dim}, keepdim=True) + 0.1) * {source.like(x)}",
            f"{text} / ({square}.sum({dim}, keepdim=True).sqrt() + 0.5)",
            f"({text} - {text}.mean({dim}, keepdim=True)) / ({text}.var({dim}, keepdim=True) + 0.5).sqrt()",
            f"torch.nn.functional.normalize({text}, dim={dim})",
        )
    )


def _affine(source: Source, x: Operand, sizes: Sequence[str]) -> str:
    """Draw the weight and bias of a norm. Both may be None."""
    if source.draw_bool():
        return "None, None"
    return f"{source.parameter(x.dtype, *sizes)}, {source.parameter(x.dtype, *sizes)}"


def _layer_norm(source: Source) -> str:
    x = source.operand(source.number(1, 4))
    count = source.number(1, min(2, x.rank))
    shape = ", ".join(f"{x.text}.size({d})" for d in range(-count, 0))
    function = source.choose(("layer_norm", "layer_norm", "rms_norm"))
    affine = _affine(source, x, x.sizes[-count:])
    if function == "rms_norm":
        affine = affine.partition(", ")[0]
    return f"torch.nn.functional.{function}({x.text}, [{shape}], {affine})"


def _norm_of_channels(source: Source) -> str:
    """Draw a group, batch or instance norm."""
    x = source.operand(source.number(2, 5))
    channels = x.sizes[1]
    affine = _affine(source, x, [channels])
    kind = source.choose(("group", "group", "batch", "batch of a call", "instance"))
    if kind == "group":
        groups = [str(k) for k in (1, 2, 4) if channels.isdecimal() and int(channels) % k == 0] or ["1"]
        return f"torch.group_norm({x.text}, {source.choose([*groups, f'{x.text}.size(1)'])}, {affine})"
    if kind == "batch":
        mean, variance = source.parameter(x.dtype, channels), source.parameter("positive", channels)
        return f"torch.nn.functional.batch_norm({x.text}, {mean}, {variance}, {affine})"
    if kind == "instance":
        return f"torch.nn.functional.instance_norm({x.text}, None, None, {affine})"
    return f"torch.nn.functional.batch_norm({x.text}, None, None, {affine}, True)"


# Attention.


def _attention(source: Source) -> str:
    """Draw attention as matrix products or as PyTorch's operator.

    Its operands may be the same tensor. It has a mask or none.
    """
    q = source.operand(source.number(2, 4))
    *batch, rows, width = q.sizes
    keys = source.choose((rows, "5", "1"))
    k, v = q.text, q.text
    if keys != rows or source.draw_bool():
        k, v = source.parameter(q.dtype, *batch, keys, width), source.parameter(q.dtype, *batch, keys, width)
        v = source.choose((v, k))
    mask = source.choose(("", "", source.parameter(q.dtype, rows, keys)))
    if source.draw_bool() and q.rank > 2:
        masked = source.choose((f", {mask}" if mask else "", f", ({mask} > 0)" if mask else "", ", is_causal=True"))
        return f"torch.nn.functional.scaled_dot_product_attention({q.text}, {k}, {v}{masked})"
    scores = f"{q.text} @ {k}.transpose(-2, -1) * {source.choose(('0.5', '1.0'))}"
    if mask:
        scores = source.choose((f"{scores} + {mask}", f"({scores}).masked_fill({mask} > 0, -1e9)"))
    return f"torch.softmax({scores}, {source.choose((-1, -1, -1, -2))}) @ {v}"


# Convolutions.


def _convolution(source: Source) -> str:
    dims = source.choose((1, 2, 2, 3))
    x = source.operand(dims + 2)
    operands = [
        operand.text for operand in source.operands() if operand.rank == x.rank and operand.sizes[1] == x.sizes[1]
    ]
    if operands and source.number(0, 3) == 0:
        return f"torch.nn.functional.conv{dims}d({x.text}, {source.choose(operands)}, padding={source.number(0, 2)})"
    channels, is_transposed = x.sizes[1], source.number(0, 3) == 0
    groups = source.choose(["1", "1", *(["2"] if channels.isdecimal() and int(channels) % 2 == 0 else []), channels])
    window = ["3"] * dims if source.draw_bool() else [source.choose(("1", "2", "3")) for _ in range(dims)]
    # The number of channels of one group.
    others = source.choose(("1", "2", "4")) if groups.isdecimal() else "1"
    outputs = str(int(others) * int(groups)) if groups.isdecimal() else channels
    inputs = str(int(channels) // int(groups)) if groups.isdecimal() and groups != "1" else channels
    if groups == channels:
        inputs = "1"
    sizes = (channels, others, *window) if is_transposed else (outputs, inputs, *window)
    weights = _weights(source, x, sizes, 1 if is_transposed else 0)
    bias = source.choose(("None", source.parameter(x.dtype, outputs)))
    stride, padding, dilation = source.choose((1, 1, 2, 3)), source.number(0, 2), source.choose((1, 1, 2))
    number = groups if groups.isdecimal() else f"{x.text}.size(1)"
    operand = _quantised_value(source, x) if source.number(0, 2) == 0 else x.text
    numbers = f"stride={stride}, padding={padding}, dilation={dilation}, groups={number}"
    if is_transposed:
        more = source.number(0, stride - 1)
        return (
            f"torch.nn.functional.conv_transpose{dims}d({operand}, {weights}, {bias}, {numbers}, output_padding={more})"
        )
    return f"torch.nn.functional.conv{dims}d({operand}, {weights}, {bias}, {numbers})"


# Recurrences.

_GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _recurrence(source: Source) -> str:
    x = source.operand(3)
    kind = source.choose(tuple(_GATES))
    is_batch_first, is_both_ways, has_bias = source.draw_bool(), source.number(0, 3) == 0, source.draw_bool()
    batch, hidden = 0 if is_batch_first else 1, source.choose(("1", "4", "8", "16"))
    gates = str(_GATES[kind] * int(hidden))
    weights = []
    for _ in range(1 + is_both_ways):
        weights += [source.parameter(x.dtype, gates, x.sizes[2]), source.parameter(x.dtype, gates, hidden)]
        weights += [source.parameter(x.dtype, gates) for _ in range(2 * has_bias)]
    layers = str(1 + is_both_ways)
    first = f"torch.zeros([{layers}, {x.text}.size({batch}), {hidden}])"
    if source.draw_bool():
        first = source.parameter(x.dtype, layers, x.sizes[batch], hidden)
    states = f"[{first}, {first}]" if kind == "lstm" else first
    flags = f"{has_bias}, 1, 0.0, False, {is_both_ways}, {is_batch_first}"
    return f"torch.{kind}({x.text}, {states}, [{', '.join(weights)}], {flags})[{source.number(0, 1)}]"


# Quantised values.


def _float_of(integer: str, zero: int, scale: str, is_signed: bool) -> str:
    """Return the float value of an int8. If it is unsigned, the same bits represent 0 to 255."""
    wide = integer if is_signed else f"({integer}.to(torch.int32) & 255)"
    return f"(({wide}.to(torch.float32) - {zero}.0) * {scale})"


def _quantised_value(source: Source, x: Operand) -> str:
    """Draw a tensor that is rounded to the values of 8-bit integers."""
    is_signed, zero = source.draw_bool(), source.choose((0, 0, 58, -3))
    scale = source.choose((0.03125, 0.0625))
    least = -128 if is_signed else 0
    bounds = f"{least - zero}.0, {least + 255 - zero}.0"
    # Eager's conversion of NaN to an integer depends on the processor.
    integer = f"(({x.text}.nan_to_num() * {1 / scale}).clamp({bounds}).round().to(torch.int32) + {zero}).to(torch.int8)"
    return _float_of(integer, zero, str(scale), is_signed)


def _weights(source: Source, x: Operand, sizes: Sequence[str], dim: int) -> str:
    """Draw weights: floats, or integers with scales along ``dim``. Integers may have zero points."""
    if source.number(0, 2) > 0 or x.dtype != "float32":
        return source.parameter(x.dtype, *sizes)
    along = [size if d == dim else "1" for d, size in enumerate(sizes)]
    value = f"{source.parameter('int8', *sizes)}.to(torch.float32)"
    if source.draw_bool():
        value = f"({value} - {source.parameter('int4', *along)}.to(torch.float32))"
    return f"({value} * {source.parameter('positive', *along)})"


def _quantised_product(source: Source) -> str:
    """Draw a product of quantised values or floats with weights of 8 or 4 bits.

    There is a scale for each column, or for each group of terms.
    """
    x = source.operand(source.number(2, 3))
    columns = source.choose(("1", "4", "8", "16"))
    if not x.sizes[-1].isdecimal() or source.draw_bool():
        operand = source.choose((x.text, _quantised_value(source, x), _quantised_value(source, x)))
        return f"torch.nn.functional.linear({operand}, {_weights(source, x, (columns, x.sizes[-1]), 0)})"
    groups, terms = source.choose(("1", "2", "3")), source.choose(("8", "16", "4"))
    count = str(int(groups) * int(terms))
    rows = f"{source.parameter(x.dtype, source.choose(('1', '2', '3')), count)}"
    value = f"{source.parameter(source.choose(('int4', 'int4', 'int8')), columns, groups, terms)}.to(torch.float32)"
    if source.draw_bool():
        value = f"({value} - {source.parameter('int4', columns, groups, '1')}.to(torch.float32))"
    if source.draw_bool():
        value = f"({value} * {source.parameter('positive', columns, groups, '1')})"
    return f"torch.nn.functional.linear({rows}, {value}.view({columns}, {count}))"


# Cheap operators between the families.


def _view(source: Source) -> str:
    x = source.operand()
    dim, text = source.dim(x), x.text
    return source.choose(
        (
            f"{text}.permute({source.order(x.rank)})",
            f"{text}.transpose({dim}, {source.dim(x)})",
            f"{text}.unsqueeze({dim})",
            f"{text}.flatten()",
            f"{text}.flip({dim})",
            f"{text}.sort({dim})[0]",
            f"{text}.narrow({dim}, 0, {text}.size({dim}) // 2 + 1)",
            f"{text}.chunk(2, {dim})[{source.number(0, 1)}]",
            _with_dimension(source, x).text,
            f"torch.cat([{text}, {source.operand().text}], {dim})",
            f"torch.nn.functional.pad({text}, [1, 1], value=0.5)",
            f"{text}.unfold({dim}, 2, 1)",
            f"{text}.repeat_interleave(2, {dim})",
            f"{text}.contiguous()",
        )
    )


def _elementwise(source: Source) -> str:
    x = source.operand()
    if source.draw_bool():
        return f"{x.text}.{source.choose(('exp', 'relu', 'sigmoid', 'abs', 'neg', 'tanh'))}()"
    return f"{x.text} {source.choose(('+', '-', '*', '/'))} {source.like(x)}"


FAMILIES: Mapping[str, Callable[[Source], str]] = {
    "attention": _attention,
    "convolution": _convolution,
    "einsum": _einsum,
    "layer norm": _layer_norm,
    "linear": _linear,
    "matmul": _matmul,
    "norm of channels": _norm_of_channels,
    "quantised product": _quantised_product,
    "recurrence": _recurrence,
    "softmax": _softmax,
    "written norm": _written_norm,
}

# Cheap expressions between the expressions of families.
CHEAP: Mapping[str, Callable[[Source], str]] = {
    "cast": _cast,
    "elementwise": _elementwise,
    "quantised": lambda source: _quantised_value(source, source.operand()),
    "reduction": _reduction,
    "running sum": lambda source: (lambda x: f"{x.text}.cumsum({source.dim(x)})")(source.operand()),
    "scale": lambda source: f"{source.operand().text} * {source.choose(('0.125', '3.0', '-1.5'))}",
    "view": _view,
}


def draw(source: Source) -> str:
    """Draw an expression. In two of three cases it is from a family.

    Raises:
        NothingFits: If no operand fits.
    """
    kinds = CHEAP if source.number(0, 2) == 0 else FAMILIES
    return kinds[source.choose(tuple(kinds))](source)
