"""Unrolled loops: the ones that become loops again, the ones that must not, their values, and dynamic lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from dynamic_programs import Dynamic
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_recurrent import KINDS
from test_tile_fusion import steps_of
from torch import Tensor, nn
from written_programs import Builder, Value, check, normal

import torchmdla
from torchmdla.devices.cpu.loop_program import LoopProgram, RepeatLoop
from torchmdla.testing.compare import assert_matches

Program = Callable[[Builder], "list[Value]"]

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


def power(times: int, driven: bool = True, keep: bool = False, shared: bool = True) -> Program:
    """Return a program whose state is multiplied by a matrix and passes through tanh.

    If ``keep``, all states are results, otherwise the last one. If ``driven``, a part of a sequence is added to each
    state. If ``shared``, all steps use one matrix.
    """

    def program(b: Builder) -> list[Value]:
        x, sequence = b.input(normal(6, 40)), b.input(normal(times, 6, 40))
        matrices = [b.input(normal(40, 40) / 6, "parameter") for _ in range(1 if shared else times)]
        states = []
        for k in range(times):
            matrix = matrices[0 if shared else k]
            x = b.op("aten.mm", [x, matrix], x.tensor @ matrix.tensor)
            if driven:
                part = b.op("aten.select.int", [sequence, 0, k], sequence.tensor[k])
                x = b.op("aten.add.Tensor", [x, part, 1], x.tensor + part.tensor)
            x = b.op("aten.tanh", [x], x.tensor.tanh())
            states.append(x)
        return states if keep else states[-1:]

    return program


def fibonacci(times: int) -> Program:
    """Return a program whose states each depend on the two states before."""

    def program(b: Builder) -> list[Value]:
        matrix = b.input(normal(32, 32) / 8, "parameter")
        sequence = b.input(normal(times, 2, 4, 32))
        older, newer = b.input(normal(4, 32)), b.input(normal(4, 32))
        for k in range(times):
            product = b.op("aten.mm", [newer, matrix], newer.tensor @ matrix.tensor)
            total = b.op("aten.mul.Tensor", [product, older], product.tensor * older.tensor)
            for half in range(2):
                row = b.op("aten.select.int", [sequence, 0, k], sequence.tensor[k])
                part = b.op("aten.select.int", [row, 0, half], row.tensor[half])
                total = b.op("aten.add.Tensor", [total, part, 1], total.tensor + part.tensor)
            older, newer = newer, b.op("aten.tanh", [total], total.tensor.tanh())
        return [older, newer]

    return program


def side_by_side(times: int) -> Program:
    """Return products with one matrix that do not depend on each other."""

    def program(b: Builder) -> list[Value]:
        matrix = b.input(normal(40, 40) / 6, "parameter")
        inputs = [b.input(normal(6, 40)) for _ in range(times)]
        return [b.op("aten.mm", [x, matrix], x.tensor @ matrix.tensor) for x in inputs]

    return program


# Steps that become loops.


def test_a_recurrence_is_a_loop():
    (loop,) = loops(steps_of(power(12)))
    assert 12 - 2 <= loop.count <= 12
    assert len(steps_of(power(12)).steps) == len(steps_of(power(20)).steps)


def test_states_that_are_all_results_stay_where_they_are():
    assert loops(steps_of(power(12, keep=True))) == []


@pytest.mark.parametrize("program", [power(12, shared=False), side_by_side(12), power(2), power(12, driven=False)])
def test_steps_without_recurrence_form_no_loop(program):
    assert loops(steps_of(program)) == []


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 9, 16])
@pytest.mark.parametrize("program", [power, fibonacci])
def test_values(program, times):
    builder = Builder()
    check(builder, program(times)(builder))


def test_two_states_are_passed_on():
    (loop,) = loops(steps_of(fibonacci(12)))
    assert loop.count >= 8


# Recurrent networks of any length. The samples are short, because their steps are unrolled.

SHORT = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)


def network(kind: str, hidden: int, options: dict[str, object]) -> Dynamic:
    """Return a network that is compiled once for all lengths, for five sequences at a time."""
    torch.manual_seed(0)
    return Dynamic.of(KINDS[kind](16, hidden, **options), lambda length: [inputs(length, options)], [12], SHORT)


def inputs(length: int, options: dict[str, object]) -> Tensor:
    return torch.randn((5, length, 16) if options.get("batch_first") else (length, 5, 16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in VARIANTS.items()])
@pytest.mark.sampled(0)
def test_one_program_for_all_lengths(kind, options):
    # Gates of whole vectors are computed tile by tile; other gates are not.
    compiled = network(kind, 20 if options.get("bidirectional") else 64, options)
    threads = torch.get_num_threads()

    @settings(max_examples=6)
    @given(length=st.integers(2, 60), count=st.integers(1, 2))
    @example(length=2, count=1)
    def compare(length: int, count: int) -> None:
        torch.set_num_threads(count)
        results, expected = compiled([length], [inputs(length, options)])
        assert_matches(results, expected)

    try:
        compare()
    finally:
        torch.set_num_threads(threads)


class Classifier(nn.Module):
    """Module that keeps only the last state. Its sequences start from a state that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.head = nn.GRU(16, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.head(self.network(x, state)[1][-1])


@pytest.mark.sampled(0)
def test_a_last_state_alone_at_any_length():
    torch.manual_seed(0)
    compiled = Dynamic.of(Classifier(), lambda length: [torch.randn(length, 3, 16), torch.randn(1, 3, 64)], [12], SHORT)
    for length in (2, 3, 40):
        results, expected = compiled([length], [torch.randn(length, 3, 16), torch.randn(1, 3, 64)])
        assert_matches(results, expected)


@pytest.mark.sampled(0)
def test_lengths_and_batches_that_vary_together():
    torch.manual_seed(0)
    compiled = Dynamic.of(nn.LSTM(16, 64), lambda length, batch: [torch.randn(length, batch, 16)], [12, 8], SHORT)
    for length, batch in ((2, 2), (9, 3), (40, 8)):
        results, expected = compiled([length, batch], [torch.randn(length, batch, 16)])
        assert_matches(results, expected)


@pytest.mark.sampled(0)
def test_a_third_length_is_compiled_for_all():
    torch.manual_seed(0)
    module = nn.LSTM(16, 32).eval()
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(module, torch.randn(6, 3, 16), check_trace=False))
        for length in (6, 6, 6, 9, 14, 10, 12, 30, 31):
            x = torch.randn(length, 3, 16)
            assert_matches(traced(x), module(x))
    assert torchmdla.stats().not_dynamic == {}
    assert torchmdla.stats().dynamic == 1
    assert torchmdla.stats().fallbacks == {}
