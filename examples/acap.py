"""Tensors on the acap device remember what they are computed from, and compute when someone looks."""

import torch

import torchmdla


class Adder(torch.nn.Module):
    """The sum of its inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


dev = torchmdla.acap_device()
torch.manual_seed(0)
model, x = Adder().to(dev), torch.ones(1, 2, 3).to(dev)

r = model(x, x)
print(torchmdla.get_mlir(r))  # nothing has run yet

r = r + torch.randn(1, 2, 3, device=dev)
r = r * torch.randn(1, 2, 3, device=dev)
print(torchmdla.get_mlir(r))

print(r)  # looking at it compiles and runs
print(torchmdla.get_mlir(r + r, canonical=True))
