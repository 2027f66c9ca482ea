"""Compiled steps of optimisers: one pass over the parameters, with eager's values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import swa_utils
from torch.profiler import profile

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Optimiser = Callable[[Any], torch.optim.Optimizer]

STEPS = 6


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="torchmdla")


def build(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 10, bias=False)).to(**options)


def draw_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def state_of(optimiser: torch.optim.Optimizer) -> Any:
    return optimiser.state_dict()["state"]


def sgd(**options: Any) -> Optimiser:
    return lambda parameters: torch.optim.SGD(parameters, lr=0.05, **options)


def adamw(**options: Any) -> Optimiser:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, **options)


OPTIMISERS: dict[str, Optimiser] = {
    "SGD": sgd(foreach=False),
    "SGD by lists": sgd(foreach=True),
    "momentum": sgd(momentum=0.9, foreach=False),
    "momentum by lists": sgd(momentum=0.9, dampening=0.1, weight_decay=0.1, foreach=True),
    "Nesterov": sgd(momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1),
    "AdamW": adamw(foreach=False),
    "AdamW by lists": adamw(foreach=True),
    "AMSGrad": adamw(amsgrad=True, maximize=True, foreach=True),
    "rate in a tensor": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2)),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    "Adamax": lambda parameters: torch.optim.Adamax(parameters, lr=1e-2, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_equal_to_eager_without_compiling_for_each_rate(name: str) -> None:
    graphs = []
    for rate_changes in (False, True):
        torch._dynamo.reset()
        counters.clear()
        modules = (build(), build())
        optimisers = [OPTIMISERS[name](module.parameters()) for module in modules]
        schedules = [torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.8) for optimiser in optimisers]
        calls = (optimisers[0].step, compiled(optimisers[1].step))
        for seed in range(STEPS):
            for module, call, schedule in zip(modules, calls, schedules, strict=True):
                draw_gradients(module, seed)
                call()
                if rate_changes:
                    schedule.step()
        ours, eager = modules[1].state_dict(), modules[0].state_dict()
        # Dynamo chooses the computation in tensors, whose powers of the decay are float32.
        assert_matches(ours, eager, layers=400)
        assert_matches(state_of(optimisers[1]), state_of(optimisers[0]), layers=400)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] <= graphs[0] + 1  # the second rate makes the rate an input
    stats = torchmdla.stats()
    assert not stats.fallbacks and not stats.left_out


@pytest.mark.parametrize("name", ["momentum", "AdamW", "AdamW by lists", "RMSprop"])
def test_a_step_is_one_group_that_writes_to_the_parameters(name: str) -> None:
    module = build()
    optimiser = OPTIMISERS[name](module.parameters())
    step = compiled(optimiser.step)
    for seed in range(4):
        draw_gradients(module, seed)
        step()
    draw_gradients(module, 5)
    memory = [parameter.data_ptr() for parameter in module.parameters()]
    versions = [parameter._version for parameter in module.parameters()]
    before = {number: calls for number, (calls, *_) in torchmdla._C.group_counts().items()}
    with profile(profile_memory=True) as measured:
        step()
    called = [n for n, (calls, *_) in torchmdla._C.group_counts().items() if calls > before[n]]
    assert len(called) == 1
    assert [parameter.data_ptr() for parameter in module.parameters()] == memory
    assert all(p._version > version for p, version in zip(module.parameters(), versions, strict=True))
    assert sum(event.nbytes() for event in allocations(measured) if event.nbytes() > 0) < 1024


def allocations(measured: Any) -> list[Any]:
    return [event for event in measured.profiler.kineto_results.events() if event.name() == "[memory]"]


def test_the_fused_step_is_pytorchs() -> None:
    """Dynamo does not trace into it."""
    modules = (build(), build())
    steps = [torch.optim.AdamW(module.parameters(), fused=True).step for module in modules]
    for seed in range(3):
        for module, step in zip(modules, (steps[0], compiled(steps[1])), strict=True):
            draw_gradients(module, seed)
            step()
    assert_matches(modules[1].state_dict(), modules[0].state_dict())


def whole_step(module: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer) -> Tensor:
    norm: Tensor = clip_grad_norm_(module.parameters(), 1.0)
    clip_grad_value_(module.parameters(), 0.2)
    optimiser.step()
    averaged.update_parameters(module)  # type: ignore[operator]
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clipping_and_averages(dtype: torch.dtype) -> None:
    results: list[Any] = []
    for wrap in (compiled, lambda function: function):
        module = build(dtype=dtype)
        average = swa_utils.get_ema_multi_avg_fn(0.9)
        averaged = swa_utils.AveragedModel(module, multi_avg_fn=average)
        optimiser = sgd(momentum=0.9)(module.parameters())
        step = wrap(whole_step)
        norms = []
        for seed in range(STEPS):
            draw_gradients(module, seed)
            norms.append(step(module, averaged, optimiser))
        results.append([norms, module.state_dict(), averaged.state_dict()])
    assert_matches(*results, layers=400)
    stats = torchmdla.stats()
    assert not stats.fallbacks and not stats.left_out


def test_master_weights_in_float32() -> None:
    """A copy of the weights in bfloat16 is written in the pass that updates the weights in float32."""

    def update(masters: list[Tensor], weights: list[Tensor]) -> None:
        for master, weight in zip(masters, weights, strict=True):
            assert weight.grad is not None
            master.sub_(weight.grad.float(), alpha=0.1)
            weight.copy_(master)

    results = []
    for wrap in (compiled, lambda function: function):
        module = build(dtype=torch.bfloat16)
        masters = [parameter.detach().float() for parameter in module.parameters()]
        call = torch.no_grad()(wrap(update))
        for seed in range(3):
            draw_gradients(module, seed)
            call(masters, list(module.parameters()))
        results.append([masters, copy.deepcopy(list(module.parameters()))])
    assert_matches(*results)
    assert not torchmdla.stats().left_out
