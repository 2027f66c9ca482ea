"""Run and train an MLP and ResNet-18 on an OpenCL device, and compare with eager PyTorch."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from opencl_device import OpenclDevice, runtime

import torchmdla
from torchmdla import lazy
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS, ModelSpec

BATCH = 2
STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", type=int, default=0, help="number of the device among those of all drivers; 0")
    parser.add_argument("--models", default="mlp,resnet18", help="names between commas; mlp,resnet18")
    parser.add_argument("--side", type=int, default=64, help="height and width of images; 64")
    parser.add_argument("--small", action="store_true", help="the models with fewer channels")
    options = parser.parse_args()
    torchmdla.devices.register(OpenclDevice())
    torchmdla.enable(device="opencl", index=options.index)
    lazy.initialize("opencl")
    print(runtime.description(options.index, streams=2))
    for name in options.models.split(","):
        model = MODELS[name].reduced() if options.small else MODELS[name]
        infer(name, model, options.side, options.index)
        train(name, model, options.side, options.index)
    print(", ".join(f"{count} {name}" for name, count in runtime.counts(options.index, streams=2).items()))
    print(f"fallbacks: {torchmdla.stats().fallbacks or 'none'}")


def infer(name: str, spec: ModelSpec, side: int, index: int) -> None:
    """Run a model in TorchScript, torch.compile and on PyTorch's lazy device."""
    model, inputs = spec.build(), spec.inputs(BATCH, side)
    on_lazy, lazy_inputs = spec.build().to("lazy"), [x.to("lazy") for x in inputs]
    with torch.no_grad():
        expected = model(*inputs)
        scripted = torchmdla.compile(model, *inputs)
        compiled = compile_for_opencl(model)
        frontends: dict[str, Callable[[], Tensor]] = {
            "TorchScript": lambda: scripted(*inputs),
            "torch.compile": lambda: compiled(*inputs),
            "lazy": lambda: on_lazy(*lazy_inputs).cpu(),
        }
        for frontend, run in frontends.items():
            before = results_until_now(index)
            for _ in range(STEPS):
                start = time.perf_counter()
                result = run()
                seconds = time.perf_counter() - start
            assert_matches(result, expected, layers=spec.layers)
            count = results_until_now(index) - before
            print(f"{name:<10} {frontend:<14} as eager, {seconds * 1e3:.1f} ms, {count} results from the device")


def train(name: str, spec: ModelSpec, side: int, index: int) -> None:
    """Train a model for some steps by torch.compile and on PyTorch's lazy device.

    Each step increases the rounding errors of the steps before. Eager steps in float64 show by how much.
    """
    inputs, targets = spec.inputs(BATCH, side), torch.zeros(BATCH, dtype=torch.int64)
    eager, exact, model, on_lazy = (spec.build().train() for _ in range(4))
    on_lazy.to("lazy")
    expected, _ = steps(eager, eager, inputs, targets)
    in_float64, _ = steps(exact.double(), exact, tuple(x.double() for x in inputs), targets)
    runs = {
        "torch.compile": (compile_for_opencl(model), model, inputs, targets),
        "lazy": (on_lazy, on_lazy, tuple(x.to("lazy") for x in inputs), targets.to("lazy")),
    }
    for frontend, arguments in runs.items():
        before = results_until_now(index)
        result, seconds = steps(*arguments)
        count = results_until_now(index) - before
        assert_matches(result, expected, layers=spec.layers * STEPS, others=[in_float64])
        first, *_, last = result["losses"]
        times = f"{seconds:.2f} s a step, {count} results from the device"
        print(f"{name:<10} {frontend:<14} trains as eager: loss {first:.4f} → {last:.4f}, {times}")


def compile_for_opencl(model: nn.Module) -> nn.Module:
    compiled: nn.Module = torch.compile(model, backend="torchmdla", options={"device": "opencl"})
    return compiled


def results_until_now(index: int) -> int:
    """Return how many results of programs were copied from the device."""
    return runtime.counts(index, streams=2)["downloads"]


def steps(
    program: nn.Module, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor
) -> tuple[dict[str, Tensor], float]:
    """Return the losses of some steps of gradient descent and the model's tensors, and the time of the last step."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(program(*inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach().cpu())
        seconds = time.perf_counter() - start
    return {"losses": torch.stack(losses), **{name: x.cpu() for name, x in model.state_dict().items()}}, seconds


if __name__ == "__main__":
    main()
