"""Print a network in the aten dialect, layer by layer, with its reports, and lower it to calls of a runtime.

Run it with ``python examples/aten_report.py``.
"""

from __future__ import annotations

import torch
from rich.console import Console
from torch import nn

from torchmdla import aten


def main() -> None:
    """Print the module, both reports, and the lowered module."""
    model = nn.Sequential(
        nn.Conv2d(2, 16, 7, stride=2, padding=3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(16 * 32 * 32, 10),
    ).eval()
    module = aten.from_module(model, torch.randn(1, 2, 128, 128))
    aten.layer_names(module)
    print(module)

    console = Console(width=140)
    console.print(aten.op_report(module))
    console.print(aten.liveness_report(module))

    aten.lower_to_std(module)
    print(module)


if __name__ == "__main__":
    main()
