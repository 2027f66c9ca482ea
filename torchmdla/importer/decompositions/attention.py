"""Attention and the transformer encoder layer as plain matrix products, softmax and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn import functional

from torchmdla.errors import CompileError


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute ``softmax(scale · query keyᵀ + mask) value``.

    Shapes: query ``[…, L, E]``, key ``[…, S, E]``, value ``[…, S, Ev]``.
    """
    _check_dropout(dropout_p, "aten::scaled_dot_product_attention")
    if enable_gqa:
        key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    overwrites = is_causal and _is_fused(query, key, value)
    scores = _scores(query, key, attn_mask, is_causal, scale, overwrites=overwrites)
    _, powers, total = _powers(scores)
    return _attend(powers, total, value)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention, and the logarithm of each row's sum of powers, which the backward reads."""
    _check_dropout(dropout_p, "aten::_scaled_dot_product_flash_attention_for_cpu")
    key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    attended, logarithms = [], []
    for block in _blocks(query, key, is_causal):
        largest, powers, total = _powers(block.scores(query, key, attn_mask, is_causal, scale))
        attended.append(_attend(powers, total, block.keys(value)))
        logarithms.append(torch.where(total == 0.0, 0.0, largest + torch.log(total)).squeeze(-1))
    return _concatenate(attended, -2), _concatenate(logarithms, -1)


