"""Files of small programs in every kind, and files that are not programs, for tests of commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from torchmdla import TensorSpec, get_mlir

TWICE = """module {
  func.func @twice(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
    %e = tensor.empty() : tensor<2x3xf32>
    %y = linalg.add ins(%x, %x : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
    return %y, %x : tensor<2x3xf32>, tensor<2x3xf32>
  }
}
"""

# Modules of MLIR that are written as text.
WRITTEN = {
    "two.mlir": "func.func @a() { return }\nfunc.func @b() { return }\n",
    "bad.mlir": "func.func @a( {",
    "twice.mlir": TWICE,
    "sums.mlir": """module {
  func.func @forward(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = arith.addf %arg0, %arg0 : tensor<2xf32>
    %1 = arith.addf %arg0, %arg0 : tensor<2xf32>
    %2 = arith.mulf %0, %1 : tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
""",
    "text.pt": "hello",
}


class Counting(nn.Module):
    """Module whose results depend on the number of previous calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sigmoid(torch.relu(x) + self.calls)


class Named(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"scaled": torch.tanh(x * scale), "sum": torch.relu(x).sum()}


def write_programs(folder: Path) -> dict[str, str]:
    """Write the files, and return their paths by name. The module takes an input of 2x3x4x4, the linear one of 2x4."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval()
    linear = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    x = torch.randn(2, 3, 4, 4)
    scripts = {
        "script.pt": torch.jit.script(module),
        "frozen.pt": torch.jit.freeze(torch.jit.script(module)),
        "training.pt": torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())),
        "counting.pt": torch.jit.script(Counting()),
        "linear.pt": torch.jit.script(linear),
    }
    for name, script in scripts.items():
        script.save(folder / name)
    torch.export.save(torch.export.export(module, (x,)), folder / "exported.pt2")
    torch.export.save(torch.export.export(linear, (torch.randn(2, 4),)), folder / "linear.pt2")
    torch.export.save(torch.export.export(Named(), (x,), {"scale": torch.ones(4)}), folder / "named.pt2")
    pickled = {"pickled.pt": module, "state.pt": module.state_dict(), "x.pt": x, "d.pt": {"x": x}}
    for name, value in pickled.items():
        torch.save(value, folder / name)
    np.save(folder / "x.npy", x.numpy())
    modules = {f"{output}.mlir": str(get_mlir(module, x, output=output)) for output in ("torch", "linalg", "tosa")}
    modules["dynamic.mlir"] = str(get_mlir(nn.ReLU(), TensorSpec((None, 3))))
    for name, text in {**modules, **WRITTEN}.items():
        (folder / name).write_text(text)
    return {path.name: str(path) for path in folder.iterdir()}


def in_files(arguments: list[str], files: dict[str, str]) -> list[str]:
    """Return arguments of a command with the paths of files for their names, which may begin with ``@``."""
    prefixes = ["@" * argument.startswith("@") for argument in arguments]
    names = [argument.removeprefix("@") for argument in arguments]
    return [prefix + files.get(name, name) for prefix, name in zip(prefixes, names, strict=True)]
