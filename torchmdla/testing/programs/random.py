"""Random numbers, the same as eager's after the same seed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import normal, positive
from torchmdla.testing.programs.program import functions, modules, with_gradients

X, IMAGE = normal(4, 6), normal(2, 4, 5, 5)

MODULES = {
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU()), X),
    "dropout2d": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout2d(0.5), nn.ReLU()), IMAGE),
    "alpha_dropout": (lambda: nn.Sequential(nn.SELU(), nn.AlphaDropout(0.3)), X),
    "rrelu": (lambda: nn.Sequential(nn.Linear(6, 6), nn.RReLU()), X),
    "dropout_of_transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True), normal(2, 5, 8)),
    "dropout_of_lstm": (lambda: nn.LSTM(6, 6, 2, dropout=0.3), normal(3, 4, 6)),
}

FUNCTIONS = {
    "normal_like": (lambda x: torch.randn_like(x) * 2 + x, X),
    "uniform": (lambda x: torch.rand(4, 6) * 2 + x, X),
    "integers": (lambda x: torch.randint(0, 9, (4, 6)) * 2 + x, X),
    "bernoulli": (lambda x: torch.bernoulli(torch.sigmoid(x)) * 2 + 1, X),
    "bernoulli_in_place": (lambda x: torch.empty_like(x).bernoulli_(0.3) * x + 1, X),
    "reparametrised": (lambda mean, deviation: mean + deviation * torch.randn_like(mean), X, positive(4, 6)),
    "multinomial": (lambda x: torch.multinomial(torch.softmax(x, 1), 3) + 1, X),
    "permutation": (lambda x: x[torch.randperm(4)] * 2 + 1, X),
    "exponential": (lambda x: torch.empty_like(x).exponential_() * x + 1, X),
    "functional_dropout": (lambda x: functional.dropout(torch.tanh(x) * 2, 0.5) + 1, X),
}

PROGRAMS = [
    *with_gradients(modules("random", MODULES, "random", layers=8)),
    *functions("random", FUNCTIONS, "random"),
]
