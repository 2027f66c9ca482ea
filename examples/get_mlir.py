"""Print one network in every dialect, from a script and from an export, with a batch of variable size.

Run it with ``python examples/get_mlir.py``.
"""

from __future__ import annotations

import torch
from torch import nn

import torchmdla


def main() -> None:
    """Print the modules."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    x = torch.randn(1, 3, 32, 32)

    print(torchmdla.get_mlir(model, x))
    scripted = torch.jit.script(model)
    for output in ("linalg", "tosa", "stablehlo", "aten"):
        print(torchmdla.get_mlir(scripted, x, output=output))

    # A variable size; no data is needed.
    print(torchmdla.get_mlir(scripted, torchmdla.TensorSpec((None, 3, 32, 32)), output="linalg"))
    # The cpu device generates long code, so print only the number of lines.
    print(len(str(torchmdla.get_mlir(torch.export.export(model, (x,)), output="llvm")).splitlines()), "lines")


if __name__ == "__main__":
    main()
