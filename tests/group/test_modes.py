"""Scripted modules that are not frozen: each call reads modes and options, which select the code of a group."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import groups, kinds, warmed_up
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import torchmdla
from torchmdla.testing import coverage
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, bias=False)
        self.first_norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, bias=False)
        self.second_norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.25)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first_norm(self.first(x)))
        x = torch.relu(self.second_norm(self.second(x)))
        return self.last(self.dropout(x.mean(dim=(2, 3))))


class Twins:
    """A module run by eager PyTorch, and its scripted copy."""

    def __init__(self, module: nn.Module) -> None:
        self.eager = module
        self.scripted: Any = torch.jit.script(copy.deepcopy(module))

    def set(self, change: Callable[[Any], object]) -> None:
        change(self.eager)
        change(self.scripted)

    def check(self, *inputs: Tensor) -> None:
        """Call each once from the same random state, and compare results, then buffers and random states."""
        torch.manual_seed(5)
        expected = self.eager(*inputs)
        state = torch.get_rng_state()
        torch.manual_seed(5)
        result = self.scripted(*inputs)
        assert_matches(result, expected, layers=4)
        assert torch.equal(torch.get_rng_state(), state)
        for buffer, other in zip(self.eager.buffers(), self.scripted.buffers(), strict=True):
            assert_matches(other, buffer, layers=4)
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()


def image(batch: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


# --- groups ---------------------------------------------------------------------------------------------------


# PyTorch's encoder layer chooses among masks and fast paths by its inputs.
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"transformer_encoder"}))
@pytest.mark.sampled(1)
def test_an_unfrozen_script_is_one_group(name):
    spec = MODELS[name].reduced()
    module = spec.build()
    scripted = torch.jit.script(module)
    with torch.no_grad():
        graph = torchmdla.graph_for(scripted, *spec.inputs())
        assert_matches(scripted(*spec.inputs()), module(*spec.inputs()), layers=spec.layers)
    assert len(groups(graph)) == 1, graph
    # The count is 0 if another test has compiled the model: instances of one scripted class share their plan.
    assert torchmdla.stats().specialisations <= 1
    assert not torchmdla.stats().fallbacks


class Unet(nn.Module):
    """A module that collects intermediate tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        tensors = [torch.tanh(x)]
        for norm in self.norms:
            x = torch.relu(norm(x))
            tensors.append(x)
        for k in range(3):
            x = x * 2 + tensors[len(tensors) - 2 - k]
        return torch.cat([x, tensors[0]], 1)


def test_a_list_built_by_appends_does_not_split():
    twins = Twins(Unet().eval())
    with torch.no_grad():
        for _ in range(4):
            twins.check(torch.randn(5, 4))
        assert len(groups(torchmdla.graph_for(twins.scripted, torch.randn(5, 4)))) == 1
        twins.set(lambda module: module.train())
        for _ in range(3):
            twins.check(torch.randn(5, 4))


@torch.jit.script
def _appending(x: Tensor, more: bool) -> tuple[list[Tensor], Tensor, int]:
    tensors = [torch.tanh(x) * 2]
    before = len(tensors)
    if more:
        tensors.append(x + 1)
    tensors.append(torch.sigmoid(x) * 3)
    return tensors, torch.cat(tensors) + 1, before


def test_a_list_that_a_branch_appends_to_or_that_leaves_stays_as_it_is():
    x = torch.randn(3)
    for more in (True, False) * 3:
        values = [torch.tanh(x) * 2, *([x + 1] if more else []), torch.sigmoid(x) * 3]
        assert_matches(_appending(x, more), (values, torch.cat(values) + 1, 1))


def test_no_group_where_no_side_can_be_compiled():
    class Printing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x) * 2
            x = torch.special.i0e(x) if self.training else torch.special.i1e(x)
            return torch.relu(x) * 3

    graph = torchmdla.graph_for(torch.jit.script(Printing().eval()), torch.randn(4))
    assert len(groups(graph)) == 2
    assert "prim::If" in kinds(graph)


# --- modes ----------------------------------------------------------------------------------------------------

