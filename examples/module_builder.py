"""Capture PyTorch's dispatched ops, forward, backward and optimiser, as functions in the Torch dialect, and call them.

Run it with ``python examples/module_builder.py``.
"""

from __future__ import annotations

import torch
from torch import nn

import torchmdla


def main() -> None:
    """Print a captured product of matrices, then train with a captured step."""
    lhs, rhs = torch.randn(2, 3), torch.randn(3, 4)

    mb = torchmdla.ModuleBuilder()
    with mb.capture_function("mm", [lhs, rhs]) as f:
        result = torch.mm(lhs, rhs)
        f.returns([result])
    mb.module.operation.print()

    assert torch.allclose(mb.compile()["mm"](lhs, rhs)[0], result)

    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(8, 3), torch.randint(2, (8,))

    # The weights are not in the list of arguments. They become further arguments and results, and a warning reports it.
    with mb.capture_function("step", [inputs, targets]) as f:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimiser.step()
        f.returns(loss)
    for slot in mb.signatures["step"].arguments:
        print(slot)

    step = mb.compile()["step"]
    for _ in range(20):
        last = step(inputs, targets)
    print(f"loss {loss.item():.4f} at the capture, {last.item():.4f} after 20 more steps")


if __name__ == "__main__":
    main()
