"""Operations of the Torch dialect as steps. Add an operation here, and its operator to the table OPS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmdla.devices import OpKind, OpSupport

from .code import Code, Tensor

# --- elementwise ---------------------------------------------------------------------------------

# Functions of mychip.c with the name of an operation, whose operands are all tensors.
SAME = """
neg abs sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan atan sinh cosh tanh erf
floor ceil round trunc relu sigmoid silu hardsigmoid hardswish isnan maximum minimum atan2
"""

COMPARISONS = "eq ne lt le gt ge"


def add(code: Code, x: Tensor, y: Tensor | float, alpha: float) -> Tensor:
    return code.map("add", x, scaled(code, y, alpha))


def subtract(code: Code, x: Tensor, y: Tensor | float, alpha: float) -> Tensor:
    return code.map("sub", x, scaled(code, y, alpha))


def subtract_reversed(code: Code, x: Tensor, y: Tensor | float, alpha: float) -> Tensor:
    return code.map("sub", y, scaled(code, x, alpha))


def scaled(code: Code, x: Tensor | float, factor: float) -> Tensor | float:
    if factor == 1:
        return x
    return code.map("mul", x, factor) if isinstance(x, Tensor) else x * factor


def clamp(code: Code, x: Tensor, low: float | None, high: float | None) -> Tensor:
    return code.map("clamp", x, -math.inf if low is None else low, math.inf if high is None else high)


def leaky_relu(code: Code, x: Tensor, slope: float) -> Tensor:
    return code.map("where", code.map("gt", x, 0), x, code.map("mul", x, slope))


def gelu(code: Code, x: Tensor, approximate: str) -> Tensor:
    if approximate != "none":
        raise NotImplementedError(f"approximate={approximate}")
    return code.map("gelu", x)


# --- reductions ----------------------------------------------------------------------------------


def reduction(function: str) -> Callable[..., Tensor]:
    """Return an operation with the operands ``x, dims, keepdim`` and perhaps a dtype."""

    def reduce(code: Code, x: Tensor, dims: Sequence[int] | None, keep: bool, *dtype: None) -> Tensor:
        return code.reduce(function, x, dims or range(len(x.shape)), keep)

    return reduce


def mean(code: Code, x: Tensor, dims: Sequence[int] | None, keep: bool, dtype: None) -> Tensor:
    total = code.reduce("sum", x, dims or range(len(x.shape)), keep)
    return code.map("div", total, math.prod(x.shape[dim] for dim in dims or range(len(x.shape))))


def softmax(code: Code, x: Tensor, dim: int, dtype: object = None) -> Tensor:
    powers = code.map("exp", code.map("sub", x, code.reduce("max", x, [dim], keep=True)))
    return code.map("div", powers, code.reduce("sum", powers, [dim], keep=True))


def log_softmax(code: Code, x: Tensor, dim: int, dtype: object = None) -> Tensor:
    moved = code.map("sub", x, code.reduce("max", x, [dim], keep=True))
    total = code.reduce("sum", code.map("exp", moved), [dim], keep=True)
    return code.map("sub", moved, code.map("log", total))


def layer_norm(
    code: Code, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, epsilon: float, *_: bool
) -> Tensor:
    dims = range(-len(shape), 0)
    centred = code.map("sub", x, mean(code, x, dims, True, None))
    variance = mean(code, code.map("mul", centred, centred), dims, True, None)
    result = code.map("mul", centred, code.map("rsqrt", code.map("add", variance, epsilon)))
    result = code.map("mul", result, weight) if weight else result
    return code.map("add", result, bias) if bias else result


# --- products ------------------------------------------------------------------------------------


def bmm(code: Code, x: Tensor, y: Tensor) -> Tensor:
    """Multiply matrices. The second one is copied if its rows are not contiguous: a parameter is packed so."""
    (batch, rows, depth), columns = x.shape, y.shape[2]
    y = y if y.strides[2] == 1 else code.map("copy", y)
    result = code.empty((batch, rows, columns))
    code.product(
        (1, 1, batch, rows, columns, 1, 1, depth),
        _with_loops(result, 0, 0, *result.strides, 0, 0, 0),
        _with_loops(x, 0, 0, *x.strides[:2], 0, 0, 0, x.strides[2]),
        _with_loops(y, 0, 0, y.strides[0], 0, y.strides[2], 0, 0, y.strides[1]),
    )
    return result


def mm(code: Code, x: Tensor, y: Tensor) -> Tensor:
    batch = bmm(code, x.expanded((1, *x.shape)), y.expanded((1, *y.shape)))
    return batch.with_shape(batch.shape[1:])


def addmm(code: Code, bias: Tensor, x: Tensor, y: Tensor, beta: float, alpha: float) -> Tensor:
    return add(code, scaled(code, mm(code, x, y), alpha), scaled(code, bias, beta), 1)  # type: ignore[arg-type]


def convolution(
    code: Code,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolve in one or two dimensions. The weight is packed so that the output channels are contiguous."""
    spatial = len(weight.shape) - 2
    if transposed or spatial > 2:
        raise NotImplementedError("transposed, or of three dimensions")
    channels, depth, *kernel = weight.shape
    columns = channels // groups
    windows = padded(code, x, padding, 0).windows(kernel, stride, dilation)
    batch, positions = windows.shape[0], windows.shape[2 : 2 + spatial]
    grouped = view(code, weight, (groups, columns, depth, *kernel))
    packed = code.map("copy", grouped.permuted([0, *range(2, 3 + spatial), 1]))
    result = code.empty((batch, channels, *positions))
    missing = 2 - spatial
    moves, steps = windows.strides[2 : 2 + spatial], windows.strides[2 + spatial :]
    at, channel = result.strides[2:], result.strides[1]
    none = (0,) * missing
    code.product(
        (batch, groups, *(1,) * missing, *positions, columns, depth, *(1,) * missing, *kernel),
        _with_loops(result, result.strides[0], columns * channel, *none, *at, channel, 0, 0, 0),
        _with_loops(
            windows, windows.strides[0], depth * windows.strides[1], *none, *moves, 0, windows.strides[1], *none, *steps
        ),
        _with_loops(packed, 0, packed.strides[0], 0, 0, 1, packed.strides[1], *none, *packed.strides[2 : 2 + spatial]),
    )
    return code.map("add", result, view(code, bias, (channels, *(1,) * spatial))) if bias else result


