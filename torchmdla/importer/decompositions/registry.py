"""Ops written in terms of others: what torch-mlir has no op for, or lowers badly.

A decomposition is a Python function of the op's own signature, traced on the recorded types (``trace.py``). It must be
functional: no writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions import (
    elementwise,
    grid,
    losses,
    paddings,
    pooling,
    products,
    recurrent,
    reductions,
)
from torchmdla.importer.decompositions.attention import (
    native_multi_head_attention,
    scaled_dot_product_attention,
    transformer_encoder_layer,
)
from torchmdla.importer.decompositions.convolutions import convolution, convolution_backward, convolution_of_script
from torchmdla.importer.decompositions.resize import RESIZES
from torchmdla.importer.types import dtype_of_number

Decomposition = Callable[..., object]


def decomposition(name: str) -> Decomposition | None:
    """The decomposition of an op by schema name with overload; None if the op is written as itself."""
    if name in _WRITTEN:
        return _with_dtypes(_WRITTEN[name], name)
    if name in _COMPOSITE:
        return composite(name)
    if name in _FROM_TORCH:
        return _by_position(torch._decomp.decomposition_table[overload_of(name)], name)
    return None


def overload_of(name: str) -> torch._ops.OpOverload:
    """The function of an op by its schema name with overload."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    found: torch._ops.OpOverload = getattr(packet, overload or "default")
    return found


def schema_of(name: str) -> torch._C.FunctionSchema:
    """The schema of an op by its name with overload."""
    schema: torch._C.FunctionSchema = overload_of(name)._schema
    return schema


def composite(name: str) -> Decomposition:
    """The op itself: the dispatcher runs PyTorch's composite kernel."""
    return _by_position(overload_of(name), name)


def _by_position(function: Callable[..., object], name: str) -> Decomposition:
    """``function`` taking keyword-only arguments by position, as every decomposition does, and dtypes as such."""
    keywords = [argument.name for argument in schema_of(name).arguments if argument.kwarg_only]

    def call(*given: object) -> object:
        positional = len(given) - len(keywords)
        return function(*given[:positional], **dict(zip(keywords, given[positional:], strict=True)))

    return _with_dtypes(call, name)


def _with_dtypes(function: Callable[..., object], name: str) -> Decomposition:
    """``function`` given dtypes as such, where graphs have their numbers."""
    places = {index for index, argument in enumerate(schema_of(name).arguments) if "dtype" in argument.name}
    if not places:
        return function

    def call(*given: object) -> object:
        return function(*(dtype_of_number(v) if i in places and isinstance(v, int) else v for i, v in enumerate(given)))

    return call


def _instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled):  # type: ignore[no-untyped-def]
    """Normalises each channel of each sample by its own statistics, or by the running ones."""
    if not use_input_stats:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)
    if running_mean is not None:
        raise CompileError("it updates running statistics", op="aten::instance_norm")
    return _affine(_normalised(input, eps)[0], weight, bias)


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):  # type: ignore[no-untyped-def]
    """Normalises each group of channels of each sample."""
    grouped = _normalised(_in_groups(input, num_groups), eps)[0]
    return _affine(grouped.reshape(input.shape), weight, bias)


def _native_group_norm(input, weight, bias, N, C, HxW, group, eps):  # type: ignore[no-untyped-def] # noqa: N803
    """The same, with the mean and the reciprocal deviation of each group."""
    grouped, mean, deviation = _normalised(_in_groups(input, group), eps)
    statistics = (value.reshape(N, group) for value in (mean, deviation))
    return (_affine(grouped.reshape(input.shape), weight, bias), *statistics)


