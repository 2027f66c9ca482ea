"""ATen operators that are decomposed before groups form, and resize and loss operators that stay whole.

The former are mainly backward operators that no device supports directly. For the latter, PyTorch's decompositions in
Python compute other values than eager's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import get_decompositions
from torch._decomp.decompositions import pw_cast_for_opmath, upsample_compute_output_size
from torch._inductor import inductor_prims
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_logical_to_physical_perm,
    elementwise_dtypes,
    is_non_overlapping_and_dense_or_false,
)

from torchmdla.capture.fx.foreach import foreach_decompositions
from torchmdla.capture.fx.recurrent import whole_network
from torchmdla.importer.decompositions.recurrent_steps import CELLS

aten = torch.ops.aten


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each operator overload."""
    table = dict(get_decompositions(_DECOMPOSED_OPS))
    functional = aten._native_batch_norm_legit_functional.default
    table[functional] = partial(_detach_statistics, table[functional])
    table |= {norm: partial(_use_kernel_format, table[norm]) for norm in _BATCH_NORMS}
    table[aten.copy.default] = _copy
    table[aten.softplus_backward.default] = pw_cast_for_opmath(_softplus_backward)
    table |= {operator: partial(_multiply_by_symbol, operator) for operator in _FACTORS}
    table[inductor_prims.fma] = _multiply_add
    table[aten.native_dropout.default] = _dropout
    table[aten.native_dropout_backward.default] = _dropout_gradient
    return table | foreach_decompositions()


def _multiply_by_symbol(operator: Any, *tensors: Any, **keywords: Any) -> Any:
    """Return the result of ``operator`` with products by a factor that changes between calls, such as a learning rate.

    AOT Autograd makes an input of such a float only if it is the operand of a product or a sum. It recompiles for each
    value otherwise. Integers stay with the operator, which truncates the factor.
    """
    name = _FACTORS[operator]
    factor = keywords.get(name)
    wide, dtype = elementwise_dtypes(*tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    if not isinstance(factor, torch.SymFloat) or not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented
    if wide == dtype:
        tensor, operand, *others = tensors
        return operator(tensor, operand * factor, *others)
    # Eager computes halves in float32 and rounds the result. It rounds alpha to a half, but no other factor.
    if operator in _SIGNS:
        return aten.addcmul(*tensors, tensors[0].new_full((), _SIGNS[operator], dtype=dtype) * factor)
    tensor, operand, *others = (each.to(dtype).to(wide) for each in tensors)
    return _copy(operator(*tensors), operator(tensor, operand * factor, *others))


# Names of the factors of operators that are a sum of a tensor and products.
_FACTORS = {
    aten.add.Tensor: "alpha",
    aten.sub.Tensor: "alpha",
    aten.addcmul.default: "value",
    aten.addcdiv.default: "value",
}
# Signs of alpha in sums.
_SIGNS = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}


def _dropout(value: Tensor, probability: float, trains: bool | None) -> Any:
    """Return dropped values and their mask. The mask is drawn apart, so that it does not wait for ``value``."""
    if trains is False:
        return NotImplemented
    like = torch.empty_like(value, dtype=torch.bool)
    memory = torch.empty_strided(like.shape, like.stride(), dtype=torch.bool, device=value.device)
    rest = 1.0 - probability
    mask = apply_in_order(memory_order(memory), partial(aten.bernoulli.p, p=rest), memory)
    return value * mask * (1.0 / rest if rest else 0.0), mask