def _with_loops(tensor: Tensor, *strides: int) -> Tensor:
    """Return a tensor with the strides of the loops of a product."""
    return Tensor(tensor.storage, (1,) * len(strides), strides, tensor.offset)


# --- pooling -------------------------------------------------------------------------------------


def padded(code: Code, x: Tensor, padding: Sequence[int], number: float, more: Sequence[int] = ()) -> Tensor:
    """Return ``x`` with ``padding`` on both sides of its last dimensions, and ``more`` at their ends."""
    more = more or [0] * len(padding)
    if not any(padding) and not any(more):
        return x
    count = len(padding)
    sizes = [size + 2 * p + m for size, p, m in zip(x.shape[-count:], padding, more, strict=True)]
    whole = code.map("copy", number, into=code.empty((*x.shape[:-count], *sizes)))
    inner = whole
    for dim, p in enumerate(padding, len(x.shape) - count):
        inner = inner.sliced(dim, p, x.shape[dim])
    code.map("copy", x, into=inner)
    return whole


def pool_windows(
    code: Code,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    number: float,
    ceil: bool = False,
) -> Tensor:
    count = len(kernel)
    stride = stride or kernel
    more = [0] * count
    for k in range(count if ceil else 0):
        span = x.shape[k - count] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1
        positions = -(-span // stride[k])
        # The last window must begin inside of the input or of its padding on the left.
        positions -= positions * stride[k] >= x.shape[k - count] + padding[k]
        more[k] = max(0, positions * stride[k] - span)
    return padded(code, x, padding, number, more).windows(kernel, stride, dilation)


def max_pool(
    code: Code, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool
) -> Tensor:
    windows = pool_windows(code, x, kernel, stride, padding, dilation, -math.inf, ceil)
    return code.reduce("max", windows, range(-len(kernel), 0))


def avg_pool(
    code: Code,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil: bool,
    counts_padding: bool,
    divisor: int | None = None,
) -> Tensor:
    """Average windows. The numbers of elements in them are constants, so they are packed."""
    if ceil:
        raise NotImplementedError("ceil_mode")
    ones, dims = [1] * len(kernel), range(-len(kernel), 0)
    total = code.reduce("sum", pool_windows(code, x, kernel, stride, padding, ones, 0), dims)
    if divisor or counts_padding or not any(padding):
        return code.map("div", total, divisor or math.prod(kernel))
    filled = code.map("copy", 1, into=code.empty(x.shape[-len(kernel) :]))
    counts = code.reduce("sum", pool_windows(code, filled, kernel, stride, padding, ones, 0), dims)
    return code.map("div", total, counts)


def adaptive_avg_pool(code: Code, x: Tensor, sizes: list[int]) -> Tensor:
    inputs = x.shape[-len(sizes) :]
    if any(size % result for size, result in zip(inputs, sizes, strict=True)):
        raise NotImplementedError("sizes that do not divide those of the input")
    kernel = [size // result for size, result in zip(inputs, sizes, strict=True)]
    return avg_pool(code, x, kernel, kernel, [0] * len(sizes), False, True)


# --- views and copies ----------------------------------------------------------------------------


def view(code: Code, x: Tensor, shape: Sequence[int]) -> Tensor:
    known = math.prod(size for size in shape if size != -1)
    elements = math.prod(x.shape)
    return code.dense(x).with_shape(tuple(elements // known if size == -1 else size for size in shape))


def transpose(code: Code, x: Tensor, first: int, second: int) -> Tensor:
    dims = list(range(len(x.shape)))
    if dims:
        dims[first], dims[second] = dims[second], dims[first]
    return x.permuted(dims)


def select(code: Code, x: Tensor, dim: int, index: int) -> Tensor:
    dim %= len(x.shape)
    chosen = x.sliced(dim, index % x.shape[dim], 1)
    return chosen.permuted([k for k in range(len(x.shape)) if k != dim])


def slice_of(code: Code, x: Tensor, dim: int, begin: int | None, end: int | None, step: int) -> Tensor:
    dim %= len(x.shape)
    chosen = range(x.shape[dim])[slice(begin, end, step)]
    return x.sliced(dim, chosen.start, len(chosen), step)


def unsqueeze(code: Code, x: Tensor, dim: int) -> Tensor:
    dim %= len(x.shape) + 1
    longer = x.expanded((1, *x.shape))
    return longer.permuted([*range(1, dim + 1), 0, *range(dim + 1, len(longer.shape))])


def squeeze(code: Code, x: Tensor, dim: int | None = None) -> Tensor:
    dims = range(len(x.shape)) if dim is None else [dim % max(1, len(x.shape))]
    return x.permuted([k for k, size in enumerate(x.shape) if k not in dims or size != 1])


def cat(code: Code, tensors: Sequence[Tensor], dim: int) -> Tensor:
    tensors = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    dim %= len(tensors[0].shape)
    shape = list(tensors[0].shape)
    shape[dim] = sum(x.shape[dim] for x in tensors)
    result, begin = code.empty(tuple(shape)), 0
    for x in tensors:
        code.map("copy", x, into=result.sliced(dim, begin, x.shape[dim]))
        begin += x.shape[dim]
    return result


# --- tables --------------------------------------------------------------------------------------


def mapped(function: str) -> Callable[..., Tensor]:
    return lambda code, *operands: code.map(function, *operands)


# By name in the Torch dialect, without "torch.aten.". Results are tensors.
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: mapped(name) for name in SAME.split()},
    **{f"{name}.{form}": mapped(name) for name in COMPARISONS.split() for form in ("Tensor", "Scalar")},
    **{f"{name}.{form}": mapped(name) for name in ("mul", "div") for form in ("Tensor", "Scalar")},
    **{f"pow.{form}": mapped("pow") for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    **{f"add.{form}": add for form in ("Tensor", "Scalar")},
    **{f"sub.{form}": subtract for form in ("Tensor", "Scalar")},
    **{f"rsub.{form}": subtract_reversed for form in ("Tensor", "Scalar")},
    "where.self": mapped("where"),
    "bitwise_and.Tensor": mapped("and"),
    "bitwise_or.Tensor": mapped("or"),
    "logical_and": mapped("and"),
    "logical_or": mapped("or"),
    "bitwise_not": mapped("not"),
    "logical_not": mapped("not"),
    "square": lambda code, x: code.map("mul", x, x),
    "relu6": lambda code, x: clamp(code, x, 0, 6),
    "clamp": clamp,
    "leaky_relu": leaky_relu,
    "gelu": gelu,
    "sum": lambda code, x, dtype: code.reduce("sum", x, range(len(x.shape))),
    "mean": lambda code, x, dtype: mean(code, x, None, False, None),
    "max": lambda code, x: code.reduce("max", x, range(len(x.shape))),
    "min": lambda code, x: code.reduce("min", x, range(len(x.shape))),
    "sum.dim_IntList": reduction("sum"),
    "mean.dim": mean,
    "amax": reduction("max"),
    "amin": reduction("min"),
    "softmax.int": softmax,
    "_softmax": softmax,
    "log_softmax.int": log_softmax,
    "_log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "mm": mm,
    "bmm": bmm,
    "addmm": addmm,
    "convolution": convolution,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "avg_pool1d": avg_pool,
    "avg_pool2d": avg_pool,
    "adaptive_avg_pool1d": adaptive_avg_pool,
    "adaptive_avg_pool2d": adaptive_avg_pool,
    "view": view,
    "reshape": view,
    "permute": lambda code, x, dims: x.permuted(dims),
    "t": lambda code, x: transpose(code, x, 0, -1),
    "transpose.int": transpose,
    "expand": lambda code, x, shape, implicit: x.expanded(tuple(shape)),
    "broadcast_to": lambda code, x, shape: x.expanded(tuple(shape)),
    "select.int": select,
    "slice.Tensor": slice_of,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "squeeze.dim": squeeze,
    "cat": cat,
    "contiguous": lambda code, x, layout: x,
    "clone": lambda code, x, layout: x,
}


def _entries(kind: OpKind, names: str) -> dict[str, OpSupport]:
    return {f"aten::{name}": OpSupport(kind) for name in names.split()}


# The operators of PyTorch that groups may contain. "compute" is worth a group alone, "cheap" is not.
OPS: Mapping[str, OpSupport] = {
    **_entries("cheap", SAME),
    **_entries("cheap", " ".join(f"{name}.Tensor {name}.Scalar" for name in ["add", "sub", "mul", "div"])),
    **_entries("cheap", "rsub.Scalar pow.Tensor_Tensor pow.Tensor_Scalar clamp clamp_min clamp_max leaky_relu"),
    **_entries("cheap", "elu softplus hardtanh relu6 square cat"),
    "aten::gelu": OpSupport("cheap"),
    **_entries("compute", "sum sum.dim_IntList mean mean.dim amax amin max min"),
    **_entries("compute", "softmax.int _softmax log_softmax.int _log_softmax layer_norm"),
    **_entries("compute", "mm bmm matmul addmm linear conv1d conv2d"),
    **_entries("compute", "max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d"),
    "aten::batch_norm": OpSupport("compute", {"training": False}),
    "aten::convolution": OpSupport("compute", {"transposed": False}),
    "aten::_convolution": OpSupport("compute", {"transposed": False}),
    "aten::scaled_dot_product_attention": OpSupport("compute", {"dropout_p": 0.0}),
    "aten::dropout": OpSupport("view", {"train": False}),
    **_entries("view", "view reshape flatten.using_ints permute transpose.int t numpy_T movedim.int"),
    **_entries("view", "expand expand_as select.int slice.Tensor narrow unsqueeze squeeze squeeze.dim"),
    **_entries("view", "split.Tensor split_with_sizes chunk contiguous detach"),
}
