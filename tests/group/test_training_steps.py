"""Training of TorchScript programs: groups run forward and backward programs, and steps are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from in_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches

# Calls until a training step is compiled: PyTorch runs the first one, whose backward shows what the next ones need.
STEPS = 3


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)  # a norm makes a bias's gradient rounding errors
        self.second_norm = nn.BatchNorm2d(8, momentum=0.2)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)), inplace=True)
        x = functional.relu_(self.second_norm(self.second(x)) + x)
        return self.head(self.dropout(x.mean(dim=(2, 3))))


class Recurrent(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, layers, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        result, (state, _) = self.cells(x)
        return result, state


class Tokens(nn.Module):
    """A module with constants in its trace."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("bias", torch.linspace(-1, 1, 8))
        self.scale = torch.linspace(1, 2, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + functional.dropout(torch.softmax(self.layer(x) @ x.transpose(1, 2), -1) @ x, 0.1, self.training)
        return self.norm(functional.gelu(x + self.bias) * self.scale).transpose(1, 2)


def build(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().train()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "products": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), lambda: torch.randn(5, 6)),
    "convolutions": (Residual, lambda: torch.randn(4, 3, 8, 8)),
    "channels last": (Residual, lambda: torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)),
    "recurrent": (Recurrent, lambda: torch.randn(3, 4, 6)),
    "tokens": (Tokens, lambda: torch.randint(16, (2, 5))),
}

FRONTENDS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "trace": lambda module, x: torch.jit.trace(module, x, check_trace=False),
    "script": lambda module, x: torch.jit.script(module),
}


@dataclass
class Twins:
    """A module run by eager PyTorch, and a TorchScript program of a copy with the same random numbers."""

    module: nn.Module
    copy: nn.Module
    script: Any

    @classmethod
    def of(cls, module: nn.Module, x: Tensor, frontend: str = "trace") -> Twins:
        twin = copy.deepcopy(module)
        state = [copy.deepcopy(each.state_dict()) for each in (module, twin)]
        script = FRONTENDS[frontend](twin, x)
        for each, saved in zip((module, twin), state, strict=True):
            each.load_state_dict(saved)  # tracing updates statistics
        return cls(module, twin, script)

    def run(self, step: Callable[[Any, nn.Module], object]) -> Any:
        """Run ``step`` with each, from the same random state. Compare what it returns, and all state afterwards."""
        results = []
        for program, module in ((self.module, self.module), (self.script, self.copy)):
            torch.manual_seed(7)
            result = step(program, module)
            gradients = [parameter.grad for parameter in module.parameters()]
            results.append([result, gradients, dict(module.named_buffers()), torch.get_rng_state()])
        assert_matches(results[1], results[0], layers=16)
        return results[1][0]

    def train(self, x: Tensor, steps: int = STEPS, **options: Any) -> None:
        for _ in range(steps):
            self.run(lambda program, module: train(program, module, x, **options))


def train(program: Any, module: nn.Module, x: Tensor, lr: float = 0.05) -> list[Any]:
    """Train by one step, and return the results and the input's gradient."""
    argument = x.detach().clone().requires_grad_(x.is_floating_point())
    results = program(argument)
    results = results if isinstance(results, tuple) else (results,)
    module.zero_grad()
    sum(result.square().mean() for result in results).backward()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(lr * parameter.grad)
    return [*results, argument.grad]


def assert_trained(call: Callable[[], object]) -> None:
    """Check that a call runs in programs of a training step only."""
    torchmdla.reset_stats()
    call()
    statistics = torchmdla.stats()
    assert statistics.training_calls == 0
    assert not statistics.fallbacks
    assert not statistics.not_trained


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_eagers(name: str, frontend: str) -> None:
    make, inputs = MODELS[name]
    x = inputs()
    twins = Twins.of(build(make), x, frontend)
    twins.train(x)
    assert not torchmdla.stats().not_trained
    assert_trained(lambda: twins.train(x, 1))


def residuals() -> tuple[Twins, Tensor]:
    """Return twins whose steps are compiled."""
    x = torch.randn(4, 3, 8, 8)
    twins = Twins.of(build(Residual), x)
    twins.train(x)
    return twins, x


def test_modes_change_between_steps() -> None:
    x = torch.randn(4, 3, 8, 8)
    twins = Twins.of(build(Residual), x, "script")
    for trains, grad in [(True, True), (False, True), (True, False), (False, False), (True, True)] * 2:
        for program in (twins.module, twins.script):
            program.train(trains)
        with torch.set_grad_enabled(grad):
            twins.run(lambda program, module: program(x) if not torch.is_grad_enabled() else train(program, module, x))


