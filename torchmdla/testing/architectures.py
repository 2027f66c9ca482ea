"""Network architectures in plain torch, each short to read, after the paper that its docstring names.

Weights are PyTorch's random ones here. :mod:`torchmdla.testing.models` redraws them and holds the table. All
architectures can be traced and scripted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

# --- convolutional networks --------------------------------------------------------------------------------------


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = nn.ReLU,
    gain: float = 1.0,
) -> nn.Sequential:
    """Return a convolution, a batch norm scaled by ``gain``, and an activation.

    The convolution keeps the image size, except for its stride.
    """
    norm = nn.BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, gain)
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        norm,
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


def classifier(features: int, classes: int) -> nn.Sequential:
    """Return the mean over the image, followed by one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


# The gain at the end of a residual branch. Random branches at full strength are chaotic: a difference in the last bit
# of one layer grows with every block. Training starts with a gain near 0 for the same reason.
BRANCH_GAIN = 0.3


class Residual(nn.Module):
    """Module that computes ``relu(shortcut(x) + branch(x))``; the shortcut projects when sizes change."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        same = inputs == outputs and stride == 1
        self.branch = branch
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


def basic_block(inputs: int, width: int, stride: int) -> Residual:
    branch = nn.Sequential(
        conv_norm(inputs, width, 3, stride), conv_norm(width, width, 3, activation=None, gain=BRANCH_GAIN)
    )
    return Residual(branch, inputs, width, stride)


def bottleneck_block(inputs: int, width: int, stride: int) -> Residual:
    branch = nn.Sequential(
        conv_norm(inputs, width, 1),
        conv_norm(width, width, 3, stride),
        conv_norm(width, 4 * width, 1, activation=None, gain=BRANCH_GAIN),
    )
    return Residual(branch, inputs, 4 * width, stride)


def resnet(
    block: Callable[[int, int, int], Residual], expansion: int, blocks: tuple[int, ...], width: int, classes: int
) -> nn.Module:
    """Return a ResNet (He et al. 2015, arXiv:1512.03385), with the stride in the 3×3 convolution of a bottleneck."""
    layers: list[nn.Module] = [conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(block(channels, width << stage, stride))
            channels = (width << stage) * expansion
    return nn.Sequential(*layers, classifier(channels, classes))


resnet18 = partial(resnet, basic_block, 1, (2, 2, 2, 2))
resnet50 = partial(resnet, bottleneck_block, 4, (3, 4, 6, 3))


def divisible(channels: float) -> int:
    """Return the nearest multiple of 8 that is at least 90 % of ``channels``: the MobileNet papers' rule for widths."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


class SqueezeExcite(nn.Module):
    """Module that scales channels by a gate computed from their means (Hu et al. 2017, arXiv:1709.01507)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, divisible(channels / 4), 1),
            nn.ReLU(),
            nn.Conv2d(divisible(channels / 4), channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.gate(x)
        return y


class InvertedResidual(nn.Module):
    """Block that expands by 1×1, filters each channel, and projects by 1×1; it adds its input if the sizes match."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: Callable[[], nn.Module],
        excite: bool,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [] if hidden == inputs else [conv_norm(inputs, hidden, 1, activation=activation)]
        layers.append(conv_norm(hidden, hidden, kernel, stride, groups=hidden, activation=activation))
        if excite:
            layers.append(SqueezeExcite(hidden))
        self.adds = stride == 1 and inputs == outputs
        gain = BRANCH_GAIN if self.adds else 1.0
        layers.append(conv_norm(hidden, outputs, 1, activation=None, gain=gain))
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        if self.adds:
            y = x + y
        return y


# Expansion, outputs, blocks, stride of the first block.
_MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(width: float, classes: int) -> nn.Module:
    """Return MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381)."""
    channels = divisible(32 * width)
    layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=nn.ReLU6)]
    for expansion, outputs, count, stride in _MOBILENET_V2:
        for index in range(count):
            step = 1 if index else stride
            hidden, out = channels * expansion, divisible(outputs * width)
            layers.append(InvertedResidual(channels, hidden, out, 3, step, nn.ReLU6, excite=False))
            channels = out
    last = divisible(1280 * max(1.0, width))
    return nn.Sequential(*layers, conv_norm(channels, last, 1, activation=nn.ReLU6), classifier(last, classes))


