"""Compile a model through FX, with torch.compile and with torch.export.

torch.compile finds torchmdla by name. torch.export does not need the model's Python code.

Run it as it is: ``python examples/fx_model.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import torchmdla


class Gated(nn.Module):
    """Gated layer with a residual; a keyword selects the gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *, smooth: bool = True) -> Tensor:
        value, gate = self.up(self.norm(x)).chunk(2, -1)
        return x + value * (nn.functional.silu(gate) if smooth else torch.relu(gate))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Gated(32), Gated(32), nn.Linear(32, 8)).eval()
    compiled = torch.compile(model, backend="torchmdla")
    exported = torchmdla.compile(model, torch.randn(4, 32), frontend="export")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 32)
            expected = model(x)
            torch.testing.assert_close(compiled(x), expected)
            torch.testing.assert_close(exported(x), expected)
    print(f"both frontends agree with eager; {torchmdla.stats().specialisations} groups were compiled")


if __name__ == "__main__":
    main()
