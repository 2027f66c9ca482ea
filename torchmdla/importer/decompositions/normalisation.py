"""Normalisations: batch, instance, group and RMS norms as means, factors and terms."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.errors import CompileError


def instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled):  # type: ignore[no-untyped-def]
    """Normalise each channel of each sample by its own statistics, or by the running ones."""
    if not use_input_stats:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)
    if running_mean is not None:
        raise CompileError("it updates running statistics", op="aten::instance_norm")
    return _apply_affine(_normalise(input, eps)[0], weight, bias)


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):  # type: ignore[no-untyped-def]
    """Normalise each group of channels of each sample."""
    grouped = _normalise(_split_groups(input, num_groups), eps)[0]
    return _apply_affine(grouped.reshape(input.shape), weight, bias)


def native_group_norm(input, weight, bias, N, C, HxW, group, eps):  # type: ignore[no-untyped-def] # noqa: N803
    """Compute :func:`group_norm`, and also the mean and the reciprocal deviation of each group."""
    grouped, mean, deviation = _normalise(_split_groups(input, group), eps)
    statistics = (value.reshape(N, group) for value in (mean, deviation))
    return (_apply_affine(grouped.reshape(input.shape), weight, bias), *statistics)


def rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    """Divide by the root of the mean square. The default ``eps`` is the dtype's; upstream uses 0."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    mean = (input * input).mean(dims, keepdim=True)
    normalised = input * torch.rsqrt(mean + (torch.finfo(input.dtype).eps if eps is None else eps))
    return normalised if weight is None else normalised * weight


def batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):  # type: ignore[no-untyped-def]
    """Normalise by running statistics, as eager does, with a factor and a term for each channel.

    Both are computed from the parameters only.
    """
    if training or input.dtype != running_var.dtype:
        return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, False)
    factor = torch.rsqrt(running_var + eps)
    if weight is not None:
        factor = factor * weight
    term = -running_mean * factor
    return _apply_affine(input, factor, term if bias is None else term + bias)


def _split_groups(value: Tensor, groups: int) -> Tensor:
    return value.reshape(value.size(0), groups, value.size(1) // groups, *value.shape[2:])


def _normalise(value: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the statistics of all dimensions but two. Also return the mean and the reciprocal deviation."""
    dims = list(range(2, value.dim()))
    mean = value.mean(dims, keepdim=True)
    centred = value - mean
    variance = (centred * centred).mean(dims, keepdim=True)
    if eps > torch.finfo(variance.dtype).max:  # Eager's kernel adds it in double precision.
        deviation = torch.rsqrt(variance.double() + eps).to(variance.dtype)
    else:
        deviation = torch.rsqrt(variance + eps)
    return centred * deviation, mean, deviation


def _apply_affine(value: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    channels = [1, -1] + [1] * (value.dim() - 2)
    if weight is not None:
        value = value * weight.view(channels)
    return value if bias is None else value + bias.view(channels)
