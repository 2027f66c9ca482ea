"""Steps of recurrent layers over time, and their gradients, as operators of their own.

``torchmdla::lstm_steps`` and its like run all steps of one layer in one direction, and return all values that their
gradient needs. ``torchmdla::lstm_steps_backward`` returns the gradients of all steps' products. Products over all steps
at once stay outside: those of inputs with weights, and the gradients of weights. PyTorch runs the operators by the
functions of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = tuple[Tensor, ...]
Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensors, "Tensor | None", State]


@dataclass(frozen=True)
class Cell:
    """One step of a recurrent layer.

    Attributes:
        states: number of states. The first one is the output.
        saved: widths of the values that the gradient needs besides states, in hidden sizes.
        gradients: widths of the gradients of one step: of the projected input, and of the product with the hidden state
            where it differs.
        step: function of the projected input, the states, the recurrent weight and its bias. It returns the new states
            and the saved values.
        differentiate: function of the gradients of the new states, the old states, the new states and the saved values.
            It returns ``gradients``; the gradient of the old hidden state without the product's part, where None is
            zero; and the gradients of the other old states.
    """

    states: int
    saved: tuple[int, ...]
    gradients: tuple[int, ...]
    step: Callable[[Tensor, State, Tensor, Tensor | None], tuple[State, Tensors]]
    differentiate: Callable[[State, State, State, Tensors], Gradients]


def _lstm_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> tuple[State, Tensors]:
    hidden, memory = state
    into, forget, new, out = (projected + functional.linear(hidden, weight, bias)).chunk(4, -1)
    into, forget, new, out = torch.sigmoid(into), torch.sigmoid(forget), torch.tanh(new), torch.sigmoid(out)
    memory = forget * memory + into * new
    return (out * torch.tanh(memory), memory), (torch.cat([into, forget, new, out], -1),)


def _lstm_gradient(gradients: State, old: State, new_states: State, saved: Tensors) -> Gradients:
    (of_hidden, of_memory), (_, memory) = gradients, old
    into, forget, new, out = saved[0].chunk(4, -1)
    shown = torch.tanh(new_states[1])
    of_memory = of_memory + of_hidden * out * (1 - shown * shown)
    gates = [
        of_memory * new * into * (1 - into),
        of_memory * memory * forget * (1 - forget),
        of_memory * into * (1 - new * new),
        of_hidden * shown * out * (1 - out),
    ]
    return (torch.cat(gates, -1),), None, (of_memory * forget,)


def _gru_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> tuple[State, Tensors]:
    (hidden,) = state
    reset_x, update_x, new_x = projected.chunk(3, -1)
    reset_h, update_h, new_h = functional.linear(hidden, weight, bias).chunk(3, -1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return ((hidden - new) * update + new,), (torch.cat([reset, update, new, new_h], -1),)


def _gru_gradient(gradients: State, old: State, new_states: State, saved: Tensors) -> Gradients:
    (of_hidden,), (hidden,) = gradients, old
    reset, update, new, new_h = saved[0].chunk(4, -1)
    of_update = of_hidden * (hidden - new) * update * (1 - update)
    of_new = of_hidden * (1 - update) * (1 - new * new)
    of_reset = of_new * new_h * reset * (1 - reset)
    results = (torch.cat([of_reset, of_update, last], -1) for last in (of_new, of_new * reset))
    return tuple(results), of_hidden * update, ()


def _plain_cell(activation: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor], Tensor]) -> Cell:
    """Return a cell without gates. ``gradient`` takes the gradient of the new state, and the new state."""

    def step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> tuple[State, Tensors]:
        return (activation(projected + functional.linear(state[0], weight, bias)),), ()

    def differentiate(gradients: State, _: State, new: State, __: Tensors) -> Gradients:
        return (gradient(gradients[0], new[0]),), None, ()

    return Cell(1, (), (1,), step, differentiate)


CELLS = {
    "lstm": Cell(2, (4,), (4,), _lstm_step, _lstm_gradient),
    "gru": Cell(1, (4,), (3, 3), _gru_step, _gru_gradient),
    "rnn_tanh": _plain_cell(torch.tanh, lambda gradient, new: gradient * (1 - new * new)),
    "rnn_relu": _plain_cell(torch.relu, lambda gradient, new: torch.ops.aten.threshold_backward(gradient, new, 0)),
}

STEP_OPERATORS = frozenset(f"torchmdla::{name}_steps{suffix}" for name in CELLS for suffix in ("", "_backward"))


def run_steps(
    cell: Cell, projected: Tensor, initial: Sequence[Tensor], weight: Tensor, bias: Tensor | None, reverse: bool
) -> tuple[Tensors, State]:
    """Return the states after each step, ``[T, N, hidden]``, with the saved values of each step; and the last state.

    Args:
        cell: the kind of layer.
        projected: products of the inputs with their weights, ``[T, N, gates · hidden]``.
        initial: states before the first step, ``[N, hidden]``.
        weight: recurrent weight.
        bias: recurrent bias.
        reverse: whether the last element of the sequence comes first.
    """
    state, rows = tuple(initial), []
    for step in _in_order(projected.unbind(0), reverse):
        state, saved = cell.step(step, state, weight, bias)
        rows.append((*state, *saved))
    return tuple(stack(_in_order(column, reverse)) for column in zip(*rows, strict=True)), state


def run_gradients(
    cell: Cell,
    gradient: Tensor,
    last: Sequence[Tensor],
    initial: Sequence[Tensor],
    weight: Tensor,
    values: Sequence[Tensor],
    reverse: bool,
) -> Tensors:
    """Return ``cell.gradients`` of each step, ``[T, N, width · hidden]``, and the gradients of the initial states.

    Args:
        cell: the kind of layer.
        gradient: gradient of the output of all steps.
        last: gradients of the other states after the last step.
        initial: states before the first step.
        weight: recurrent weight.
        values: the first results of :func:`run_steps`.
        reverse: as for :func:`run_steps`.
    """
    of_outputs = _in_order(gradient.unbind(0), reverse)
    rows = list(zip(*(_in_order(value.unbind(0), reverse) for value in values), strict=True))
    states = [tuple(initial), *(row[: cell.states] for row in rows)]
    of_hidden, of_others = torch.zeros_like(initial[0]), tuple(last)
    results = []
    for step in reversed(range(len(rows))):
        of_states = (of_outputs[step] + of_hidden, *of_others)
        row, direct, of_others = cell.differentiate(
            of_states, states[step], states[step + 1], rows[step][cell.states :]
        )
        results.append(row)
        product = torch.mm(row[-1], weight)
        of_hidden = product if direct is None else direct + product
    columns = [stack(_in_order(column[::-1], reverse)) for column in zip(*results, strict=True)]
    return (*columns, of_hidden, *of_others)


def _in_order(parts: Sequence[Tensor], reverse: bool) -> Sequence[Tensor]:
    return parts[::-1] if reverse else parts


def stack(parts: Sequence[Tensor]) -> Tensor:
    """Return ``torch.stack`` of the parts. The meta kernel of ``torch.stack`` imports torch._dynamo."""
    return torch.cat([part.unsqueeze(0) for part in parts])


_LIBRARY = torch.library.Library("torchmdla", "FRAGMENT")


def _define(name: str, cell: Cell) -> None:
    """Define the operators of one kind of layer."""

    def widen(tensor: Tensor, width: int) -> Tensor:
        return tensor.new_empty([*tensor.shape[:-1], tensor.shape[-1] * width])

    def steps(*arguments: Any) -> Tensors | Tensor:
        results, _ = run_steps(cell, *arguments)
        return results if len(results) > 1 else results[0]

    def fake_steps(projected: Tensor, initial: Sequence[Tensor], *_: object) -> Tensors | Tensor:
        hidden = projected.new_empty([*projected.shape[:-1], initial[0].shape[-1]])
        results = tuple(widen(hidden, width) for width in [*[1] * cell.states, *cell.saved])
        return results if len(results) > 1 else results[0]

    def fake_gradients(gradient: Tensor, _: object, initial: Sequence[Tensor], *__: object) -> Tensors:
        return (*(widen(gradient, width) for width in cell.gradients), *(widen(state, 1) for state in initial))

    gradients = partial(run_gradients, cell)
    for suffix, parameters, count, function, fake in (
        ("", _STEPS, cell.states + len(cell.saved), steps, fake_steps),
        ("_backward", _GRADIENTS, len(cell.gradients) + cell.states, gradients, fake_gradients),
    ):
        operator = f"{name}_steps{suffix}"
        returns = ", ".join(["Tensor"] * count)
        _LIBRARY.define(f"{operator}({parameters}, bool reverse) -> ({returns})")
        _LIBRARY.impl(operator, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"torchmdla::{operator}", fake, lib=_LIBRARY)


_STEPS = "Tensor projected, Tensor[] initial, Tensor weight, Tensor? bias"
_GRADIENTS = "Tensor gradient, Tensor[] last, Tensor[] initial, Tensor weight, Tensor[] values"

for _name, _cell in CELLS.items():
    _define(_name, _cell)
