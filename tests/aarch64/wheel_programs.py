"""Programs that an installed wheel compiles on AArch64 and compares with eager: ``make wheel-aarch64`` runs them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime
from torchmdla.devices.cpu.codegen import loader
from torchmdla.testing.compare import assert_matches


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes)


class Steps(nn.Module):
    """Module with control flow between two groups."""

    def forward(self, x: Tensor) -> Tensor:
        y = (x * 2 + 1).relu()
        if bool(y.sum() > 0):
            y = y.softmax(1) - x.tanh()
        return y


class Functions(nn.Module):
    """Module of functions that libtorch computes on vectors."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin() + y, torch.atan2(x, y), torch.pow(x.abs(), y), x.double().erf()


# Modules, inputs, and the number of layers that sum.
PROGRAMS: dict[str, tuple[nn.Module, tuple[Tensor, ...], int]] = {
    "control flow": (Steps(), (normal(7, 19),), 1),
    "functions": (Functions(), (normal(37, 5), normal(37, 5)), 1),
    "matmul": (nn.Sequential(nn.Linear(65, 130), nn.GELU(), nn.Linear(130, 7)), (normal(9, 65),), 2),
    "convolution": (nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2)), (normal(2, 3, 18, 22),), 1),
    "norms": (nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.Softmax(-1)), (normal(5, 48),), 1),
    "recurrent": (nn.LSTM(8, 12), (normal(4, 2, 8),), 4),
    "bfloat16": (nn.Sequential(nn.Linear(64, 32), nn.ReLU()).bfloat16(), (normal(6, 64).bfloat16(),), 1),
}


def check_script(module: nn.Module, inputs: tuple[Tensor, ...], layers: int) -> None:
    with torchmdla.enabled(False):
        expected = module(*inputs)
    program = torch.jit.script(module) if isinstance(module, Steps) else torch.jit.trace(module, inputs)
    for _ in range(3):
        result = program(*inputs)
    assert_matches(result, expected, layers=layers, strides=False)
    stats = torchmdla.stats()
    assert stats.specialisations and not stats.fallbacks and not stats.left_out, stats


def check_training() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)))
    x = normal(8, 12)

    def gradients(count: int) -> list[Tensor]:
        for _ in range(count):
            module.zero_grad()
            module(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in module.parameters()]

    with torchmdla.enabled(False):
        expected = gradients(1)
    assert_matches(gradients(4), expected, layers=3, strides=False)


def check_files() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)).eval(), normal(2, 3, 8, 8)
    with torch.no_grad(), torchmdla.enabled(False):
        expected = model(x)
    torchmdla.export_native(model, x, "model.tmdla")
    (result,) = torchmdla_runtime.Model("model.tmdla", threads=2)(x)
    assert_matches(torch.from_numpy(result), expected, layers=2)
    torchmdla.save(model, "model.pt", [x], targets=["armv8-a", "x86-64-v3"], pack_weights=True)
    torchmdla.reset_stats()
    with torch.no_grad():
        assert_matches(torchmdla.load("model.pt")(x), expected, layers=2)
    assert torchmdla.stats().packages == {"armv8-a": 1}, torchmdla.stats()


def refuse_objects(*_: Any) -> Any:
    raise AssertionError("the code is not an image")


def main() -> None:
    assert platform.machine() == "aarch64"
    loader._link = refuse_objects
    checks: dict[str, Callable[[], Any]] = {
        name: lambda row=row: check_script(row[0].eval(), *row[1:]) for name, row in PROGRAMS.items()
    }
    checks |= {"training": check_training, "files": check_files}
    for name, check in checks.items():
        start = time.monotonic()
        torch.manual_seed(0)
        torchmdla.reset_stats()
        with torch.set_grad_enabled(name == "training"):
            check()
        print(f"ok  {name} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
