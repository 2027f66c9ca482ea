"""Unrolled loops: the ones that become loops again, the ones that must not, their values, and dynamic lengths."""

from __future__ import annotations

import pytest
import torch
from dynamic_programs import Dynamic
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_recurrent import KINDS
from torch import Tensor, nn
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla.devices.cpu.ir.loop_program import LoopProgram, RepeatLoop
from torchmdla.testing.compare import assert_matches

VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "both ways": {"bidirectional": True},
    "two layers": {"num_layers": 2, "batch_first": True},
    "both ways, two layers": {"bidirectional": True, "num_layers": 2},
}


def loops(steps: LoopProgram) -> list[RepeatLoop]:
    return [step for step in steps.steps if isinstance(step, RepeatLoop)]


# Programs.


def power(times: int, driven: bool = True, keep: bool = False, shared: bool = True) -> TracedProgram:
    """Return a program whose state is multiplied by a matrix and passes through tanh.

    If ``keep``, all states are results, otherwise the last one. If ``driven``, a part of a sequence is added to each
    state. If ``shared``, all steps use one matrix.
    """

    def function(x: Tensor, sequence: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
        states = [x]
        for k in range(times):
            x = torch.mm(states[-1], matrices[k % len(matrices)])
            states.append((x + sequence[k] if driven else x).tanh())
        return tuple(states[1:] if keep else states[-1:])

    matrices = [normal(40, 40) / 6 for _ in range(1 if shared else times)]
    return TracedProgram(function, normal(6, 40), normal(times, 6, 40), weights=matrices)


def fibonacci(times: int) -> TracedProgram:
    """Return a program whose states each depend on the two states before."""

    def function(sequence: Tensor, older: Tensor, newer: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        for k in range(times):
            total = torch.mm(newer, matrix) * older + sequence[k][0] + sequence[k][1]
            older, newer = newer, total.tanh()
        return older, newer

    return TracedProgram(function, normal(times, 2, 4, 32), *[normal(4, 32)] * 2, weights=[normal(32, 32) / 8])


def side_by_side(times: int) -> TracedProgram:
    """Return products with one matrix that do not depend on each other."""

    def function(*operands: Tensor) -> tuple[Tensor, ...]:
        *inputs, matrix = operands
        return tuple(torch.mm(x, matrix) for x in inputs)

    return TracedProgram(function, *[normal(6, 40)] * times, weights=[normal(40, 40) / 6])


# Steps that become loops.


def test_a_recurrence_is_a_loop():
    (loop,) = loops(power(12).steps())
    assert 12 - 2 <= loop.count <= 12
    assert len(power(12).steps().steps) == len(power(20).steps().steps)


def test_states_that_are_all_results_stay_where_they_are():
    assert loops(power(12, keep=True).steps()) == []


@pytest.mark.parametrize("program", [power(12, shared=False), side_by_side(12), power(2), power(12, driven=False)])
def test_steps_without_recurrence_form_no_loop(program):
    assert loops(program.steps()) == []


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 9, 16])
@pytest.mark.parametrize("program", [power, fibonacci])
def test_values(program, times):
    program(times).check()


def test_two_states_are_passed_on():
    (loop,) = loops(fibonacci(12).steps())
    assert loop.count >= 8


# Recurrent networks of any length. The samples are short, because their steps are unrolled.

SHORT = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def network(kind: str, hidden: int, options: dict[str, object]) -> Dynamic:
    """Return a network that is compiled once for all lengths, for five sequences at a time."""
    return Dynamic.of(KINDS[kind](16, hidden, **options), lambda length: [inputs(length, options)], [12], SHORT)


def inputs(length: int, options: dict[str, object]) -> Tensor:
    return torch.randn((5, length, 16) if options.get("batch_first") else (length, 5, 16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in VARIANTS.items()])
@pytest.mark.sampled(0)
def test_one_program_for_all_lengths(kind, options):
    # Gates of whole vectors are computed tile by tile; other gates are not.
    compiled = network(kind, 20 if options.get("bidirectional") else 64, options)

    @settings(max_examples=6)
    @given(length=st.integers(2, 60), count=st.integers(1, 2))
    @example(length=2, count=1)
    def compare(length: int, count: int) -> None:
        torch.set_num_threads(count)
        results, expected = compiled([length], [inputs(length, options)])
        assert_matches(results, expected)

    compare()


class Classifier(nn.Module):
    """Module that keeps only the last state. Its sequences start from a state that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.head = nn.GRU(16, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.head(self.network(x, state)[1][-1])


@pytest.mark.sampled(0)
def test_a_last_state_alone_at_any_length():
    compiled = Dynamic.of(Classifier(), lambda length: [torch.randn(length, 3, 16), torch.randn(1, 3, 64)], [12], SHORT)
    for length in (2, 3, 40):
        results, expected = compiled([length], [torch.randn(length, 3, 16), torch.randn(1, 3, 64)])
        assert_matches(results, expected)


@pytest.mark.sampled(0)
def test_lengths_and_batches_that_vary_together():
    compiled = Dynamic.of(nn.LSTM(16, 64), lambda length, batch: [torch.randn(length, batch, 16)], [12, 8], SHORT)
    for length, batch in ((2, 2), (9, 3), (40, 8)):
        results, expected = compiled([length, batch], [torch.randn(length, batch, 16)])
        assert_matches(results, expected)


@pytest.mark.sampled(0)
def test_a_third_length_is_compiled_for_all():
    module = nn.LSTM(16, 32).eval()
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(module, torch.randn(6, 3, 16), check_trace=False))
        for length in (6, 6, 6, 9, 14, 10, 12, 30, 31):
            x = torch.randn(length, 3, 16)
            assert_matches(traced(x), module(x))
    assert torchmdla.stats().not_dynamic == {}
    assert torchmdla.stats().dynamic == 1
    assert torchmdla.stats().fallbacks == {}
