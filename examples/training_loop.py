"""Train with compiled forward and backward passes: convolution, batch norm and SGD.

Run it as it is: ``python examples/training_loop.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import torchmdla


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Return images with noise and a horizontal or a vertical stripe, and labels for the direction."""
    data = []
    for _ in range(count):
        labels = torch.randint(2, (16,))
        images = torch.randn(16, 1, 8, 8) * 0.3
        images[labels == 0, :, 3, :] += 1
        images[labels == 1, :, :, 3] += 1
        data.append((images, labels))
    return data


def train(model: nn.Module, step: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Return the loss of every batch; ``step`` is ``model`` or its compiled form."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for images, labels in data:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(step(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    model, reference = make_model(), make_model()
    reference.load_state_dict(model.state_dict())
    data = batches(20)
    losses = train(model, torch.compile(model, backend="torchmdla"), data)
    eager = train(reference, reference, data)
    torch.testing.assert_close(losses, eager, rtol=1e-3, atol=1e-3)
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, eager {eager[0]:.3f} → {eager[-1]:.3f}")
    print(
        f"{torchmdla.stats().specialisations} groups were compiled, {torchmdla.stats().fallbacks or 'none fell back'}"
    )


if __name__ == "__main__":
    main()