SWITCHES: dict[str, list[Callable[[Any], object]]] = {
    "eval, train, eval": [lambda m: m.eval(), lambda m: m.train(), lambda m: m.eval()],
    "train, eval, train": [lambda m: m.train(), lambda m: m.eval(), lambda m: m.train()],
    "one norm trains": [lambda m: m.eval(), lambda m: m.second_norm.train(), lambda m: m.second_norm.eval()],
    "one norm does not": [lambda m: m.train(), lambda m: m.first_norm.eval(), lambda m: m.eval()],
    "dropout alone": [lambda m: m.eval(), lambda m: m.dropout.train(), lambda m: m.eval()],
}


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@pytest.mark.sampled(2)
def test_switching_modes(switches, strict, grad):
    torchmdla.enable(strict=strict)
    twins = Twins(Net())
    for change in switches:
        twins.set(change)
        for call in range(4):
            with torch.set_grad_enabled(grad):
                twins.check(image(seed=call))


@pytest.mark.parametrize("first_grad", [False, True], ids=["inference first", "training first"])
@pytest.mark.sampled(1)
def test_training_between_inference(first_grad):
    """Compare gradients, updated weights and statistics, whichever kind of call PyTorch's executor sees first."""
    twins = Twins(Net())
    for phase in range(4):
        training = (phase % 2 == 0) == first_grad
        twins.set(lambda module, training=training: module.train(training))
        for call in range(4):
            with torch.set_grad_enabled(training):
                twins.check(image(seed=call))
            if training:
                step(twins, image(seed=call))


def step(twins: Twins, x: Tensor) -> None:
    """Run one step of gradient descent on both modules. Their parameters agree before and after."""
    for module in (twins.eager, twins.scripted):
        torch.manual_seed(7)
        module.zero_grad()
        module(x).square().mean().backward()
    ours, eagers = dict(twins.scripted.named_parameters()), dict(twins.eager.named_parameters())
    for name, parameter in eagers.items():
        # The gradient of a convolution before a norm is a small difference of large sums.
        torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=1e-3, atol=1e-5, msg=name)
        with torch.no_grad():
            parameter -= 0.05 * parameter.grad
            ours[name].copy_(parameter)


def test_an_eval_module_with_gradients():
    """Fine-tune with frozen statistics, on a plan that was created without gradients."""
    twins = Twins(Net().eval())
    with torch.no_grad():
        for call in range(4):
            twins.check(image(seed=call))
    for call in range(4):
        step(twins, image(seed=call))
        assert twins.scripted.first.weight.grad.abs().sum() > 0


def test_instances_share_a_plan_in_different_modes():
    """Instances of one scripted class run the same optimised graph."""
    module = Net()
    first, other = Twins(module), Twins(copy.deepcopy(module))
    assert first.scripted._c._type() == other.scripted._c._type()
    first.set(lambda m: m.eval())
    other.set(lambda m: m.train())
    with torch.no_grad():
        for call in range(5):
            first.check(image(seed=call))
            other.check(image(seed=call))


def test_off_while_modes_change():
    twins = Twins(Net().eval())
    with torch.no_grad():
        for call in range(4):
            twins.check(image(seed=call))
        with torchmdla.enabled(False):
            for training in (True, False):
                twins.set(lambda module, training=training: module.train(training))
                twins.check(image())
        twins.check(image())


def test_an_error_in_training_is_pytorchs():
    """Training a norm with one value per channel raises an error in eager PyTorch, before statistics change."""
    twins = Twins(Unet().eval())
    with torch.no_grad():
        for _ in range(4):
            twins.check(torch.randn(5, 4))
        twins.set(lambda module: module.train())
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            twins.eager(torch.randn(1, 4))
        with pytest.raises(torch.jit.Error, match="ValueError: Expected more than 1 value per channel"):
            twins.scripted(torch.randn(1, 4))
        twins.check(torch.randn(5, 4))


# --- options --------------------------------------------------------------------------------------------------


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled = True
        self.kind = "tanh"
        self.power = 2
        self.calls = 0
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sigmoid(x) * 2
        if self.scaled and not self.training:
            y = y * self.weight
        z = torch.tanh(y) + 1 if self.kind == "tanh" else y
        if self.training:
            self.calls += 1
        if self.power > 1:
            z = z**2 + z
        return y, z


