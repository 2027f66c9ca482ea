"""Training steps: loss, gradients, optimiser; parameters and buffers after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import Draw, booleans, integers, normal
from torchmdla.testing.programs.program import Program


class Supervised(nn.Module):
    """Network with its loss."""

    def __init__(self, network: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        result: Tensor = self.loss(self.network(x), target)
        return result


class Last(nn.Module):
    """Recurrent layer of which only the last step is used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layer(x)
        result: Tensor = self.out(states[:, -1])
        return result


class Autoencoder(nn.Module):
    """Variational autoencoder: its loss has a term for the code, which depends on a random sample."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        loss: Tensor = functional.mse_loss(self.decode(code), x) + 0.1 * divergence.mean()
        return loss


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def frozen_trunk() -> nn.Module:
    network = mlp()
    next(network.children()).requires_grad_(False)
    return network


ROWS, IMAGES, CLASSES = normal(8, 6), normal(4, 3, 8, 8), integers(8, high=3)

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], Draw, Draw]] = {
    "regression": (mlp, nn.MSELoss, ROWS, normal(8, 3)),
    "classification": (mlp, nn.CrossEntropyLoss, ROWS, CLASSES),
    "several_labels": (mlp, nn.BCEWithLogitsLoss, ROWS, booleans(8, 3).then(lambda x: x.float())),
    "robust": (mlp, nn.HuberLoss, ROWS, normal(8, 3)),
    "frozen_trunk": (frozen_trunk, nn.MSELoss, ROWS, normal(8, 3)),
    "convolutional": (convolutional, nn.CrossEntropyLoss, IMAGES, integers(4, high=3)),
    "dropout": (lambda: nn.Sequential(mlp(), nn.Dropout(0.3)), nn.MSELoss, ROWS, normal(8, 3)),
    "layer_norm": (lambda: nn.Sequential(nn.LayerNorm(6), mlp()), nn.MSELoss, ROWS, normal(8, 3)),
    "recurrent": (Last, nn.CrossEntropyLoss, normal(5, 7, 4), integers(5, high=3)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(12, 6), nn.Flatten(), nn.Linear(24, 3)),
        nn.CrossEntropyLoss,
        integers(8, 4, high=12),
        CLASSES,
    ),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 3)),
        nn.MSELoss,
        normal(2, 5, 8),
        normal(2, 5, 3),
    ),
}

OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}

# Errors grow from step to step, and with the divisions of the optimisers.
_LAYERS = 400


def _supervised(network: Callable[[], nn.Module], loss: Callable[[], nn.Module]) -> Callable[[], Any]:
    return lambda: Supervised(network(), loss())


def _programs() -> Iterator[Program]:
    for name, (network, loss, x, target) in NETWORKS.items():
        yield _training(f"{name}_sgd", _supervised(network, loss), (x, target), "sgd")
    for name in OPTIMISERS:
        if name != "sgd":
            yield _training(f"regression_{name}", _supervised(mlp, nn.MSELoss), (ROWS, normal(8, 3)), name)
    yield _training("autoencoder_adam", Autoencoder, (ROWS,), "adam")


def _training(name: str, make: Callable[[], Any], inputs: tuple[Any, ...], optimiser: str) -> Program:
    return Program(f"training.{name}", make, inputs, layers=_LAYERS, mode="training", optimiser=OPTIMISERS[optimiser])


PROGRAMS = list(_programs())