def _dropout_gradient(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the gradient with eager's roundings. PyTorch's decomposition rounds the scale."""
    return gradient * mask * scale


def _multiply_add(factor: Tensor, other: Tensor, summand: Tensor) -> Tensor:
    """Return the result of the operator that Dynamo captures for ``add`` with a tensor as ``alpha``."""
    return summand + factor * other


def _detach_statistics(norm: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the results of ``norm`` with its last two, the new running statistics, detached as the operator's are."""
    *results, mean, variance = norm(*args, **kwargs)
    return (*results, mean.detach(), variance.detach())


def _use_kernel_format(norm: Callable[..., Any], value: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the results of ``norm`` in the memory format of eager's kernel.

    That is the format of ``value`` if it has one, and contiguous otherwise. PyTorch's decomposition keeps any order of
    the dimensions.
    """
    result, *others = norm(value, *args, **kwargs)
    formats = (torch.contiguous_format, *_CHANNELS_LAST.get(value.dim(), ()))
    memory_format = next((f for f in formats if value.is_contiguous(memory_format=f)), torch.contiguous_format)
    return (result.contiguous(memory_format=memory_format), *others)


def _softplus_backward(gradient: Tensor, value: Tensor, beta: float, threshold: float) -> Tensor:
    """Return the gradient of softplus by a sigmoid, which the second derivative needs, too."""
    scaled = value if beta == 1.0 else value * beta
    return torch.where(scaled > threshold, gradient, gradient * torch.sigmoid(scaled))


def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Return ``src`` in the sizes, dtype and strides of ``self``, by operators that have derivatives."""
    copy = partial(Tensor.to, device=self.device, dtype=self.dtype, copy=True, memory_format=torch.contiguous_format)
    copied = apply_in_order(memory_order(self), copy, src.expand(self.shape))
    return copied if is_non_overlapping_and_dense_or_false(self) else _match_layout(copied, self)


def _match_layout(tensor: Tensor, other: Tensor) -> Tensor:
    """Return ``tensor`` at the offset and strides of ``other``.

    AOT Autograd assumes that a view of a result is a view of the written input, with the same offset and strides.
    """
    offset, strides = other.storage_offset(), other.stride()
    reach = [(size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True)]
    memory = tensor.new_zeros([offset + 1 + sum(reach)])
    return torch.as_strided_scatter(memory, tensor, tensor.shape, strides, offset).as_strided(
        tensor.shape, strides, offset
    )


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions of ``tensor`` in descending order of stride."""
    order, _ = compute_elementwise_output_logical_to_physical_perm(tensor)
    return order


def apply_in_order(order: list[int], make: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return the result of ``make`` for ``tensor`` permuted to ``order``, with the dimensions permuted back."""
    if order == sorted(order):
        return make(tensor)
    return make(tensor.permute(order)).permute([order.index(dim) for dim in range(tensor.dim())])


def keep_operators_whole() -> AbstractContextManager[None]:
    """Trace the operators of ``_KERNELS`` by its kernels in place of PyTorch's Python, until the context ends.

    PyTorch keeps its Python kernels per process, so the caller must hold Dynamo's compile lock.
    """
    return _use_kernels(_KERNELS)


def differentiate_twice() -> AbstractContextManager[None]:
    """Trace backward operators whose derivatives in PyTorch depend on sizes by others, until the context ends.

    The caller must hold Dynamo's compile lock.
    """
    return _use_kernels(_TWICE_DIFFERENTIABLE)


@contextmanager
def _use_kernels(table: Mapping[Any, Kernels]) -> Iterator[None]:
    before = {operator: dict(operator.py_kernels) for operator in table}
    for operator, kernels in table.items():
        others = {key: kernel for key, kernel in before[operator].items() if key not in _DECOMPOSING_KEYS}
        _replace_kernels(operator, {**others, **kernels})
    try:
        yield
    finally:
        for operator, kernels in before.items():
            _replace_kernels(operator, kernels)


_DECOMPOSING_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)

Kernels = Mapping[DispatchKey, Callable[..., Any]]


def _replace_kernels(operator: Any, kernels: Kernels) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def _resize_vec(resize: Any, image: Tensor, output_size: Sequence[int] | None, *rest: Any) -> Tensor:
    """Return the result of an operator's overload ``vec`` by ``resize``: PyTorch's C++ lacks support for symbols."""
    *corners, scale_factors = rest
    sizes = upsample_compute_output_size(image.shape, output_size, scale_factors)
    result: Tensor = resize(image, sizes, *corners, *(scale_factors or [None] * len(sizes)))
    return result


def _image_gradient(gradient: Tensor, output_size: object, input_size: Sequence[int], *rest: object) -> Tensor:
    """Return an empty gradient of a resized image.

    PyTorch's C++ does not support symbols there, except for nearest in 2 dimensions.
    """
    return gradient.new_empty(input_size)


def _embedding_gradient(
    gradient: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the gradient of the weights of an embedding by operators whose derivatives do not depend on sizes."""
    places = indices.reshape(-1)
    rows = gradient.reshape(places.shape[0], gradient.shape[-1])
    if scale_grad_by_freq:
        counts = rows.new_zeros(num_weights).index_add(0, places, torch.ones_like(places, dtype=rows.dtype))
        # PyTorch's second derivative is that of rows without the scale.
        rows = rows + (rows / counts[places].unsqueeze(-1) - rows).detach()
    # PyTorch gives embeddings without padding the index -1.
    rows = rows.masked_fill((places == padding_idx).unsqueeze(-1), 0.0) if padding_idx >= 0 else rows
    return rows.new_zeros([num_weights, gradient.shape[-1]]).index_add(0, places, rows)


_RESIZE_OPS = [
    *(f"{kind}{dims}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)),
    *(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
]

# Operators for which PyTorch's Python decomposition differs from its kernels. Resizing copies where the sizes are equal
# and halves the index where they double, whatever the scale. Losses report a wrong target. Recurrent networks never
# drop values between layers, and keep no workspace for their backward.
_KERNELS: dict[Any, Kernels] = {
    **{getattr(aten, name).default: {} for name in _RESIZE_OPS},
    **{
        getattr(aten, name).vec: dict.fromkeys(_DECOMPOSING_KEYS, partial(_resize_vec, getattr(aten, name).default))
        for name in _RESIZE_OPS
    },
    **{
        operator: {DispatchKey.Meta: _image_gradient}
        for operator in (getattr(aten, f"{name}_backward").default for name in _RESIZE_OPS)
        if DispatchKey.Meta not in operator.py_kernels
    },
    **{getattr(aten, name).input: dict.fromkeys(_DECOMPOSING_KEYS, whole_network(name)) for name in CELLS},
    **{getattr(aten, name).data: {} for name in CELLS},
    aten.multi_margin_loss.default: {},
    aten.multilabel_margin_loss_forward.default: {},
}

_TWICE_DIFFERENTIABLE: dict[Any, Kernels] = {
    aten.embedding_dense_backward.default: {DispatchKey.Autograd: _embedding_gradient},
}

_CHANNELS_LAST = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}

_BATCH_NORMS: list[Any] = [
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.native_batch_norm.default,
]

_DECOMPOSED_OPS: list[Any] = [
    *_BATCH_NORMS,
    aten.native_batch_norm_backward,
    aten.native_layer_norm_backward,
    aten.native_group_norm_backward,
    aten.select_backward,
    aten.slice_backward,
    aten.diagonal_backward,
    aten.unfold_backward,
    aten._safe_softmax,
]
