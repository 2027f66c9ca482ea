"""Attention programs: PyTorch's implementation and explicit ones; masked, causal, grouped; transformer layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import booleans, booleans_of_any_byte, normal
from torchmdla.testing.programs.program import functions, in_eval, modules, with_gradients

Q, K, V = normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 8)
TOKENS = normal(2, 6, 16)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(8.0)
    return torch.softmax(scores, -1) @ v


def by_hand_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * 0.3).masked_fill(mask, -1e9)
    return torch.softmax(scores, -1) @ v


def rotary(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    place = torch.arange(x.size(-2), dtype=x.dtype).unsqueeze(1)
    angle = place * torch.exp(torch.arange(half, dtype=x.dtype) * -0.5)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class SelfAttention(nn.Module):
    """Self-attention with heads split from one projection, and a causal mask in a buffer."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.ones(8, 8).tril().view(1, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.size()
        q, k, v = self.project(x).split(width, dim=2)
        q = q.view(batch, time, 4, 4).transpose(1, 2)
        k = k.view(batch, time, 4, 4).transpose(1, 2)
        v = v.view(batch, time, 4, 4).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * 0.5
        scores = scores.masked_fill(self.mask[:, :, :time, :time] == 0, -1e30)
        y = torch.softmax(scores, -1) @ v
        result: Tensor = self.out(y.transpose(1, 2).contiguous().view(batch, time, width))
        return result


def _self_attending(**options: bool) -> nn.Module:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            return self.attention(x, x, x, **options)  # type: ignore[no-any-return]

    return Attending()


def _layer(first: bool, activation: str) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(16, 4, 32, 0.0, activation, norm_first=first, batch_first=True)


FUNCTIONS = {
    "by_hand": (by_hand, Q, K, V),
    "by_hand_masked": (by_hand_masked, Q, K, V, booleans(5, 7)),
    "by_hand_masked_by_any_byte": (by_hand_masked, Q, K, V, booleans_of_any_byte(5, 7)),
    "masked_by_any_byte": (
        lambda q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask | mask[:, :1]) * 2,
        *(Q, K, V),
        booleans_of_any_byte(5, 7),
    ),
    "fused": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v), Q, K, V),
    "fused_mask": (
        lambda q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, mask),
        Q,
        K,
        V,
        normal(5, 7),
    ),
    "fused_causal": (lambda q, v: functional.scaled_dot_product_attention(q, q, v, is_causal=True), K, V),
    "fused_scale": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=0.1), Q, K, V),
    "fused_long": (
        lambda q: functional.scaled_dot_product_attention(q, q, q),
        normal(1, 2, 96, 16),
    ),
    "rotary": (rotary, Q),
}

MODULES = {
    "self": (SelfAttention, TOKENS),
    "encoder_layer": (lambda: _layer(False, "relu"), TOKENS),
    "encoder_layer_norm_first": (lambda: _layer(True, "gelu"), TOKENS),
    "encoder": (lambda: nn.TransformerEncoder(_layer(False, "gelu"), 2, enable_nested_tensor=False), TOKENS),
    "decoder_layer": (lambda: nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True), TOKENS, normal(2, 4, 16)),
}

IN_PYTHON = {
    "multi_head": (lambda: _self_attending(need_weights=False), TOKENS),
    "multi_head_weights": (lambda: _self_attending(need_weights=True), TOKENS),
}

PROGRAMS = [
    *with_gradients(functions("attention", FUNCTIONS, layers=4)),
    *with_gradients(in_eval(modules("attention", MODULES, layers=12))),
    *with_gradients(in_eval(modules("attention", IN_PYTHON, "python", layers=8))),
]
