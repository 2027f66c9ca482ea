"""Recurrent networks, unrolled over time.

The projection of the inputs does not depend on the state. It is one matrix product for all steps, outside of the loop.
A device may turn the unrolled steps back into a loop (the cpu device does). It may also use one program for several
lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from torchmdla.errors import CompileError
from torchmdla.importer.types import HALVES

# Maximum number of steps over all layers and directions. After a device has built a loop, the program is as short as
# for a few steps. Until then each step is a dozen ops, and more steps take minutes.
_MAX_STEPS = 512

State = tuple[Tensor, ...]
# (projected input, state, recurrent weight, recurrent bias) -> next state; state[0] is the output of the step.
Cell = Callable[[Tensor, State, Tensor, "Tensor | None"], State]


def _lstm_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    hidden, memory = state
    into, forget, new, out = (projected + functional.linear(hidden, weight, bias)).chunk(4, -1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(into) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(memory), memory


def _gru_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    (hidden,) = state
    reset_x, update_x, new_x = projected.chunk(3, -1)
    reset_h, update_h, new_h = functional.linear(hidden, weight, bias).chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return ((hidden - new) * update + new,)


def _plain_step(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda projected, state, weight, bias: (activation(projected + functional.linear(state[0], weight, bias)),)


_tanh_step, _relu_step = _plain_step(torch.tanh), _plain_step(torch.relu)


def _run_direction(
    cell: Cell, sequence: Tensor, state: State, weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, State]:
    """Run one layer in one direction over ``[T, N, input]``. Return ``[T, N, hidden]`` and the last state."""
    bias_input, bias_hidden = (weights[2], weights[3]) if len(weights) > 2 else (None, None)
    steps = list(functional.linear(sequence, weights[0], bias_input).unbind(0))
    outputs = []
    for projected in reversed(steps) if reverse else steps:
        state = cell(projected, state, weights[1], bias_hidden)
        outputs.append(state[0])
    return _stack(outputs[::-1] if reverse else outputs), state


def _run_network(  # type: ignore[no-untyped-def]
    cell: Cell,
    input: Tensor,
    initial: Tensor | Sequence[Tensor],
    params,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
) -> tuple[Tensor, ...]:
    """Run all layers and directions. ``initial`` holds the states, each ``[layers · directions, N, hidden]``.

    The hidden state may be a tensor, if the cell has no other state.
    """
    initial = (initial,) if isinstance(initial, Tensor) else initial
    rest = has_biases, num_layers, dropout, train, bidirectional, batch_first
    if input.dtype in HALVES:
        starts, weights = ([tensor.float() for tensor in tensors] for tensors in (initial, params))
        results = _run_network(_round_output(cell, input.dtype), input.float(), starts, weights, *rest)
        return tuple(result.to(input.dtype) for result in results)
    if dropout != 0.0 and train and num_layers > 1:
        raise CompileError("dropout in training draws random numbers")
    per_direction = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    if len(params) != num_layers * directions * per_direction:
        raise CompileError("a recurrent network with projections is not supported")
    # Without a batch dimension the states are [layers · directions, hidden].
    batched = input.dim() == 3
    sequence = input.transpose(0, 1) if batched and batch_first else input
    if (steps := sequence.size(0) * num_layers * directions) > _MAX_STEPS:
        reason = f"a recurrent network of {steps} steps is not written out, {_MAX_STEPS} are the most"
        raise CompileError(reason, unroll_limit_exceeded=sequence.size(0), scope="place")
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * per_direction : (index + 1) * per_direction]
            state = tuple(start.select(0, index) for start in initial)
            output, state = _run_direction(cell, sequence, state, weights, reverse=direction == 1)
            outputs.append(output)
            last.append(state)
        sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
    result = sequence.transpose(0, 1) if batched and batch_first else sequence
    return result, *(_stack(parts) for parts in zip(*last, strict=True))


def _round_output(cell: Cell, dtype: torch.dtype) -> Cell:
    """Return a cell in float32 that rounds its output to ``dtype``. The next step reads the rounded output."""

    def step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        hidden, *others = cell(projected, state, weight, bias)
        return hidden.to(dtype).float(), *others

    return step


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """Return ``torch.stack`` of the parts. The meta kernel of ``torch.stack`` imports torch._dynamo."""
    return torch.cat([part.unsqueeze(0) for part in parts])


# The order of an LSTM's gates is input, forget, cell, output.
lstm, gru = partial(_run_network, _lstm_step), partial(_run_network, _gru_step)
rnn_tanh, rnn_relu = partial(_run_network, _tanh_step), partial(_run_network, _relu_step)


def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # type: ignore[no-untyped-def]
    """Compute ``aten::lstm_cell``. Return the hidden state and the cell state."""
    return _lstm_step(functional.linear(input, w_ih, b_ih), tuple(hx), w_hh, b_hh)


def _hidden_state_cell(cell: Cell) -> Callable[..., Tensor]:
    """Return a function for one step, in the signature of ``aten::gru_cell``."""

    def step(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):  # type: ignore[no-untyped-def]
        return cell(functional.linear(input, w_ih, b_ih), (hx,), w_hh, b_hh)[0]

    return step


gru_cell = _hidden_state_cell(_gru_step)
rnn_tanh_cell = _hidden_state_cell(_tanh_step)
rnn_relu_cell = _hidden_state_cell(_relu_step)
