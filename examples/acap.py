"""Compute with tensors on the acap device, which record their operations and compute when their values are read."""

import torch

import torchmdla


class Adder(torch.nn.Module):
    """Sum of two inputs."""

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

print(r)  # reading the values compiles and runs
print(torchmdla.get_mlir(r + r, canonical=True))