def flash_attention_gradients(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    logarithms: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key and value. ``logarithms`` gives the weights without a reduction."""
    _check_dropout(dropout_p, "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    heads = key.size(1)
    key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    of_query: list[Tensor] = []
    of_key: list[Tensor] = []
    of_value: list[Tensor] = []
    for block in _blocks(query, key, is_causal):
        scores = block.scores(query, key, attn_mask, is_causal, scale)
        weights = torch.exp(scores - block.rows(logarithms.unsqueeze(-1)))
        tangent = block.rows(gradient)
        of_weights = torch.matmul(tangent, block.keys(value).transpose(-2, -1))
        shift = torch.sum(tangent * block.rows(result), -1, keepdim=True)
        of_scores = weights * (of_weights - shift) * _factor(query, scale)
        of_query.append(torch.matmul(of_scores, block.keys(key)))
        of_key.append(block.of_all_keys(torch.matmul(of_scores.transpose(-2, -1), block.rows(query))))
        of_value.append(block.of_all_keys(torch.matmul(weights.transpose(-2, -1), tangent)))
    key_gradient, value_gradient = (_add_heads(reduce(torch.add, parts), heads) for parts in (of_key, of_value))
    return _concatenate(of_query, -2), key_gradient, value_gradient


# Attention runs in blocks of at least these rows: a block's scores are temporary, and a causal mask hides keys from it.
_LEAST_ROWS = 256
_MOST_BLOCKS = 8


@dataclass(frozen=True)
class _Block:
    """Rows of queries from ``first`` to ``end``, which see the keys before ``last`` of ``length``."""

    first: int
    end: int
    last: int
    length: int

    def rows(self, tensor: Tensor) -> Tensor:
        """Return these rows of a tensor for each query."""
        return tensor if tensor.size(-2) == self.end - self.first else tensor[..., self.first : self.end, :]

    def keys(self, tensor: Tensor) -> Tensor:
        """Return the part that these rows see of a tensor for each key."""
        return tensor if self.last == self.length else tensor[..., : self.last, :]

    def of_all_keys(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` with zeros for the other keys."""
        rest = self.length - self.last
        return functional.pad(tensor, (0, 0, 0, rest)) if rest else tensor

    def scores(self, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
        """Return the scores of these rows."""
        if mask is not None and mask.size(-2) > 1:
            mask = self.rows(mask)
        return _scores(self.rows(query), self.keys(key), mask, is_causal, scale, overwrites=is_causal, first=self.first)


def _blocks(query: Tensor, key: Tensor, is_causal: bool) -> list[_Block]:
    rows, keys = query.size(-2), key.size(-2)
    size = -(-rows // min(max(rows // _LEAST_ROWS, 1), _MOST_BLOCKS))
    bounds = [(first, min(first + size, rows)) for first in range(0, rows, size)]
    return [_Block(first, end, min(end, keys) if is_causal else keys, keys) for first, end in bounds]


def _concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _check_dropout(probability: float, op: str) -> None:
    if probability != 0.0:
        raise CompileError("attention with dropout draws random numbers", op=op)


def _factor(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.size(-1)) if scale is None else scale


def _scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    *,
    overwrites: bool,
    first: int = 0,
) -> Tensor:
    """Return ``scale · query keyᵀ + mask`` of the rows from ``first`` on.

    The causal mask ``overwrites`` scores, or is added to them.
    """
    scores = torch.matmul(query * _factor(query, scale), key.transpose(-2, -1))
    if is_causal:
        row = torch.arange(first, first + query.size(-2), device=query.device).unsqueeze(1)
        keep = torch.arange(key.size(-2), device=query.device).unsqueeze(0) <= row
        return _mask_scores(scores, keep, adds=not overwrites)
    if mask is None:
        return scores
    return _mask_scores(scores, mask, adds=True) if mask.dtype == torch.bool else scores + mask


def _mask_scores(scores: Tensor, keep: Tensor, *, adds: bool) -> Tensor:
    """Return the scores with ``-inf`` at the positions where ``keep`` is false.

    With ``adds``, ``-inf`` is added to the scores, as eager adds a mask. NaN and ``inf`` there become NaN.
    """
    return torch.where(keep, scores, scores - math.inf if adds else -math.inf)


def _is_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether eager computes the attention with one fused kernel, whose causal mask overwrites the scores."""
    if query.dim() != 4 or not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return False
    return query.size(-1) == key.size(-1) == value.size(-1)


def _powers(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's largest score, its powers relative to it, and their sum.

    The powers of a row of ``-inf`` are zeros. The clamp affects only such rows.
    """
    largest = torch.clamp_min(torch.amax(scores, -1, keepdim=True), torch.finfo(scores.dtype).min)
    powers = torch.exp(scores - largest)
    return largest, powers, torch.sum(powers, -1, keepdim=True)


def _attend(powers: Tensor, total: Tensor, value: Tensor) -> Tensor:
    """Return the product of the softmax and ``value``. The clamp affects only rows of zeros."""
    return torch.matmul(powers / torch.clamp_min(total, torch.finfo(powers.dtype).tiny), value)


def _repeat_heads(query: Tensor, value: Tensor) -> Tensor:
    """Repeat each head of ``value`` for the group of consecutive query heads that share it."""
    heads, value_heads = query.size(-3), value.size(-3)
    if heads == value_heads:
        return value
    *batch, _, length, width = value.shape
    shared = value.unsqueeze(-3).expand([*batch, value_heads, heads // value_heads, length, width])
    return shared.reshape([*batch, heads, length, width])


def _add_heads(gradient: Tensor, heads: int) -> Tensor:
    """Return the gradient of ``heads`` heads that :func:`_repeat_heads` repeated."""
    batch, repeated, length, width = gradient.shape
    if heads == repeated:
        return gradient
    return gradient.reshape([batch, heads, repeated // heads, length, width]).sum(2)


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute self or cross attention of ``[N, L, E]`` with one packed projection. ``mask`` is true where hidden."""
    projected = zip((query, key, value), qkv_weight.split(embed_dim), qkv_bias.split(embed_dim), strict=True)
    q, k, v = (_split_heads(functional.linear(x, weight, bias), num_head) for x, weight, bias in projected)
    scores = torch.matmul(q * (1.0 / math.sqrt(embed_dim // num_head)), k.transpose(-2, -1))
    weights = torch.softmax(scores, -1) if mask is None else _masked_softmax(scores, mask, mask_type)
    attended = torch.matmul(weights, v).transpose(1, 2).reshape(query.size(0), query.size(1), embed_dim)
    output = functional.linear(attended, proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _split_heads(value: Tensor, heads: int) -> Tensor:
    batch, length, width = value.shape
    return value.view(batch, length, heads, width // heads).transpose(1, 2)


# Shape of the mask for each mask_type of eager: [L, L], [N, L] and the whole [N, heads, L, L].
_MASK_SHAPES = {0: lambda m: m.view(1, 1, *m.shape), 1: lambda m: m.view(m.size(0), 1, 1, m.size(1)), 2: lambda m: m}


def _masked_softmax(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    if mask_type not in _MASK_SHAPES:
        raise CompileError(f"a mask of type {mask_type}", op="aten::_native_multi_head_attention")
    # A row that is hidden completely is NaN here, as in eager's fused layers. scaled_dot_product_attention gives zero.
    return torch.softmax(torch.masked_fill(scores, _MASK_SHAPES[mask_type](mask.to(torch.bool)), -math.inf), -1)


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute the fast path of ``nn.TransformerEncoderLayer`` on ``[N, L, E]``."""
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)

    def attend(x: Tensor) -> Tensor:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(
            functional.gelu(hidden) if use_gelu else functional.relu(hidden), ffn_weight_2, ffn_bias_2
        )

    norm = partial(functional.layer_norm, normalized_shape=[embed_dim], eps=eps)
    norm_1 = partial(norm, weight=norm_weight_1, bias=norm_bias_1)
    norm_2 = partial(norm, weight=norm_weight_2, bias=norm_bias_2)
    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))
