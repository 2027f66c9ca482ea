"""Run small networks on the emulator of the mdla device, and print their differences from PyTorch's results.

Run it with ``python examples/mdla_conv.py``. ``TORCHMDLA_MDLA_LIBRARY`` selects another library with the accelerator's
C API.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich import print as show
from torch import Tensor, nn
from torch.nn import functional

import torchmdla


class Concatenated(nn.Module):
    """Two convolutions of one input, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(3, 8, kernel_size=1)
        self.wide = nn.Conv2d(3, 16, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.narrow(x), self.wide(x)], dim=1)


class Classifier(nn.Module):
    """Convolution, relu, max pool, view, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, kernel_size=3, padding=1)
        self.linear = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.linear(features.view(x.size(0), -1))


@torch.jit.script
def pooled(x: Tensor, weight: Tensor) -> Tensor:
    """Compute convolution, relu, average pool and max pool, in a scripted function."""
    features = torch.relu(functional.conv2d(x, weight, padding=[1, 1]))
    return functional.max_pool2d(functional.avg_pool2d(features, [2, 2]), [2, 2])


class Pooled(nn.Module):
    """Module that calls the function with its weight, which is a constant of the compiled program."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 3, 3, 3) / 5)

    def forward(self, x: Tensor) -> Tensor:
        return pooled(x, self.weight)


# Title -> the model, and the number of clusters that it runs on.
CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "two convolutions, concat": (Concatenated, 1),
    "convolution, upsample": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=2)), 1),
    "convolution, relu, max pool, view, linear": (Classifier, 1),
    "a scripted function on two clusters": (Pooled, 2),
}


def main() -> None:
    """Compile each network, run it on the device and print the errors; then inspect the layers of one."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 16, 16)
    for what, (make, clusters) in CASES.items():
        torchmdla.enable(device="mdla", precision="fixed16", clusters=clusters, strict=True)
        model = make().eval()
        with torch.no_grad():
            expected = model(x)
            result = torchmdla.compile(model, x)(x)
        error = (result - expected).abs()
        print(what)
        print(f"Mean/max error compared to pytorch are {error.mean():.6f} {error.max():.6f}")

    classifier = Classifier().eval()
    show(torchmdla.mdla.compare(classifier, x))
    torchmdla.mdla.calibrate(classifier, [torch.randn(1, 3, 16, 16) for _ in range(8)])
    print("formats from data:", torchmdla.mdla.compare(classifier, x, precision="variable"))
    print(torchmdla.mdla.report(classifier, x))


if __name__ == "__main__":
    main()
