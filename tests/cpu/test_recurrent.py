"""Recurrent networks: values and states of every kind, and the steps that are generated for them."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_running import host_target
from nest_samples import AVX512, TARGETS
from test_tile_fusion import chains
from torch import Tensor, nn
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla.devices.cpu.ir.loop_program import LoopNest, TileLoop, fill_value, flatten
from torchmdla.testing.compare import assert_matches

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


def check(module: nn.Module, *inputs: object) -> None:
    """Compare a compiled network with eager, outputs and states, on one thread and on two."""
    module.eval()
    with torch.no_grad():
        compiled = torchmdla.compile(module, *inputs)
        for count in (1, 2):
            torch.set_num_threads(count)
            assert_matches(compiled(*inputs), module(*inputs))
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"bias": False}, id="no bias"),
        pytest.param({"bidirectional": True, "num_layers": 2}, id="both ways"),
        pytest.param({"batch_first": True, "num_layers": 2}, id="batch first"),
    ],
)
@pytest.mark.parametrize("hidden", [64, 50])
@pytest.mark.sampled(3)
def test_values(kind, options, hidden):
    shape = (5, 6, 24) if options.get("batch_first") else (6, 5, 24)
    check(KINDS[kind](24, hidden, **options), torch.randn(shape))


class WithState(nn.Module):
    """Module that runs a network from a state that is an input."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> Tensor:
        y, (h, c) = self.network(x, (hidden, memory))
        return torch.cat([y, h, c])


def test_given_state():
    check(WithState(nn.LSTM(20, 96)), torch.randn(4, 3, 20), torch.randn(1, 3, 96), torch.randn(1, 3, 96))


def test_a_state_of_zeros_meets_weights_that_are_not_numbers():
    network = nn.LSTM(16, 64)
    with torch.no_grad():
        network.weight_hh_l0[3, 5] = float("nan")
    check(network, torch.randn(3, 4, 16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(0)
def test_long_sequences(kind):
    """Check long sequences. Bufferisation skips upstream's analysis for so many operations."""
    check(KINDS[kind](12, 32, num_layers=2), torch.randn(160, 2, 12))


@pytest.mark.parametrize("features", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", ["lstm", "tanh"])
def test_layers_share_the_zeros_of_their_first_steps(kind, features):
    """Check that zeros are filled once, also if products read them from panels, as in batches of a vector's size."""
    program = TracedProgram(KINDS[kind](16, 64, num_layers=2), normal(5, 8, 16))
    steps = list(flatten(program.steps(host_target(*features)).steps))
    nests = [nest for step in steps for nest in (step.members if isinstance(step, TileLoop) else [step])]
    assert sum(fill_value(nest) is not None for nest in nests) == 1
    program.check(host_target(*features))


@settings(max_examples=8)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    batch=st.integers(1, 9),
    length=st.integers(1, 5),
    features=st.integers(1, 20),
    hidden=st.one_of(st.integers(1, 40), st.sampled_from([32, 48, 64, 80, 128])),
)
def test_any_sizes(kind, batch, length, features, hidden):
    torch.manual_seed(0)
    check(KINDS[kind](features, hidden), torch.randn(length, batch, features))


def gated(hidden: int, slices: int) -> list[TileLoop]:
    """Return the chains of a product that is read in slices.

    The program multiplies all slices, and applies tanh to all but the first.
    """

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        first, *others = nn.functional.linear(x, weight).split(hidden, 1)
        return functools.reduce(lambda total, part: total * part.tanh(), others, first)

    program = TracedProgram(multiply, normal(8, 40), weights=[normal(slices * hidden, 40) / 6])
    return chains(program.steps(host_target(*AVX512)))


@pytest.mark.parametrize("slices", [2, 3, 4])
def test_a_product_read_in_slices_is_a_chain_with_its_readers(slices):
    (chain,) = gated(128, slices)
    assert any(chain.members[0].reduction) and chain.extents == (4,)
    assert [b.sizes for b in chain.locals] == [(8, slices, 32)]


def test_slices_that_are_no_multiples_of_vectors_stay_apart():
    assert gated(50, 4) == []


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
def test_every_product_with_a_state_is_a_chain(kind, options):
    """Check all products with a state, also the last one, whose results are results of the program."""
    module = KINDS[kind](16, 64, **options)
    steps = TracedProgram(module, torch.randn(7, 3, 16)).steps()
    products = [s for s in flatten(steps.steps) if isinstance(s, LoopNest) and any(s.reduction)]
    assert len(products) == len(module.all_weights)  # products with the inputs