def test_flags_and_sizes_change_between_steps() -> None:
    twins, x = residuals()
    for frozen in ([], ["first.weight"], ["norm.bias", "second.weight", "head.weight"], []):
        for module in (twins.module, twins.copy):
            module.zero_grad()
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in frozen)
        twins.train(x)
    for batch in (2, 4, 6):
        twins.train(torch.randn(batch, 3, 8, 8))


def test_more_kinds_of_calls_than_are_compiled() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    twins = Twins.of(module, torch.randn(3, 4))
    for batch in (*range(2, 14), 3):
        twins.train(torch.randn(batch, 4), 2)


def test_higher_derivatives_repeat_random_numbers_and_leave_statistics() -> None:
    twins, x = residuals()

    def penalise(program: Any, module: nn.Module) -> list[Any]:
        argument = x.clone().requires_grad_()
        result = program(argument)
        (first,) = torch.autograd.grad(result.square().sum(), argument, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), list(module.parameters()), allow_unused=True)
        return [result, first, second]

    for _ in range(2):
        twins.run(penalise)


def test_several_backwards() -> None:
    twins, x = residuals()

    def step(program: Any, module: nn.Module) -> Any:
        module.zero_grad()
        result = program(x)
        for factor in (1.0, 2.0):
            (result * factor).sum().backward(retain_graph=True)
        result.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.sum().backward()
        return result

    twins.run(step)


@pytest.mark.parametrize("changed", ["0.second.weight", "input", "result"])
def test_changes_of_saved_tensors_raise(changed: str) -> None:
    x = torch.randn(4, 3, 8, 8)
    twins = Twins.of(build(lambda: nn.Sequential(Residual(), nn.Sigmoid())), x)
    twins.train(x)

    def step(program: Any, module: nn.Module) -> None:
        argument = x.clone()
        result = program(argument)
        with torch.no_grad():
            {"input": argument, "result": result, **dict(module.named_parameters())}[changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
        module.zero_grad()

    twins.run(step)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left = torch.tanh(self.left(x))
        right = torch.sigmoid(self.right(x)) * 2
        return left, right, (left * right).argmax(1)


def test_outputs_without_gradients() -> None:
    """Weights behind outputs that the loss does not use have no gradients, also if the loss changes."""
    x = torch.randn(3, 4)
    twins = Twins.of(Several(), x)
    for used in ([0], [0], [0], [0, 1], [0, 1], [1], [1]):

        def step(program: Any, module: nn.Module, used: list[int] = used) -> list[Any]:
            module.zero_grad()
            results = program(x)
            sum(results[place].square().sum() for place in used).backward()  # type: ignore[union-attr]
            return list(results)

        twins.run(step)
    assert_trained(lambda: twins.run(step))


def test_hooks_and_gradients_of_any_layout() -> None:
    twins, x = residuals()

    def step(program: Any, module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        module.zero_grad()
        result = program(x)
        result.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
        weight = module.get_parameter("second.weight")
        handle = weight.register_hook(lambda gradient: seen.append(gradient.clone()))
        result.backward(torch.randn(4, 1).expand(4, 4))
        handle.remove()
        return seen

    twins.run(step)


def test_batches_of_gradients() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    twins, x = Twins.of(module, torch.randn(3, 4)), torch.randn(3, 4)
    twins.train(x)
    seeds = torch.randn(5, 3, 2)
    twins.run(
        lambda program, module: torch.autograd.grad(program(x), list(module.parameters()), seeds, is_grads_batched=True)
    )


def test_threads_train_at_once() -> None:
    module, x = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)), torch.randn(3, 4)
    scripted = torch.jit.trace(module, x, check_trace=False)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))

    def work(_: int) -> None:
        for _ in range(10):
            assert_matches(torch.autograd.grad(scripted(x).sum(), list(module.parameters())), expected, layers=4)

    assert not in_threads(4, work)


@pytest.mark.parametrize("name", ["products", "convolutions"])
def test_a_step_that_cannot_be_traced_is_reported_and_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("no such step\nand its details")

    monkeypatch.setattr("torchmdla.capture.training._aot_export_function", refuse)
    make, inputs = MODELS[name]
    x = inputs()
    Twins.of(build(make), x).train(x, 5)
    statistics = torchmdla.stats()
    assert statistics.training_calls == 5
    assert statistics.not_trained == {"its training step cannot be traced: no such step": 1}


def test_calls_without_gradients_run_in_groups_around_what_trains() -> None:
    x = torch.randn(4, 3, 8, 8)
    twins = Twins.of(build(Residual), x)
    with torch.no_grad():
        for _ in range(STEPS):
            twins.run(lambda program, module: program(x))
        torchmdla.reset_stats()
        twins.run(lambda program, module: program(x))
    assert torchmdla.stats().compiled_calls > 0
    assert not torchmdla.stats().fallbacks