# Kernel, hidden, outputs, squeeze and excite, activation, stride.
_MOBILENET_V3_LARGE: tuple[tuple[int, int, int, bool, Callable[[], nn.Module], int], ...] = (
    (3, 16, 16, False, nn.ReLU, 1),
    (3, 64, 24, False, nn.ReLU, 2),
    (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2),
    (5, 120, 40, True, nn.ReLU, 1),
    (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2),
    (3, 200, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1),
    (3, 480, 112, True, nn.Hardswish, 1),
    (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2),
    (5, 960, 160, True, nn.Hardswish, 1),
    (5, 960, 160, True, nn.Hardswish, 1),
)


def mobilenet_v3_large(width: float, classes: int) -> nn.Module:
    """Return MobileNetV3-Large (Howard et al. 2019, arXiv:1905.02244)."""
    channels = divisible(16 * width)
    layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=nn.Hardswish)]
    for kernel, hidden, outputs, excite, activation, stride in _MOBILENET_V3_LARGE:
        wide, out = divisible(hidden * width), divisible(outputs * width)
        layers.append(InvertedResidual(channels, wide, out, kernel, stride, activation, excite))
        channels = out
    last, features = divisible(960 * width), divisible(1280 * width)
    layers.append(conv_norm(channels, last, 1, activation=nn.Hardswish))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, features), nn.Hardswish()]
    return nn.Sequential(*layers, *head, nn.Linear(features, classes))


def vgg11(width: int, hidden: int, classes: int) -> nn.Module:
    """Return VGG, configuration A, without batch norm (Simonyan and Zisserman 2014, arXiv:1409.1556)."""
    layers: list[nn.Module] = []
    channels = 3
    for outputs, pools in ((1, True), (2, True), (4, False), (4, True), (8, False), (8, True), (8, False), (8, True)):
        layers += [nn.Conv2d(channels, outputs * width, 3, padding=1), nn.ReLU()]
        channels = outputs * width
        if pools:
            layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs, outputs in ((channels * 49, hidden), (hidden, hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


def norm_relu_conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), conv)


