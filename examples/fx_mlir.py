"""Print FX graphs as MLIR: of a symbolically traced module, of a graph without a module, and of a graph with types.

Run it with ``python examples/fx_mlir.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchmdla


class Net(nn.Module):
    """Linear layer with a relu and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)).sum(-1)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y + 1


def main() -> None:
    """Print the modules."""
    x = torch.randn(2, 4)

    # A module with its graph. Its operators have no types, so get_mlir needs inputs.
    print(torchmdla.get_mlir(fx.symbolic_trace(Net().eval()), x))

    # A graph without a module. It uses no weights, so it needs no module.
    graph = fx.Tracer().trace(scaled)
    print(torchmdla.get_mlir(graph, x, torchmdla.TensorSpec((2, 4)), output="linalg"))

    # A flat graph of ATen operators that has a type for each value needs no inputs.
    print(torchmdla.get_mlir(make_fx(scaled)(x, torch.randn(2, 4)).graph, output="stablehlo"))


if __name__ == "__main__":
    main()
