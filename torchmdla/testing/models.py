"""Models that torchmdla is tested and measured with, in plain torch: no download, weights drawn from a seed.

:data:`MODELS` is the main table. A :class:`ModelSpec` builds a model and draws inputs for it; ``spec.small`` is the
same architecture with less width, depth and resolution, for fast tests.

The architectures are in :mod:`torchmdla.testing.architectures`. Weights are random, so that a comparison means
something only if activations stay in range. Convolutions and linear layers keep the second moment of their input (He et
al. 2015, arXiv:1502.01852). :func:`calibrate` sets the statistics of batch norms from the data that passes through
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchmdla.testing.architectures import (
    Bert,
    Gpt,
    Norms,
    Recurrent,
    SchNet,
    UNet,
    Vit,
    densenet,
    mlp,
    mobilenet_v2,
    mobilenet_v3_large,
    resnet18,
    resnet50,
    transformer_encoder,
    vgg11,
)

Inputs = tuple[Tensor, ...]
Draw = Callable[[int, int, torch.Generator], Inputs]
Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class ModelSpec:
    """Model, its inputs, and the operations that it supports.

    Attributes:
        architecture: makes the module, with PyTorch's random weights.
        draw: ``draw(batch, size, generator)`` makes inputs; ``size_of`` specifies the meaning of ``size``.
        batch: the batch size that the model is measured with.
        sizes: sizes that the model supports. Measurements use the first one.
        size_of: the meaning of a size: ``"image side"``, ``"sequence length"`` or ``"nothing"`` (only the batch
            varies).
        layers: the number of chained layers that sum (convolutions, products of matrices, steps of a recurrence).
            Rounding errors grow with its root, see :func:`torchmdla.testing.compare.assert_matches`.
        scriptable: whether ``torch.jit.script`` supports the module.
        small: the reduced variant; ``None`` for a variant that is reduced itself.
    """

    architecture: Build
    draw: Draw
    batch: int
    sizes: tuple[int, ...]
    size_of: str
    layers: int
    scriptable: bool = True
    small: ModelSpec | None = None

    def build(self, seed: int = 0) -> nn.Module:
        """Return the module in eval mode, float32, with the same weights for the same seed.

        PyTorch's global random generator keeps its state.
        """
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            module = self.architecture().eval()
            initialise(module)
            calibrate(module, *self.inputs(batch=8, seed=seed))
        return module

    def inputs(self, batch: int | None = None, size: int | None = None, seed: int = 0) -> Inputs:
        """Return inputs for ``batch`` samples of ``size``; the default is the measured batch and size."""
        generator = torch.Generator().manual_seed(seed)
        return self.draw(self.batch if batch is None else batch, self.sizes[0] if size is None else size, generator)

    def reduced(self) -> ModelSpec:
        """Return the small variant, or this one if it is small already."""
        return self.small or self


# --- weights -----------------------------------------------------------------------------------------------------


def initialise(module: nn.Module) -> None:
    """Redraw the weights of convolutions, linear layers and norms, in place.

    Recurrent layers keep PyTorch's weights.
    """
    for layer in module.modules():
        if isinstance(layer, nn.ConvTranspose2d):
            # With kernel and stride equal, every output reads one tap of each input channel.
            _draw_weights(layer, layer.in_channels // layer.groups)
        elif isinstance(layer, (nn.Conv2d, nn.Linear)):
            _draw_weights(layer, layer.weight[0].numel())
        elif isinstance(layer, (nn.BatchNorm2d, nn.LayerNorm)):
            layer.weight.mul_(torch.empty_like(layer.weight).uniform_(0.8, 1.2))
            layer.bias.normal_(0, 0.1)


def _draw_weights(layer: nn.ConvTranspose2d | nn.Conv2d | nn.Linear, fan_in: int) -> None:
    layer.weight.normal_(0, (2 / fan_in) ** 0.5)
    if layer.bias is not None:
        layer.bias.normal_(0, 0.1)


def calibrate(module: nn.Module, *inputs: Tensor) -> None:
    """Run ``module`` once and set the running statistics of each batch norm near those of its input.

    The variance is changed by up to 30 %, so that a wrong use of the statistics shows. It stays above 0.3 of the mean
    square over all channels. Otherwise a channel that hardly varies for these inputs would explode for others, and
    subtracting its mean would amplify rounding errors.
    """

    def measure(norm: nn.Module, args: Inputs) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        variance, mean = torch.var_mean(args[0], dim=(0, 2, 3), correction=0)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance.clamp(min=0.3 * float(args[0].square().mean())))
        norm.running_var.mul_(torch.empty_like(variance).uniform_(0.7, 1.3))

    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    if hooks:
        module(*inputs)
    for hook in hooks:
        hook.remove()


# --- inputs ------------------------------------------------------------------------------------------------------


def images(batch: int, side: int, generator: torch.Generator) -> Inputs:
    return (torch.randn(batch, 3, side, side, generator=generator),)


def tokens(vocabulary: int) -> Draw:
    def draw(batch: int, length: int, generator: torch.Generator) -> Inputs:
        return (torch.randint(vocabulary, (batch, length), generator=generator),)

    return draw


def masked_tokens(vocabulary: int) -> Draw:
    """Return a function that draws tokens and a mask; the mask pads the last quarter of the last sample."""

    def draw(batch: int, length: int, generator: torch.Generator) -> Inputs:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1:, length - length // 4 :] = 0
        return (*tokens(vocabulary)(batch, length, generator), mask)

    return draw


def sequences(features: int) -> Draw:
    def draw(batch: int, length: int, generator: torch.Generator) -> Inputs:
        return (torch.randn(batch, length, features, generator=generator),)

    return draw


def rows(features: int) -> Draw:
    def draw(batch: int, _: int, generator: torch.Generator) -> Inputs:
        return (torch.randn(batch, features, generator=generator),)

    return draw


_SPACING, _CUTOFF, _KINDS = 2.4, 5.0, 4


def clusters(batch: int, atoms: int, generator: torch.Generator) -> Inputs:
    """Return the positions and kinds of separate clusters of atoms, and the receiver and sender of each edge.

    The atoms lie near the points of a lattice. Those nearer than the cutoff have edges, in both directions.
    """
    side = torch.arange(math.ceil(atoms ** (1 / 3) - 1e-6))
    lattice = torch.cartesian_prod(side, side, side)[:atoms].repeat(batch, 1)
    positions = (lattice + 0.3 * torch.rand(lattice.shape, generator=generator)) * _SPACING
    kinds = torch.randint(_KINDS, (batch * atoms,), generator=generator)
    cluster = torch.arange(batch).repeat_interleave(atoms)
    is_near = (torch.cdist(positions, positions) < _CUTOFF) & (cluster[:, None] == cluster)
    receivers, senders = is_near.fill_diagonal_(False).nonzero(as_tuple=True)
    return positions, kinds, receivers, senders


# --- the table ---------------------------------------------------------------------------------------------------

_SMALL_VOCABULARY = 50


def _vision(full: Build, small: Build, layers: int) -> ModelSpec:
    reduced = ModelSpec(small, images, 1, (64, 96), "image side", layers)
    return replace(reduced, architecture=full, sizes=(224, 192, 160), small=reduced)


def _text(full: Build, small: Build, layers: int, draw: Callable[[int], Draw], vocabulary: int) -> ModelSpec:
    reduced = ModelSpec(small, draw(_SMALL_VOCABULARY), 1, (16, 24, 7), "sequence length", layers)
    sizes = (128, 64, 37)
    return replace(reduced, architecture=full, draw=draw(vocabulary), sizes=sizes, small=reduced)


def _recurrent(kind: Callable[..., nn.Module]) -> ModelSpec:
    reduced = ModelSpec(lambda: Recurrent(kind, 16, 32, 2), sequences(16), 2, (6, 9), "sequence length", 18)
    return replace(
        reduced,
        architecture=lambda: Recurrent(kind, 256, 512, 2),
        draw=sequences(256),
        batch=8,
        sizes=(32, 20),
        layers=64,
        small=reduced,
    )


MODELS: dict[str, ModelSpec] = {
    "resnet18": _vision(lambda: resnet18(64, 1000), lambda: resnet18(16, 10), 18),
    "resnet50": _vision(lambda: resnet50(64, 1000), lambda: resnet50(8, 10), 50),
    "mobilenet_v2": _vision(lambda: mobilenet_v2(1.0, 1000), lambda: mobilenet_v2(0.25, 10), 53),
    "mobilenet_v3_large": _vision(lambda: mobilenet_v3_large(1.0, 1000), lambda: mobilenet_v3_large(0.25, 10), 63),
    "vgg11": _vision(lambda: vgg11(64, 4096, 1000), lambda: vgg11(8, 64, 10), 11),
    "densenet121": _vision(lambda: densenet((6, 12, 24, 16), 32, 1000), lambda: densenet((2, 3, 2, 2), 8, 10), 121),
    "unet": _vision(lambda: UNet(32, 4, 2), lambda: UNet(8, 2, 2), 23),
    "bert": _text(
        lambda: Bert(30522, 512, 12, 768, 12), lambda: Bert(_SMALL_VOCABULARY, 32, 2, 32, 4), 73, masked_tokens, 30522
    ),
    "gpt": _text(lambda: Gpt(50257, 1024, 4, 768, 12), lambda: Gpt(_SMALL_VOCABULARY, 32, 2, 32, 4), 25, tokens, 50257),
    "vit_b16": ModelSpec(
        lambda: Vit(224, 16, 12, 768, 12, 1000),
        images,
        1,
        (224,),
        "image side",
        74,
        small=ModelSpec(lambda: Vit(64, 16, 2, 32, 4, 10), images, 1, (64,), "image side", 14),
    ),
    "transformer_encoder": ModelSpec(
        lambda: transformer_encoder(6, 512, 8),
        sequences(512),
        1,
        (128, 64, 37),
        "sequence length",
        36,
        small=ModelSpec(lambda: transformer_encoder(2, 32, 4), sequences(32), 2, (16, 24, 7), "sequence length", 12),
    ),
    "lstm": _recurrent(nn.LSTM),
    "gru": _recurrent(nn.GRU),
    "mlp": ModelSpec(
        lambda: mlp(512, 2048, 4),
        rows(512),
        32,
        (1,),
        "nothing",
        4,
        small=ModelSpec(lambda: mlp(32, 64, 4), rows(32), 4, (1,), "nothing", 4),
    ),
    "norms": ModelSpec(
        lambda: Norms(1024),
        rows(1024),
        4096,
        (1,),
        "nothing",
        4,
        small=ModelSpec(lambda: Norms(256), rows(256), 64, (1,), "nothing", 4),
    ),
}

# Potential that is trained by its forces. It is not in the table: its inputs have several sizes, and its energy none.
SCHNET = ModelSpec(
    lambda: SchNet(_KINDS, 128, 50, 3, _CUTOFF),
    clusters,
    1,
    (216, 100, 343),
    "atoms of a cluster",
    24,
    small=ModelSpec(lambda: SchNet(_KINDS, 16, 10, 2, _CUTOFF), clusters, 2, (12, 27, 9), "atoms of a cluster", 16),
)
