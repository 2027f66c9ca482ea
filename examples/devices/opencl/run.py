"""Run and train an MLP and a small ResNet-18 on an OpenCL device, and compare with eager PyTorch."""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from opencl_device import OpenclDevice, runtime

import torchmdla
from torchmdla import lazy
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS, ModelSpec

STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", type=int, default=0, help="number of the device among those of all drivers; 0")
    parser.add_argument("--models", default="mlp,resnet18", help="names between commas; mlp,resnet18")
    options = parser.parse_args()
    torchmdla.devices.register(OpenclDevice())
    torchmdla.enable(device="opencl", index=options.index)
    print(runtime.description(options.index, streams=2))
    for name in options.models.split(","):
        model = MODELS[name].reduced()
        infer(name, model)
        train(name, model)
    print(", ".join(f"{count} {name}" for name, count in runtime.counts(options.index, streams=2).items()))
    print(f"fallbacks: {torchmdla.stats().fallbacks or 'none'}")


def infer(name: str, spec: ModelSpec) -> None:
    """Run a model in TorchScript and torch.compile."""
    model, inputs = spec.build(), spec.inputs(batch=2)
    with torch.no_grad():
        expected = model(*inputs)
        frontends = {
            "TorchScript": torchmdla.compile(model, *inputs),
            "torch.compile": torch.compile(model, backend="torchmdla", options={"device": "opencl"}),
        }
        for frontend, compiled in frontends.items():
            for _ in range(3):
                start = time.perf_counter()
                result = compiled(*inputs)
                seconds = time.perf_counter() - start
            assert_matches(result, expected, layers=spec.layers)
            print(f"{name:<10} {frontend:<14} as eager, {seconds * 1e3:.1f} ms")


def train(name: str, spec: ModelSpec) -> None:
    """Train a model for some steps by torch.compile and on PyTorch's lazy device."""
    inputs = spec.inputs(batch=4)
    eager = spec.build().train()
    targets = torch.zeros(4, dtype=torch.int64)
    expected = steps(eager, eager, inputs, targets)
    compiled = spec.build().train()
    program = torch.compile(compiled, backend="torchmdla", options={"device": "opencl"})
    losses = {"torch.compile": steps(program, compiled, inputs, targets)}
    lazy.initialize("opencl")
    on_lazy = copy.deepcopy(spec.build().train()).to("lazy")
    losses["lazy"] = steps(on_lazy, on_lazy, tuple(x.to("lazy") for x in inputs), targets.to("lazy"))
    for frontend, result in losses.items():
        assert_matches(result, expected, layers=spec.layers * STEPS)
        print(f"{name:<10} {frontend:<14} trains as eager: loss {result[0]:.4f} → {result[-1]:.4f}")


def steps(program: nn.Module, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Return the losses of some steps of gradient descent."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(program(*inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses)


if __name__ == "__main__":
    main()