def _in_groups(value: Tensor, groups: int) -> Tensor:
    return value.reshape(value.size(0), groups, value.size(1) // groups, *value.shape[2:])


def _normalised(value: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """By the statistics of all dimensions but two; then these: the mean and the reciprocal deviation."""
    dims = list(range(2, value.dim()))
    mean = value.mean(dims, keepdim=True)
    centred = value - mean
    deviation = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    return centred * deviation, mean, deviation


def _rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    """Divides by the root of the mean square. Without an ``eps`` it is the dtype's; upstream takes 0."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    mean = (input * input).mean(dims, keepdim=True)
    normalised = input * torch.rsqrt(mean + (torch.finfo(input.dtype).eps if eps is None else eps))
    return normalised if weight is None else normalised * weight


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):  # type: ignore[no-untyped-def]
    """By running statistics as eager computes it: a factor and a term for each channel, of the parameters alone."""
    if training or input.dtype != running_var.dtype:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, False)
    factor = torch.rsqrt(running_var + eps)
    if weight is not None:
        factor = factor * weight
    term = -running_mean * factor
    return _affine(input, factor, term if bias is None else term + bias)


def _mse_loss_backward(grad, value, target, reduction):  # type: ignore[no-untyped-def]
    """PyTorch's own, of floats; of integers eager rounds in between."""
    if not value.is_floating_point():
        raise CompileError("integers", op="aten::mse_loss_backward")
    return torch._decomp.decomposition_table[overload_of("aten::mse_loss_backward")](grad, value, target, reduction)


def _scatter(value: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    """With the dimension counted from the front: upstream's lowering ends the process on others. 0-d is a row."""
    tensors = [value, index, source] if isinstance(source, Tensor) else [value, index]
    if all(tensor.dim() for tensor in tensors):
        return torch.scatter(value, dim % value.dim(), index, source)  # type: ignore[arg-type]
    row, places, *written = (tensor.reshape(-1) for tensor in tensors)
    return torch.scatter(row, 0, places, written[0] if written else source).view(value.shape)  # type: ignore[arg-type]


def _index_put(value: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    """Itself; where whole dimensions lie between indexed ones, which upstream does not lower, those come first. The
    source has its indexed dimensions in front then, too."""
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    put: Callable[..., Tensor] = torch.ops.aten.index_put
    if not indexed or indexed[-1] - indexed[0] + 1 == len(indexed):
        return put(value, indices, source, accumulate)
    order = [*indexed, *(dim for dim in range(value.dim()) if dim not in indexed)]
    given = [indices[dim] for dim in indexed]
    return put(value.permute(order), given, source, accumulate).permute(
        [order.index(dim) for dim in range(value.dim())]
    )


def _select_scatter(value: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """A slice of one: upstream takes a negative index into a vector for one behind its end."""
    index = index + value.size(dim) if index < 0 else index
    return torch.slice_scatter(value, source.unsqueeze(dim), dim, index, index + 1)


def _copy(value: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(value.dtype).expand(value.shape)


def _fill(value: Tensor, number: Tensor | float) -> Tensor:
    return _copy(value, number) if isinstance(number, Tensor) else torch.full_like(value, number)


def _affine(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    channels = [1, -1] + [1] * (value.dim() - 2)
    if weight is not None:
        value = value * weight.view(channels)
    return value if bias is None else value + bias.view(channels)


_WRITTEN: Mapping[str, Decomposition] = {
    "aten::scaled_dot_product_attention": scaled_dot_product_attention,
    "aten::_native_multi_head_attention": native_multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": transformer_encoder_layer,
    "aten::lstm.input": recurrent.lstm,
    "aten::gru.input": recurrent.gru,
    "aten::rnn_tanh.input": recurrent.rnn_tanh,
    "aten::rnn_relu.input": recurrent.rnn_relu,
    "aten::lstm_cell": recurrent.lstm_cell,
    "aten::gru_cell": recurrent.gru_cell,
    "aten::rnn_tanh_cell": recurrent.rnn_tanh_cell,
    "aten::rnn_relu_cell": recurrent.rnn_relu_cell,
    "aten::convolution": convolution,
    "aten::_convolution": convolution_of_script,
    "aten::_convolution.deprecated": convolution_of_script,
    "aten::convolution_backward": convolution_backward,
    "aten::batch_norm": _batch_norm,
    "aten::instance_norm": _instance_norm,
    "aten::group_norm": _group_norm,
    "aten::native_group_norm": _native_group_norm,
    "aten::rms_norm": _rms_norm,
    "aten::gelu": elementwise.gelu,
    "aten::softshrink": elementwise.softshrink,
    "aten::prelu": elementwise.prelu,
    "aten::_prelu_kernel": elementwise.prelu,
    "aten::leaky_relu": elementwise.leaky_relu,
    "aten::isfinite": elementwise.isfinite,
    "aten::nan_to_num": elementwise.nan_to_num,
    "aten::reciprocal": elementwise.reciprocal,
    "aten::neg": elementwise.neg,
    "aten::masked_fill.Scalar": elementwise.masked_fill,
    "aten::pow.Tensor_Scalar": elementwise.pow_by_number,
    "aten::mse_loss_backward": _mse_loss_backward,
    "aten::pow.Scalar": elementwise.power_of_number,
    "aten::rsub.Tensor": elementwise.rsub,
    **{
        f"aten::{name}.Scalar": elementwise.comparison(getattr(torch, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "aten::threshold": elementwise.threshold,
    "aten::threshold_backward": elementwise.threshold_backward,
    "aten::hardtanh_backward": elementwise.hardtanh_backward,
    "aten::tanh_backward": elementwise.tanh_backward,
    "aten::sigmoid_backward": elementwise.sigmoid_backward,
    "aten::hardshrink": elementwise.hardshrink,
    "aten::heaviside": elementwise.heaviside,
    "aten::addcmul": elementwise.addcmul,
    "aten::addcdiv": elementwise.addcdiv,
    "aten::log_sigmoid": elementwise.log_sigmoid,
    "aten::hardswish_backward": elementwise.hardswish_backward,
    "aten::elu": elementwise.elu,
    "aten::selu": elementwise.selu,
    "aten::celu": elementwise.celu,
    "aten::elu_backward": elementwise.elu_backward,
    "aten::lerp.Tensor": elementwise.lerp,
    "aten::lerp.Scalar": elementwise.lerp,
    "aten::max.dim": reductions.extremum_of_dim(largest=True),
    "aten::min.dim": reductions.extremum_of_dim(largest=False),
    "aten::argmax": reductions.place_of_extremum(largest=True),
    "aten::argmin": reductions.place_of_extremum(largest=False),
    "aten::logit": elementwise.logit,
    "aten::asinh": elementwise.asinh,
    "aten::acosh": elementwise.acosh,
    "aten::trunc": elementwise.trunc,
    "aten::frac": elementwise.frac,
    "aten::fmod.Tensor": elementwise.fmod,
    "aten::fmod.Scalar": elementwise.fmod,
    "aten::floor_divide": elementwise.floor_divide,
    "aten::floor_divide.Scalar": elementwise.floor_divide,
    "aten::div.Tensor_mode": elementwise.divide,
    "aten::div.Scalar_mode": elementwise.divide,
    "aten::binary_cross_entropy_with_logits": losses.binary_cross_entropy_with_logits,
    "aten::kl_div": losses.kl_div,
    "aten::pad": paddings.pad,
    "aten::constant_pad_nd": paddings.constant_pad_nd,
    **{f"aten::reflection_pad{rank}d": paddings.reflection_pad for rank in (1, 2, 3)},
    **{f"aten::replication_pad{rank}d": paddings.replication_pad for rank in (1, 2, 3)},
    "aten::index_put": _index_put,
    "aten::scatter.src": _scatter,
    "aten::scatter.value": _scatter,
    "aten::select_scatter": _select_scatter,
    "aten::copy": _copy,
    "aten::fill.Scalar": _fill,
    "aten::fill.Tensor": _fill,
    "aten::zero": torch.zeros_like,
    "aten::linear": products.linear,
    "aten::addmm": products.added_to(torch.mm),
    "aten::addmv": products.added_to(torch.mv),
    "aten::baddbmm": products.added_to(torch.bmm),
    "aten::matmul": products.matmul,
    "aten::adaptive_avg_pool1d": pooling.adaptive_average(1),
    "aten::adaptive_avg_pool2d": pooling.adaptive_average(2),
    "aten::adaptive_avg_pool3d": pooling.adaptive_average(3),
    "aten::_adaptive_avg_pool2d": pooling.adaptive_average(2),
    "aten::_adaptive_avg_pool3d": pooling.adaptive_average(3),
    "aten::adaptive_max_pool1d": pooling.adaptive_maximum(1),
    "aten::adaptive_max_pool2d": pooling.adaptive_maximum(2),
    "aten::adaptive_max_pool3d": pooling.adaptive_maximum(3),
    **RESIZES,
    "aten::grid_sampler": grid.grid_sampler,
    "aten::_softmax_backward_data": reductions.softmax_backward,
    "aten::logsumexp": reductions.logsumexp,
    "aten::count_nonzero": reductions.count_nonzero,
    "aten::linalg_vector_norm": reductions.vector_norm,
    "aten::hypot": elementwise.hypot,
    "aten::logaddexp": elementwise.logaddexp,
    "aten::sinc": elementwise.sinc,
    "aten::xlogy.Tensor": elementwise.xlogy,
    "aten::deg2rad": lambda value: value * (math.pi / 180),
    "aten::rad2deg": lambda value: value * (180 / math.pi),
    "aten::nansum": reductions.nansum,
    "aten::norm.Scalar": reductions.norm,
    "aten::norm.ScalarOpt_dim": reductions.norm_of_dims,
    "aten::_grad_sum_to_size": reductions.sum_to_size,
    "aten::sum_to_size": reductions.sum_to_size,
    "aten::clamp_min.Tensor": torch.maximum,
    "aten::clamp_max.Tensor": torch.minimum,
    "aten::max.other": torch.maximum,
    "aten::min.other": torch.minimum,
}

# PyTorch's own composite kernels: the recorder sees what they call.
_COMPOSITE = frozenset(
    f"aten::{name}"
    for name in [
        "einsum",
        "tensordot",
        "__and__.Tensor",
        "__or__.Tensor",
        "__xor__.Tensor",
        "take_along_dim",
        "concat",
        "hstack",
        "vstack",
        "mT",
        "numpy_T",
        "swapaxes",
        "movedim.int",
        "meshgrid",
        "meshgrid.indexing",
        "cross_entropy_loss",
        "nll_loss",
        "nll_loss_nd",
        "nll_loss2d",
        # Without a batch dimension too, and with 'same' padding that is larger at one end: upstream's are not.
        "conv1d",
        "conv2d",
        "conv3d",
        "conv1d.padding",
        "conv2d.padding",
        "conv3d.padding",
        "_convolution_mode",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
    ]
)

# Of torch._decomp's table.
_FROM_TORCH = frozenset(
    f"aten::{name}"
    for name in [
        "gelu_backward",
        "silu_backward",
        "hardsigmoid_backward",
        "leaky_relu_backward",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
        "embedding_dense_backward",
    ]
)
