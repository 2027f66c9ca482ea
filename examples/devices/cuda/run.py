"""Run and train models on an NVIDIA card, or its emulation, and compare them with eager PyTorch."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cuda_device import CudaDevice, runtime

import torchmdla
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS, ModelSpec

STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", type=int, default=0, help="number of the card; 0")
    parser.add_argument("--emulate", action="store_true", help="run the kernels on the processor")
    parser.add_argument("--models", default="mlp,transformer_encoder", help="names between commas")
    options = parser.parse_args()
    torchmdla.devices.register(CudaDevice())
    torchmdla.enable(device="cuda", index=options.index, emulate=options.emulate)
    card = (options.index, 2, options.emulate)
    print(runtime.description(*card))
    for name in options.models.split(","):
        model = MODELS[name].reduced()
        infer(name, model)
        train(name, model)
    multiply()
    print(", ".join(f"{count} {name}" for name, count in runtime.counts(*card).items()))
    print(f"fallbacks: {torchmdla.stats().fallbacks or 'none'}")


def infer(name: str, spec: ModelSpec) -> None:
    """Run a model in TorchScript and torch.compile."""
    model, inputs = spec.build(), spec.inputs(batch=2)
    with torch.no_grad():
        expected = model(*inputs)
        frontends = {
            "TorchScript": torchmdla.compile(model, *inputs),
            "torch.compile": torch.compile(model, backend="torchmdla", options={"device": "cuda"}),
        }
        for frontend, compiled in frontends.items():
            for _ in range(3):
                start = time.perf_counter()
                result = compiled(*inputs)
                seconds = time.perf_counter() - start
            assert_matches(result, expected, layers=spec.layers)
            print(f"{name:<20} {frontend:<14} as eager, {seconds * 1e3:.1f} ms")


def train(name: str, spec: ModelSpec) -> None:
    """Train a model for some steps by torch.compile."""
    inputs = spec.inputs(batch=4)
    eager, compiled = spec.build().train(), spec.build().train()
    program = torch.compile(compiled, backend="torchmdla", options={"device": "cuda"})
    expected, result = steps(eager, eager, inputs), steps(program, compiled, inputs)
    assert_matches(result, expected, layers=spec.layers * STEPS)
    print(f"{name:<20} torch.compile  trains as eager: loss {result[0]:.4f} → {result[-1]:.4f}")


def steps(program: nn.Module, model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the losses of some steps of gradient descent."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    torch.manual_seed(0)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = program(*inputs).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def multiply() -> None:
    """Multiply matrices of narrow numbers, which tensor cores do."""

    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y)

    for dtype in (torch.float16, torch.bfloat16):
        x, y = torch.randn(64, 96).to(dtype), torch.randn(96, 32).to(dtype)
        compiled = torch.jit.trace(product, (x, y))
        for _ in range(3):
            assert_matches(compiled(x, y), product(x, y))
        print(f"products of {dtype} as eager")


if __name__ == "__main__":
    main()
