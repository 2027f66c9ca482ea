"""Recurrences that are too long to unroll: short samples compile them for all lengths at the first call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_recurrent import KINDS, WithState
from torch import Tensor, nn

import torchmdla
from torchmdla.errors import CompileError
from torchmdla.testing.compare import assert_matches

LONG = 2000

Draw = Callable[[int], Sequence[Tensor]]


def traced(module: nn.Module, *inputs: Tensor) -> Any:
    return torch.jit.freeze(torch.jit.trace(module, inputs, check_trace=False))


def call(compiled: Any, module: nn.Module, inputs: Sequence[Tensor]) -> None:
    assert_matches(compiled(*inputs), module(*inputs))


@torch.no_grad()
def check(module: nn.Module, draw: Draw, lengths: Sequence[int] = (LONG, 600, LONG, 3000, 3000)) -> None:
    """Check that the first of ``lengths`` compiles the only program.

    A length beyond the known ones may run once by eager operators.
    """
    module.eval()
    script = traced(module, *draw(6))
    for length in (lengths[0], *lengths):
        call(script, module, draw(length))
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic) == (1, 1)
    assert stats.not_dynamic == stats.fallbacks == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(pytest.param(kind, {}, id=kind) for kind in KINDS),
        pytest.param("gru", {"bidirectional": True}, id="gru, both ways"),
        pytest.param(
            "lstm", {"bidirectional": True, "num_layers": 2, "batch_first": True}, id="lstm, both ways, two layers"
        ),
    ],
)
@pytest.mark.sampled(0)
def test_one_program_from_the_first_call_on(kind: str, options: dict[str, object]) -> None:
    network = KINDS[kind](8, 16, **options)
    check(network, lambda length: [torch.randn((3, length, 8) if "batch_first" in options else (length, 3, 8))])


@pytest.mark.sampled(0)
def test_given_state() -> None:
    check(
        WithState(nn.LSTM(8, 16)),
        lambda length: [torch.randn(length, 3, 8), torch.randn(1, 3, 16), torch.randn(1, 3, 16)],
    )


class Tagger(nn.Module):
    """Module whose recurrence runs over a sequence one step shorter than the input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.network, self.head = nn.Embedding(50, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.network(self.embedding(tokens[:, 1:]))[0]).log_softmax(-1)


@pytest.mark.sampled(0)
def test_a_length_computed_from_an_inputs() -> None:
    check(Tagger(), lambda length: [torch.randint(50, (3, length))])


@pytest.mark.sampled(0)
def test_weights_of_a_module_that_is_not_frozen_stay_as_they_are() -> None:
    """Check weights where one dimension has the size of the sequence that is too long."""
    module = nn.LSTM(8, 150).eval()
    with torch.no_grad():
        script = torch.jit.trace(module, torch.randn(6, 2, 8), check_trace=False)
        for length in (600, 600, 600, 700):
            call(script, module, [torch.randn(length, 2, 8)])
    assert torchmdla.stats().dynamic == 1
    assert torchmdla.stats().fallbacks == {}


@pytest.mark.sampled(0)
def test_exported_program() -> None:
    """Check an exported program. FX groups behave in the same way."""
    module = Tagger().eval()
    draw = [torch.randint(50, (3, LONG))]
    with torch.no_grad():
        compiled = torchmdla.compile(torch.export.export(module, tuple(draw)), *draw)
        call(compiled, module, draw)
    assert torchmdla.stats().dynamic == 1
    assert torchmdla.stats().fallbacks == {}


# Programs that PyTorch's interpreter runs, and whose fallback is reported.


class Halved(nn.Module):
    """Module whose sequence is half as long as the input, rounded up.

    The length is not a polynomial of the input's length.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.GRU(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x[::2])[0]


def test_a_length_that_is_no_polynomial_falls_back_with_one_warning() -> None:
    module = Halved().eval()
    with torch.no_grad():
        script = traced(module, torch.randn(6, 2, 8))
        call(script, module, [torch.randn(1400, 2, 8)])
        with pytest.warns(RuntimeWarning, match="700 steps is not written out") as seen:
            call(script, module, [torch.randn(1400, 2, 8)])
        call(script, module, [torch.randn(1400, 2, 8)])
    assert len(seen) == 1
    assert list(torchmdla.stats().fallbacks.values()) == [1]
    assert len(torchmdla.stats().not_dynamic) == 1


def test_strict_mode_raises_where_there_is_no_other_way() -> None:
    module = Halved().eval()
    with torch.no_grad():
        script = traced(module, torch.randn(6, 2, 8))
        call(script, module, [torch.randn(1402, 2, 8)])
        torchmdla.enable(strict=True)
        with pytest.raises(CompileError, match="701 steps") as raised:
            script(torch.randn(1402, 2, 8))
    assert (raised.value.op, raised.value.unroll_limit_exceeded) == ("aten::gru.input", 701)


def test_sizes_that_may_not_vary_fall_back() -> None:
    module = nn.GRU(8, 16).eval()
    torchmdla.enable(dynamic=False)
    with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        script = traced(module, torch.randn(6, 2, 8))
        for _ in range(3):
            call(script, module, [torch.randn(601, 2, 8)])
    assert [str(warning.message) for warning in seen if "601 steps" in str(warning.message)]
    assert torchmdla.stats().dynamic == 0
    assert sum(torchmdla.stats().fallbacks.values()) == 1
