"""Losses, with every reduction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchmdla.testing.programs.inputs import between, booleans, integers, normal, positive
from torchmdla.testing.programs.program import Program, functions, modules, with_gradients

LOGITS, TARGET, CLASSES = normal(6, 5), normal(6, 5), integers(6, high=5)
FLAGS = booleans(6, 5).then(lambda x: x.float())
SIGNS = booleans(6).then(lambda x: x.float() * 2 - 1)
DISTRIBUTION = normal(6, 5).then(lambda x: torch.softmax(x, 1))

LOSSES = {
    "mse": (nn.MSELoss, LOGITS, TARGET),
    "l1": (nn.L1Loss, LOGITS, TARGET),
    "smooth_l1": (nn.SmoothL1Loss, LOGITS, TARGET),
    "huber": (nn.HuberLoss, LOGITS, TARGET),
    "cross_entropy": (nn.CrossEntropyLoss, LOGITS, CLASSES),
    "cross_entropy_soft": (nn.CrossEntropyLoss, LOGITS, DISTRIBUTION),
    "binary": (nn.BCELoss, between(0.05, 0.95, 6, 5), FLAGS),
    "binary_logits": (nn.BCEWithLogitsLoss, LOGITS, FLAGS),
    "kl": (nn.KLDivLoss, LOGITS, DISTRIBUTION),
    "poisson": (nn.PoissonNLLLoss, LOGITS, positive(6, 5)),
    # Labels are integers, because eager has no gradient of them.
    "soft_margin": (nn.SoftMarginLoss, LOGITS, booleans(6, 5).then(lambda x: x.long() * 2 - 1)),
    "hinge_embedding": (nn.HingeEmbeddingLoss, LOGITS, FLAGS.then(lambda x: x * 2 - 1)),
    "margin_ranking": (nn.MarginRankingLoss, normal(6), normal(6), SIGNS),
    "cosine_embedding": (nn.CosineEmbeddingLoss, LOGITS, TARGET, SIGNS),
    "triplet": (nn.TripletMarginLoss, LOGITS, TARGET, normal(6, 5)),
    "multi_margin": (nn.MultiMarginLoss, LOGITS, CLASSES),
    "gaussian": (nn.GaussianNLLLoss, LOGITS, TARGET, positive(6, 5)),
}

VARIANTS = {
    "cross_entropy_ignoring": (lambda: nn.CrossEntropyLoss(ignore_index=2), LOGITS, CLASSES),
    "cross_entropy_smoothed": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), LOGITS, CLASSES),
    "cross_entropy_weighted": (lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2, 0.5, 1, 3])), LOGITS, CLASSES),
    "cross_entropy_image": (nn.CrossEntropyLoss, normal(2, 5, 3, 4), integers(2, 3, 4, high=5)),
    "binary_logits_weighted": (lambda: nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 2.0)), LOGITS, FLAGS),
    "huber_narrow": (lambda: nn.HuberLoss(delta=0.3), LOGITS, TARGET),
}

FUNCTIONS = {
    "nll": (lambda x, y: nn.functional.nll_loss(torch.log_softmax(x, 1), y), LOGITS, CLASSES),
    "cosine_similarity": (lambda x, y: 1 - nn.functional.cosine_similarity(x, y).mean(), LOGITS, TARGET),
    "pairwise_distance": (lambda x, y: nn.functional.pairwise_distance(x, y).mean(), LOGITS, TARGET),
    "contrastive": (
        lambda x, y: nn.functional.cross_entropy(
            nn.functional.normalize(x, dim=1) @ nn.functional.normalize(y, dim=1).t() * 5, torch.arange(6)
        ),
        LOGITS,
        TARGET,
    ),
}


def _reductions() -> Iterator[Program]:
    for reduction in ("mean", "sum", "none"):
        for name, (make, *inputs) in LOSSES.items():
            yield from modules("losses", {f"{name}_{reduction}": (_reducing(make, reduction), *inputs)}, layers=4)


def _reducing(make: Any, reduction: str) -> object:
    return lambda: make(reduction=reduction)


PROGRAMS = [
    *with_gradients(_reductions()),
    *with_gradients(modules("losses", VARIANTS, layers=4)),
    *with_gradients(functions("losses", FUNCTIONS, layers=4)),
]