def test_options_that_change():
    twins = Twins(Options().eval())
    changes: list[tuple[str, Any]] = [("scaled", False), ("kind", "none"), ("power", 1), ("training", True)]
    with torch.no_grad():
        for _ in range(4):
            twins.check(torch.randn(3, 4))
        for name, value in changes:
            before = getattr(twins.eager, name)
            for now in (value, before, value):
                twins.set(lambda module, name=name, now=now: setattr(module, name, now))
                twins.check(torch.randn(3, 4))
                assert twins.scripted.calls == twins.eager.calls
    assert twins.eager.calls > 0


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.tanh(x) * 2
    if bias is not None:
        y = torch.relu(y + bias) * 3
    return torch.sigmoid(y) + 1


def join_past(x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    key, value = torch.tanh(x) * 2, torch.sigmoid(x) * 3
    if past is not None:
        key, value = torch.cat([past[0], key]), torch.cat([past[1], value])
    return torch.relu(key) + value.sum(), (key, value)


def scale_by_an_element(x: Tensor, options: tuple[Tensor | None, float | None]) -> Tensor:
    y, (scale, offset) = torch.tanh(x) * 2, options
    if scale is None:
        y = torch.relu(y) + 1
    else:
        y = y * scale - 1
    if offset is not None:
        y = y + offset
    return torch.sigmoid(y)


def write_to_an_argument(x: Tensor, total: Tensor | None) -> Tensor:
    y = torch.tanh(x) * 2
    if total is not None:
        total.add_(y.sum(0))
        y = y + total
    return torch.sigmoid(y) + 1


def carry_none_through_a_loop(x: Tensor, last: Tensor | None) -> Tensor:
    for _ in range(3):
        x = torch.tanh(x) * 2
        if last is not None:
            x = torch.relu(x) + last
        last = x * 0.5
    return x


def return_the_argument(x: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    y = torch.tanh(x) * 2
    return (torch.relu(y) + 1, y) if other is None else (y.t(), other)


OPTIONAL_ARGUMENTS: dict[str, tuple[Callable[..., Any], list[Callable[[], Any]]]] = {
    "a tensor": (add_bias, [lambda: None, lambda: torch.ones(4), lambda: torch.full((3, 4), 0.5)]),
    "a tuple": (join_past, [lambda: None, lambda: (torch.ones(2, 4), torch.full((5, 4), 0.25))]),
    "elements of a tuple": (
        scale_by_an_element,
        [lambda: (None, None), lambda: (torch.ones(4), None), lambda: (None, 0.5), lambda: (torch.ones(4), 2.0)],
    ),
    "written to": (write_to_an_argument, [lambda: None, lambda: torch.ones(4)]),
    "carried by a loop": (carry_none_through_a_loop, [lambda: None, lambda: torch.ones(4)]),
    "returned": (return_the_argument, [lambda: None, lambda: torch.ones(4)]),
}


@pytest.mark.parametrize("name", OPTIONAL_ARGUMENTS)
def test_optional_arguments(name: str):
    function, arguments = OPTIONAL_ARGUMENTS[name]
    scripted = torch.jit.script(function)
    for gradients in (False, True):
        for make in arguments * 4:
            eager, other = make(), make()
            x, y = (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(gradients) for _ in range(2))
            expected, result = function(x, eager), scripted(y, other)
            assert_matches((result, other), (expected, eager), layers=4)
            if gradients:
                for results in (expected, result):
                    sum(output.sum() for output in pytree.tree_leaves(results) if output.requires_grad).backward()
                assert_matches(y.grad, x.grad, layers=4)


def test_an_argument_that_is_not_given_leaves_one_group():
    scripted = torch.jit.script(join_past)
    with torch.no_grad():
        for _ in range(4):
            scripted(torch.randn(3, 4), None)
            scripted(torch.randn(3, 4), (torch.randn(2, 4), torch.randn(5, 4)))
    (node,) = coverage.groups(scripted.graph_for(torch.randn(3, 4), None))
    assert node.hasAttribute("flags")


def test_a_result_that_only_some_mode_makes_another_tensor():
    """A tensor that a branch returns unchanged is the same tensor, and its view is a view, as in eager PyTorch."""

    class Aliases(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = torch.tanh(x) * 2
            same = torch.relu(y) + 1 if self.training else y
            view = y.t() if not self.training else torch.sigmoid(y) * 2
            return y, same, view

    scripted = warmed_up(torch.jit.script(Aliases().eval()), torch.randn(3, 4))
    for training in (False, True, False):
        scripted.train(training)
        y, same, view = scripted(torch.randn(3, 4))
        same.zero_()
        assert bool((y == 0).all()) is not training
        assert bool((view == 0).all()) is not training


DRAWS = {
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float32),
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
    "rand": lambda x: torch.rand(x.shape),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_keep_their_order_in_training(name: str):
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
            self.draws = True

        def forward(self, x: Tensor) -> Tensor:
            y = torch.tanh(x) * 2
            if self.draws:
                y = nn.functional.dropout(y * y, 0.5, self.training) + draw(self.weight)
            return y + torch.sigmoid(x)

    draw = torch.jit.trace(DRAWS[name], torch.ones(3, 4), check_trace=False)
    twins = Twins(Draws())
    for _ in range(6):
        twins.check(torch.randn(3, 4, requires_grad=True))


@pytest.mark.sampled(0)
def test_more_modes_than_are_kept():
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.BatchNorm1d(2) for _ in range(6)])

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts:
                x = torch.relu(part(x)) + x * 0.25
            return x

    twins = Twins(Many().eval())
    with torch.no_grad():
        for call in range(40):
            for k in range(6):
                # Indexing a scripted ModuleList returns a copy.
                twins.set(lambda module, k=k, call=call: list(module.parts.children())[k].train(bool(call >> k & 1)))
            twins.check(torch.randn(4, 2))


# --- branches that write --------------------------------------------------------------------------------------


@torch.jit.script
def _write_in_a_branch(x: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
    x = torch.tanh(x) * 1.5
    before = torch.tanh(x) + 1
    if flag:
        x.add_(1)
    return before, torch.sigmoid(x) * 2


def test_a_write_in_a_branch_keeps_its_place():
    for flag in (True, False) * 3:
        x = torch.randn(4)
        y = torch.tanh(x) * 1.5
        expected = torch.tanh(y) + 1, torch.sigmoid(y + 1 if flag else y) * 2
        assert_matches(_write_in_a_branch(x, flag), expected)


def test_a_write_in_a_mode_keeps_its_place():
    class Writing(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.tanh(x) * 1.5
            before = torch.tanh(x) + 1
            if self.training:
                x.add_(1)
            return before, torch.sigmoid(x) * 2

    twins = Twins(Writing().eval())
    with torch.no_grad():
        for training in (False, False, False, True, True, False):
            twins.set(lambda module, training=training: module.train(training))
            twins.check(torch.randn(4))


def test_an_effect_beside_an_unused_result_stays():
    """A norm with an unused result still counts its batches (PyTorch's scripts drop its statistics)."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.norm(x)
            return torch.tanh(x) * 2

    twins = Twins(Counting().eval())
    with torch.no_grad():
        for training in (False, False, False, True, True, False):
            twins.set(lambda module, training=training: module.train(training))
            x = torch.randn(4, 3)
            assert_matches(twins.scripted(x), twins.eager(x))
            assert_matches(twins.scripted.norm.num_batches_tracked, twins.eager.norm.num_batches_tracked)


def test_statistics_that_only_another_branch_updates():
    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                return torch.tanh(self.norm(x))
            centred = x - self.norm.running_mean
            return torch.tanh(centred * torch.rsqrt(self.norm.running_var + 0.5) * self.norm.weight)

    twins = Twins(ByHand().eval())
    with torch.no_grad():
        for training in (False, False, False, False, True, False, True, False):
            twins.set(lambda module, training=training: module.train(training))
            twins.check(torch.randn(64, 4) * 2 + 1)
