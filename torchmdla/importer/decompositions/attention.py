"""Attention and the transformer encoder layer as plain matrix products, softmax and norms."""

from __future__ import annotations

import math
from functools import partial

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
    if dropout_p != 0.0:
        raise CompileError("attention with dropout draws random numbers", op="aten::scaled_dot_product_attention")
    if enable_gqa:
        key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        row = torch.arange(query.size(-2), device=query.device).unsqueeze(1)
        keep = torch.arange(key.size(-2), device=query.device).unsqueeze(0) <= row
        scores = _mask_scores(scores, keep, adds=not _is_fused(query, key, value))
    elif attn_mask is not None:
        scores = _mask_scores(scores, attn_mask, adds=True) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.matmul(_safe_softmax(scores), value)


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


def _safe_softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension. A row of ``-inf`` gives zeros; both clamps affect only such rows."""
    largest = torch.clamp_min(torch.amax(scores, -1, keepdim=True), torch.finfo(scores.dtype).min)
    powers = torch.exp(scores - largest)
    return powers / torch.clamp_min(torch.sum(powers, -1, keepdim=True), torch.finfo(scores.dtype).tiny)


def _repeat_heads(query: Tensor, value: Tensor) -> Tensor:
    """Repeat each head of ``value`` for the group of consecutive query heads that share it."""
    heads, value_heads = query.size(-3), value.size(-3)
    if heads == value_heads:
        return value
    *batch, _, length, width = value.shape
    shared = value.unsqueeze(-3).expand([*batch, value_heads, heads // value_heads, length, width])
    return shared.reshape([*batch, heads, length, width])


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
