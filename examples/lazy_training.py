"""Train on PyTorch's lazy device: a convolutional network on handwritten digits, and a small BERT.

Run it as it is: ``python examples/lazy_training.py``. The digits come with scikit-learn, and the BERT is the class of
transformers with random weights: ``pip install scikit-learn transformers``. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._lazy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import torchmdla
from torchmdla import lazy

Loss = Callable[[int], Tensor]


def digits(device: str) -> tuple[nn.Module, Loss]:
    """Return a network, and its loss on a step's 64 digits."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)

    def loss(step: int) -> Tensor:
        batch = slice(64 * step, 64 * (step + 1))
        return nn.functional.cross_entropy(model(images[batch].to(device)), labels[batch].to(device))

    return model, loss


def bert(device: str) -> tuple[nn.Module, Loss]:
    """Return a BERT that learns whether a text begins with a small token, and its loss on a step's 16 texts."""
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    texts = torch.randint(64, (512, 12), generator=torch.Generator().manual_seed(0))
    model = BertForSequenceClassification(config).to(device)

    def loss(step: int) -> Tensor:
        batch = texts[16 * step : 16 * (step + 1)]
        return model(batch.to(device), labels=(batch[:, 0] < 32).long().to(device)).loss

    return model, loss


def train(make: Callable[[str], tuple[nn.Module, Loss]], device: str, steps: int = 20) -> list[float]:
    """Return the loss of every step."""
    torch.manual_seed(0)
    model, loss_of = make(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimiser.step()
        torch._lazy.mark_step()  # runs the forward pass, the backward pass and the optimiser as one graph
        losses.append(loss.item())
    return losses


def main() -> None:
    lazy.initialize()
    for make in (digits, bert):
        torchmdla.reset_stats()
        losses, eager = train(make, "lazy"), train(make, "cpu")
        # AdamW divides each gradient by its size, so that rounding of small gradients grows from step to step.
        torch.testing.assert_close(losses, eager, rtol=2e-3, atol=1e-4)
        print(f"{make.__name__}: loss {losses[0]:.3f} → {losses[-1]:.3f}, on the CPU {eager[0]:.3f} → {eager[-1]:.3f}")
        stats = torchmdla.stats()
        print(f"{stats.lazy.runs} steps ran {stats.lazy.graphs} graphs, {stats.fallbacks or 'none fell back'}")


if __name__ == "__main__":
    main()