class DenseLayer(nn.Module):
    """Layer that appends ``growth`` channels, computed from all of its input channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.new = nn.Sequential(norm_relu_conv(inputs, 4 * growth, 1), norm_relu_conv(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], 1)


def densenet(blocks: tuple[int, ...], growth: int, classes: int) -> nn.Module:
    """Return a DenseNet with bottlenecks and halving transitions (Huang et al. 2016, arXiv:1608.06993)."""
    channels = 2 * growth
    layers: list[nn.Module] = [conv_norm(3, channels, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    for index, count in enumerate(blocks):
        if index:
            layers += [norm_relu_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), classifier(channels, classes))


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with padding and batch norm, so that sizes stay the same.

    The input is ``[batch, 3, side, side]``, the side a multiple of ``2 ** depth``; the output is ``[batch, classes,
    side, side]``.
    """

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.first = self._double(3, width)
        self.down = nn.ModuleList(self._double(w, 2 * w) for w in widths[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(self._double(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(conv_norm(inputs, outputs), conv_norm(outputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = [x]
        for down in self.down:
            x = down(functional.max_pool2d(x, 2))
            skips.append(x)
        level = len(skips) - 1
        for up, join in zip(self.up, self.join):  # noqa: B905  (torch.jit.script knows no strict)
            level -= 1
            x = join(torch.cat([skips[level], up(x)], 1))
        y: Tensor = self.last(x)
        return y


# --- transformers ------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values; ``[batch, time, width]``."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.project(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, time, width))
        return mixed


class PreNormBlock(nn.Module):
    """Block of GPT-2 and of ViT: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, width: int, heads: int, causal: bool, gelu: str) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Gpt(nn.Module):
    """GPT-2 style decoder (Radford et al. 2019): tokens ``int64[batch, time]`` to logits over the vocabulary."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads, True, "tanh") for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.size(1), device=tokens.device)
        y: Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.position(position))))
        return y


class Vit(nn.Module):
    """Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929): ``[batch, 3, side, side]`` to class scores."""

    def __init__(self, side: int, patch: int, layers: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(0.1 * torch.randn(1, 1 + (side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads, False, "none") for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.position
        y: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return y


class BertLayer(nn.Module):
    """Attention and MLP, each followed by a norm. The attention is written out as in the first implementations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.scale = (width // heads) ** -0.5
        self.dropout = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale + bias
        y = torch.matmul(self.dropout(functional.softmax(scores, dim=-1)), value)
        y = y.transpose(1, 2).contiguous().view(x.size(0), x.size(1), -1)
        x = self.norm1(x + self.dropout(self.out(y)))
        z: Tensor = self.norm2(x + self.dropout(self.down(functional.gelu(self.up(x)))))
        return z


class Bert(nn.Module):
    """BERT encoder (Devlin et al. 2018, arXiv:1810.04805).

    The inputs are tokens ``int64[batch, time]`` and a mask of the same shape, 1 for a token and 0 for padding. The
    outputs are the last hidden states ``[batch, time, width]`` and the pooled first one ``[batch, width]``.
    """

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        position = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token(tokens) + self.position(position) + self.segment(torch.zeros_like(tokens))
        x = self.norm(x)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


def transformer_encoder(layers: int, width: int, heads: int) -> nn.Module:
    """Return PyTorch's encoder, which uses its fast path (``aten::_transformer_encoder_layer_fwd``) in eval mode."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers)


# --- recurrences and dense layers --------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """PyTorch's recurrent layers over ``[batch, time, features]``; the output holds the states of all time steps."""

    def __init__(self, kind: Callable[..., nn.Module], features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.cells = kind(features, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cells(x)[0]
        return y


def mlp(features: int, hidden: int, layers: int) -> nn.Module:
    sizes = [features] + [hidden] * layers
    pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


class Norms(nn.Module):
    """Norms and activations without a product of matrices: limited by memory and by vector maths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.norm(x))
        return torch.sigmoid(torch.tanh(functional.softmax(x, dim=-1) * x.size(-1)))


# --- potentials of atoms -----------------------------------------------------------------------------------------


class ShiftedSoftplus(nn.Module):
    """Softplus minus its value at 0: smooth, so that forces can be trained."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x) - math.log(2.0)


class Interaction(nn.Module):
    """Block that adds to the features of each atom those of its neighbours, filtered by distance."""

    def __init__(self, features: int, radials: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(radials, features), ShiftedSoftplus(), nn.Linear(features, features))
        self.project = nn.Linear(features, features, bias=False)
        self.update = nn.Sequential(nn.Linear(features, features), ShiftedSoftplus(), nn.Linear(features, features))

    def forward(self, x: Tensor, radial: Tensor, weight: Tensor, receivers: Tensor, senders: Tensor) -> Tensor:
        messages = self.project(x)[senders] * (self.filter(radial) * weight)
        y: Tensor = x + self.update(torch.zeros_like(x).index_add(0, receivers, messages))
        return y


class SchNet(nn.Module):
    """SchNet (Schütt et al. 2018, arXiv:1706.08566), without periodic cells.

    The inputs are positions ``[atoms, 3]``, kinds ``int64[atoms]``, and the two atoms of each edge, ``int64[edges]``.
    The output is the energy of all atoms, a 0-d tensor. Forces are its negative gradient by the positions.
    """

    def __init__(self, kinds: int, features: int, radials: int, interactions: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.embedding = nn.Embedding(kinds, features)
        self.centres: Tensor
        self.register_buffer("centres", torch.linspace(0.0, cutoff, radials))
        self.interactions = nn.ModuleList(Interaction(features, radials) for _ in range(interactions))
        self.energy = nn.Sequential(nn.Linear(features, features // 2), ShiftedSoftplus(), nn.Linear(features // 2, 1))

    def forward(self, positions: Tensor, kinds: Tensor, receivers: Tensor, senders: Tensor) -> Tensor:
        distances = torch.linalg.vector_norm(positions[receivers] - positions[senders], dim=1, keepdim=True)
        width = self.cutoff / (self.centres.numel() - 1)
        radial = torch.exp(-0.5 * ((distances - self.centres) / width) ** 2)
        weight = 0.5 * (torch.cos(distances * (math.pi / self.cutoff)) + 1.0)
        x = self.embedding(kinds)
        for interaction in self.interactions:
            x = interaction(x, radial, weight, receivers, senders)
        energy: Tensor = self.energy(x).sum()
        return energy
