"""Recurrent layers through ``torch.compile(…, backend="torchmdla")``: they train compiled, with eager's gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

NETWORKS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": partial(nn.LSTM, 4, 6),
    "lstm, two layers, both ways": partial(nn.LSTM, 4, 6, 2, batch_first=True, bidirectional=True),
    "lstm without biases": partial(nn.LSTM, 4, 6, 2, bias=False),
    "gru": partial(nn.GRU, 4, 6),
    "gru, two layers, both ways": partial(nn.GRU, 4, 6, 2, batch_first=True, bidirectional=True),
    "gru without biases": partial(nn.GRU, 4, 6, bias=False),
    "tanh": partial(nn.RNN, 4, 6, 2),
    "relu": partial(nn.RNN, 4, 6, nonlinearity="relu", bidirectional=True),
}

# Networks for which PyTorch's own kernels run.
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "projections": lambda: nn.LSTM(4, 6, proj_size=3),
    "bfloat16": lambda: nn.GRU(4, 6).bfloat16(),
    "packed": lambda: Packed(nn.LSTM(4, 6)),
    "autocast": lambda: Autocast(nn.GRU(4, 6)),
}


class Packed(nn.Module):
    """Network of sequences of several lengths."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
        result: Tensor = nn.utils.rnn.pad_packed_sequence(self.network(packed)[0])[0]
        return result


class Autocast(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.network(x)


class WithState(nn.Module):
    """Network that starts from a state which requires grad."""

    def __init__(self, network: nn.RNNBase) -> None:
        super().__init__()
        self.network = network
        state = torch.randn(1, 3, 6, requires_grad=True)
        self.state = nn.Parameter(state)

    def forward(self, x: Tensor) -> Any:
        return self.network(x, (self.state, self.state) if isinstance(self.network, nn.LSTM) else self.state)


def train(program: Any, module: nn.Module, x: Tensor) -> list[Any]:
    """Return the results of a step, and all gradients."""
    torch.manual_seed(5)
    argument = x.clone().requires_grad_()
    results = program(argument)
    loss = sum((leaf.sin() * k).sum() for k, leaf in enumerate(tree_leaves(results), 1))
    module.zero_grad()
    loss.backward()
    return [results, argument.grad, [parameter.grad for parameter in module.parameters()], torch.get_rng_state()]


def check(module: nn.Module, *sequences: Tensor) -> None:
    twin = copy.deepcopy(module)
    program = torch.compile(twin, backend="torchmdla")
    for x in sequences:
        assert_matches(train(program, twin, x), train(module, module, x), layers=12)


def assert_one_group_each() -> None:
    """Check that forward and backward are one group each, without graph breaks."""
    assert not counters["graph_break"]
    assert torchmdla.stats().specialisations == 2
    assert not torchmdla.stats().ungrouped
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.sampled(6)
def test_one_group_forward_and_one_backward(name: str, dtype: torch.dtype) -> None:
    check(NETWORKS[name]().to(dtype), *[torch.randn(3, 5, 4, dtype=dtype)] * 2)
    assert_one_group_each()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_initial_states(kind: type[nn.RNNBase]) -> None:
    check(WithState(kind(4, 6)), torch.randn(5, 3, 4))
    assert_one_group_each()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_layers_draws_eagers_numbers(kind: type[nn.RNNBase]) -> None:
    check(kind(4, 6, 3, dropout=0.4, batch_first=True), *[torch.randn(3, 5, 4)] * 2)
    assert not counters["graph_break"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_run_in_pytorch(name: str) -> None:
    module = OTHERS[name]()
    check(module, *[torch.randn(5, 3, 4, dtype=next(module.parameters()).dtype)] * 2)
    assert torchmdla.stats().specialisations == 0


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_few_steps(steps: int) -> None:
    check(nn.GRU(4, 6, 2), torch.randn(steps, 3, 4))
    assert_one_group_each()


def test_a_sequence_without_a_batch() -> None:
    check(nn.LSTM(4, 6), torch.randn(5, 4))
    assert_one_group_each()


def test_lengths_that_vary_share_a_program() -> None:
    check(nn.GRU(4, 6), *(torch.randn(length, 3, 4) for length in (5, 9, 13, 17, 21, 25)))
    assert counters["stats"]["unique_graphs"] == 2
    assert torchmdla.stats().dynamic >= 2
    assert not torchmdla.stats().fallbacks


def test_long_sequences() -> None:
    """Check a sequence that is too long to be written out: samples with fewer steps compile it."""
    check(nn.GRU(4, 6), *[torch.randn(170, 2, 4)] * 2)
    assert torchmdla.stats().dynamic == 2
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_second_derivatives(kind: type[nn.RNNBase]) -> None:
    # Eager's LSTM in float32 has none.
    module = WithState(kind(4, 6)).double()
    x = torch.randn(5, 3, 4, dtype=torch.float64)

    def differentiate(program: Any) -> list[Any]:
        argument = x.clone().requires_grad_()
        loss = sum(leaf.square().sum() for leaf in tree_leaves(program(argument)))
        (first,) = torch.autograd.grad(loss, argument, create_graph=True)
        return [first, *torch.autograd.grad(first.sin().sum(), [argument, *module.parameters()])]

    assert_matches(differentiate(torch.compile(module, backend="torchmdla")), differentiate(module), layers=12)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_inference_is_one_group(kind: type[nn.RNNBase], context: Callable[[], Any]) -> None:
    module, x = kind(4, 6, 2).eval(), torch.randn(5, 3, 4)
    program = torch.compile(module, backend="torchmdla", fullgraph=True)
    with context():
        for _ in range(2):
            assert_matches(program(x), module(x), layers=12)
    assert torchmdla.stats().specialisations == 1


def test_other_backends_do_not_trace_recurrent_layers() -> None:
    x = torch.randn(5, 3, 4)
    torch.compile(nn.GRU(4, 6), backend="torchmdla")(x)
    assert not counters["graph_break"]
    torch.compile(nn.GRU(4, 6), backend="aot_eager")(x)
    assert any("allow_rnn" in reason for reason in counters["graph_break"])
    assert not torch._dynamo.config.allow_rnn


def test_devices_without_the_operators_leave_recurrent_layers_to_pytorch() -> None:
    module, x = nn.GRU(4, 6), torch.randn(5, 3, 4)
    assert_matches(torch.compile(module, backend="torchmdla", options={"device": "mdla"})(x), module(x))
    assert counters["graph_break"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_traced_programs_train_by_the_same_operators(kind: type[nn.RNNBase]) -> None:
    module, x = kind(4, 6, 2), torch.randn(5, 3, 4)
    twin = copy.deepcopy(module)
    program = torch.jit.trace(twin, x, check_trace=False)
    for _ in range(4):
        assert_matches(train(program, twin, x), train(module, module, x), layers=12)
    statistics = torchmdla.stats()
    assert not statistics.not_trained
    assert not statistics.fallbacks
    assert len(statistics.by_group) == 2
    assert any("_steps" in group.name for group in statistics.by_group)
