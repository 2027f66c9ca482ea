"""Recurrent networks, unrolled over time.

The projection of the inputs does not depend on the state. It is one matrix product for all steps, outside of the loop.
A device may turn the unrolled steps back into a loop (the cpu device does). It may also use one program for several
lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions.recurrent_steps import (
    CELLS,
    Cell,
    State,
    Tensors,
    run_gradients,
    run_steps,
    stack,
)
from torchmdla.importer.types import HALVES

# Maximum number of steps over all layers and directions. After a device has built a loop, the program is as short as
# for a few steps. Until then each step is a dozen ops, and more steps take minutes.
_MAX_STEPS = 512

# Maximum number of steps of an operator for one layer in one direction. A program of more steps is made from samples
# with fewer.
_MAX_STEPS_OF_LAYER = 160

# Runs one layer in one direction over ``[T, N, input]``, given the sequence, the initial state, the weights and biases,
# and whether the direction is reversed. It returns ``[T, N, hidden]`` and the last state.
Direction = Callable[[Tensor, State, Sequence[Tensor], bool], tuple[Tensor, State]]


def _run_direction(
    cell: Cell, sequence: Tensor, state: State, weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, State]:
    bias_input, bias_hidden = (weights[2], weights[3]) if len(weights) > 2 else (None, None)
    projected = functional.linear(sequence, weights[0], bias_input)
    (outputs, *_), last = run_steps(cell, projected, state, weights[1], bias_hidden, reverse)
    return outputs, last


def run_network(  # type: ignore[no-untyped-def]
    run: Direction,
    input: Tensor,
    initial: Sequence[Tensor],
    params,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
) -> tuple[Tensor, ...]:
    """Run all layers and directions. ``initial`` holds the states, each ``[layers · directions, N, hidden]``.

    The other arguments are those of the operators of ATen.
    """
    directions = 2 if bidirectional else 1
    per_direction = len(params) // (num_layers * directions)
    # Without a batch dimension the states are [layers · directions, hidden].
    is_transposed = input.dim() == 3 and batch_first
    sequence = input.transpose(0, 1) if is_transposed else input
    last: list[State] = []
    for layer in range(num_layers):
        if layer and train and dropout:
            sequence = functional.dropout(sequence, dropout)
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * per_direction : (index + 1) * per_direction]
            output, state = run(sequence, tuple(start.select(0, index) for start in initial), weights, direction == 1)
            outputs.append(output)
            last.append(state)
        sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return sequence.transpose(0, 1) if is_transposed else sequence, *map(stack, zip(*last, strict=True))


def _decompose(  # type: ignore[no-untyped-def]
    cell: Cell, input: Tensor, initial: Tensor | Sequence[Tensor], params, *options
) -> tuple[Tensor, ...]:
    """Decompose a network into its steps. The hidden state may be a tensor, if the cell has no other state."""
    has_biases, num_layers, dropout, train, bidirectional, batch_first = options
    initial = (initial,) if isinstance(initial, Tensor) else initial
    if dropout != 0.0 and train and num_layers > 1:
        raise CompileError("dropout in training draws random numbers")
    directions = num_layers * (2 if bidirectional else 1)
    if len(params) != directions * (4 if has_biases else 2):
        raise CompileError("a recurrent network with projections is not supported")
    length = input.size(1 if input.dim() == 3 and batch_first else 0)
    _check_length(length, length * directions, _MAX_STEPS)
    if input.dtype not in HALVES:
        return run_network(partial(_run_direction, cell), input, initial, params, *options)
    starts, weights = ([tensor.float() for tensor in tensors] for tensors in (initial, params))
    run = partial(_run_direction, _round_output(cell, input.dtype))
    results = run_network(run, input.float(), starts, weights, *options)
    return tuple(result.to(input.dtype) for result in results)


def _check_length(length: int, steps: int, most: int) -> None:
    """Raise CompileError if there are more than ``most`` steps, for a sequence of that length."""
    if steps > most:
        reason = f"a recurrent network of {steps} steps is not written out, {most} are the most"
        raise CompileError(reason, unroll_limit_exceeded=length, scope="place")


def _round_output(cell: Cell, dtype: torch.dtype) -> Cell:
    """Return a cell in float32 that rounds its output to ``dtype``. The next step reads the rounded output."""

    def step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> tuple[State, Tensors]:
        (hidden, *others), saved = cell.step(projected, state, weight, bias)
        return (hidden.to(dtype).float(), *others), saved

    return replace(cell, step=step)


# The order of an LSTM's gates is input, forget, cell, output.
lstm, gru, rnn_tanh, rnn_relu = (partial(_decompose, CELLS[name]) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def _run_steps(cell: Cell, projected: Tensor, *arguments: Any) -> Tensors:
    _check_length(projected.size(0), projected.size(0), _MAX_STEPS_OF_LAYER)
    return run_steps(cell, projected, *arguments)[0]


def _run_gradients(cell: Cell, gradient: Tensor, *arguments: Any) -> Tensors:
    _check_length(gradient.size(0), gradient.size(0), _MAX_STEPS_OF_LAYER)
    return run_gradients(cell, gradient, *arguments)


# The decompositions of ``STEP_OPERATORS``.
STEPS: dict[str, Callable[..., Tensors]] = {
    f"torchmdla::{name}_steps{suffix}": partial(run, cell)
    for name, cell in CELLS.items()
    for suffix, run in (("", _run_steps), ("_backward", _run_gradients))
}


def _cell(name: str, projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return CELLS[name].step(projected, state, weight, bias)[0]


def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # type: ignore[no-untyped-def]
    """Compute ``aten::lstm_cell``. Return the hidden state and the cell state."""
    return _cell("lstm", functional.linear(input, w_ih, b_ih), tuple(hx), w_hh, b_hh)


def _hidden_state_cell(name: str) -> Callable[..., Tensor]:
    """Return a function for one step, in the signature of ``aten::gru_cell``."""

    def step(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # type: ignore[no-untyped-def]
        return _cell(name, functional.linear(input, w_ih, b_ih), (hx,), w_hh, b_hh)[0]

    return step


gru_cell, rnn_tanh_cell, rnn_relu_cell = map(_hidden_state_cell, ("gru", "rnn_tanh", "rnn_relu"))
