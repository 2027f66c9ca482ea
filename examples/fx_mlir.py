"""FX graphs as MLIR: of a module that is traced symbolically, of a graph alone, and of one that knows its types.

Run it with ``python examples/fx_mlir.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchmdla


class Net(nn.Module):
    """A layer and what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)).sum(-1)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y + 1


def main() -> None:
    """Prints the modules."""
    x = torch.randn(2, 4)

    # A module with its graph. Its operators have no types, so get_mlir needs inputs.
    print(torchmdla.get_mlir(fx.symbolic_trace(Net().eval()), x))

    # A graph alone: it uses no module, so it needs none.
    graph = fx.Tracer().trace(scaled)
    print(torchmdla.get_mlir(graph, x, torchmdla.TensorSpec((2, 4)), output="linalg"))

    # A flat graph of ATen operators that has a type for each value needs no inputs.
    print(torchmdla.get_mlir(make_fx(scaled)(x, torch.randn(2, 4)).graph, output="stablehlo"))


if __name__ == "__main__":
    main()
