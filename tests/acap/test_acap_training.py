"""Training and gradients on the acap device: they agree with the CPU."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

# --- training ----------------------------------------------------------------------------------------------------


def _dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(16, 5),
    )


def _convolutional(bias: bool) -> nn.Module:
    parts = nn.Conv2d(1, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(36, 5))


# The gradient of a bias before a batch norm is only rounding error, from which Adam and RMSprop make whole steps. There
# is nothing to compare in float32. In float64 the error is below their eps.
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.dtype, float]] = {
    "dense": (_dense, torch.float32, 1e-6),
    "convolutions": (lambda: _convolutional(bias=False), torch.float32, 1e-6),
    "convolutions with a bias": (lambda: _convolutional(bias=True), torch.float64, 1e-9),
}

_OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-2),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
}


def _train(device: torch.device, network: str, optimiser: str) -> tuple[list[float], dict[str, Tensor]]:
    make, dtype, _ = _NETWORKS[network]
    torch.manual_seed(1)
    model = make().to(device, dtype)
    updating = _OPTIMISERS[optimiser](model.parameters())
    torch.manual_seed(2)
    losses = []
    for _ in range(6):
        x = torch.randn(8, 1, 8, 8, device=device, dtype=dtype)
        y = torch.randint(0, 5, (8,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        updating.zero_grad()
        loss.backward()
        updating.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize("optimiser", _OPTIMISERS)
@pytest.mark.parametrize("network", _NETWORKS)
@pytest.mark.sampled(1)
def test_training_agrees_with_the_cpu(dev: torch.device, network: str, optimiser: str) -> None:
    most = _NETWORKS[network][2]
    expected, wanted = _train(torch.device("cpu"), network, optimiser)
    losses, state = _train(dev, network, optimiser)
    assert losses == pytest.approx(expected, abs=most, rel=0)
    for name, tensor in wanted.items():
        torch.testing.assert_close(state[name].cpu(), tensor, rtol=0, atol=10 * most)


def test_nothing_outlives_its_tensors(dev: torch.device) -> None:
    model = nn.Linear(4, 4).to(dev)
    updating = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(2, 4, device=dev)
    pending = []
    for _ in range(1000):
        updating.zero_grad()
        model(x).square().mean().backward()
        updating.step()
        torchmdla.acap.mark_step()
        pending.append(_C.acap.pending_nodes())
    gc.collect()
    assert max(pending) == 0


# Each step computes 2 MiB of activations and gradients.
_THOUSAND_STEPS = """
import resource, torch, torchmdla
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).to(torchmdla.acap_device())
updating = torch.optim.Adam(model.parameters())
x = torch.randn(1024, 64, device="acap")
peaks = {}
for step in range(1000):
    updating.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    updating.step()
    LOOK
    peaks[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assert peaks[999] - peaks[200] < 64 * 2**20, peaks[999] - peaks[200]
"""  # noqa: E501


@pytest.mark.parametrize("look", ["loss.item()", "torchmdla.acap.mark_step()"])
@pytest.mark.sampled(0)
def test_memory_is_flat(look: str) -> None:
    ended = run_script("-c", _THOUSAND_STEPS.replace("LOOK", look))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_unused_graph_is_dropped(dev: torch.device) -> None:
    gc.collect()
    torchmdla.acap.mark_step()
    before = _C.acap.pending_nodes()
    x = torch.ones(3).to(dev)
    for _ in range(3000):
        x = x + 1  # one chain, released at once
    assert _C.acap.pending_nodes() == before + 3000
    del x
    assert _C.acap.pending_nodes() == before


def test_size_limit(dev: torch.device) -> None:
    torchmdla.acap.set_most_pending_nodes(10)
    try:
        x = torch.zeros(2, device=dev)
        for _ in range(35):
            x = x + 1
            assert _C.acap.pending_nodes() <= 11
        assert x.tolist() == [35, 35]
    finally:
        torchmdla.acap.set_most_pending_nodes(20000)


# --- gradients ---------------------------------------------------------------------------------------------------


class _Clamped(torch.autograd.Function):
    """A function with a custom gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradients[0] * x.square()


def _twice(x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return gradient.square()


def _hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y.exp()


_DIFFERENTIABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": _twice,
    "function": _Clamped.apply,
    "hook": _hooked,
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.exp().tanh(), x, use_reentrant=False),
    "functional": lambda x: torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))(x),
    "forward mode": lambda x: torch.func.jvp(torch.sin, (x,), (x.detach(),))[1],
    "detached": lambda x: x * x.detach(),
    "without": lambda x: x * torch.no_grad()(torch.exp)(x),
    "zero": torch.sgn,
}


@pytest.mark.parametrize("function", _DIFFERENTIABLE)
def test_gradients(dev: torch.device, function: str) -> None:
    def gradient(device: Any) -> Tensor:
        x = torch.linspace(-2, 2, 6).view(2, 3).to(device).requires_grad_()
        _DIFFERENTIABLE[function](x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    assert_matches(gradient(dev), gradient("cpu"))


def test_accumulated_and_clipped_gradients(dev: torch.device) -> None:
    def trained(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        x = torch.randn(4, 3).to(device)
        for _ in range(2):
            model(x).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return [norm.cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]

    assert_matches(trained(dev), trained("cpu"))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_fused_as_on_the_cpu(dev: torch.device, order: tuple[int, ...], is_causal: bool) -> None:
    def attended(device: Any) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 3, 5, 8).permute(order).to(device).requires_grad_() for _ in range(3))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        y.square().sum().backward()
        return [y.detach(), *(tensor.grad for tensor in (q, k, v))]

    for result, wanted in zip(attended(dev), attended("cpu"), strict=True):
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result.cpu(), wanted)


@pytest.mark.parametrize("optimiser", _OPTIMISERS)
def test_training_goes_on_from_a_checkpoint(dev: torch.device, optimiser: str) -> None:
    def step(model: nn.Module, updating: torch.optim.Optimizer) -> float:
        loss = model(torch.linspace(-1, 1, 12, device=dev).view(4, 3)).square().mean()
        updating.zero_grad()
        loss.backward()
        updating.step()
        return loss.item()

    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(dev)
    updating = _OPTIMISERS[optimiser](model.parameters())
    step(model, updating)
    file = io.BytesIO()
    torch.save([model.state_dict(), updating.state_dict()], file)
    wanted = [step(model, updating) for _ in range(3)]
    file.seek(0)
    twin = nn.Linear(3, 2).to(dev)
    again = _OPTIMISERS[optimiser](twin.parameters())
    for target, state in zip((twin, again), torch.load(file), strict=True):
        target.load_state_dict(state)
    assert [step(twin, again) for _ in range(3)] == pytest.approx(wanted, abs=1e-6, rel=0)
