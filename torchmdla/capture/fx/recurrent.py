"""Recurrent networks in traces of AOT Autograd: each layer's steps stay one operator, forward and backward.

PyTorch would write the steps out one by one, or run a kernel of oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.nn import functional

from torchmdla.importer.decompositions.recurrent import run_network
from torchmdla.importer.decompositions.recurrent_steps import CELLS, run_steps


def is_traced(layer: nn.RNNBase) -> bool:
    """Return whether a trace of ``layer`` is better than PyTorch's own network, with a call for each step."""
    weights = layer._flat_weights
    return layer.proj_size == 0 and all(isinstance(x, Tensor) and _is_computed(x) for x in weights) and not _autocasts()


def _is_computed(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64) and tensor.device.type == "cpu"


def _autocasts() -> bool:
    return torch.is_autocast_enabled("cpu")


def whole_network(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """Return a kernel of the operator ``aten::{name}.input`` that keeps the steps of each layer in one operator."""
    original = getattr(torch.ops.aten, name).input

    def kernel(input: Tensor, initial: Any, params: Sequence[Tensor], *options: Any) -> tuple[Tensor, ...]:
        states = initial if isinstance(initial, list | tuple) else [initial]
        if not _is_plain(input, states, params, *options):
            results: tuple[Tensor, ...] = original._op_dk(
                DispatchKey.CompositeImplicitAutograd, input, initial, params, *options
            )
            return results
        return run_network(partial(_run_direction, name), input, states, params, *options)

    return kernel


def _is_plain(
    input: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> bool:
    """Return whether a network has no projections, is not empty, and has tensors of the same dtype that is computed."""
    tensors = [input, *states, *params]
    is_complete = len(params) == num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    is_uniform = all(_is_computed(tensor) and tensor.dtype == input.dtype for tensor in tensors)
    return is_complete and is_uniform and input.dim() == 3 and input.numel() > 0 and not _autocasts()


def _run_direction(
    name: str, sequence: Tensor, state: tuple[Tensor, ...], weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    bias_input, bias_hidden = (weights[2], weights[3]) if len(weights) > 2 else (None, None)
    projected = functional.linear(sequence, weights[0], bias_input)
    results: Any = _Steps.apply(name, reverse, projected, weights[1], bias_hidden, *state)  # type: ignore[no-untyped-call]
    outputs, *others = results
    return outputs, (outputs[0 if reverse else -1], *others)


class _Steps(torch.autograd.Function):
    """All steps of one layer and direction. The results are the outputs, and the last states without the output."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        reverse: bool,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *initial: Tensor,
    ) -> Any:
        results = getattr(torch.ops.torchmdla, f"{name}_steps")(projected, initial, weight, bias, reverse)
        values = results if isinstance(results, tuple) else (results,)
        ctx.name, ctx.reverse, ctx.count = name, reverse, len(initial)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(projected, weight, bias, *initial, *values)
        last = [states[0 if reverse else -1].clone() for states in values[1 : CELLS[name].states]]
        return values[0], *last

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *last: Tensor | None) -> Any:
        projected, weight, bias, *rest = ctx.saved_tensors
        initial, values = rest[: ctx.count], rest[ctx.count :]
        if torch.is_grad_enabled():
            gradients = _differentiate(ctx, (projected, weight, bias, *initial), (gradient, *last))
            return None, None, *gradients
        others = [
            torch.zeros_like(state) if of_last is None else of_last
            for of_last, state in zip(last, initial[1:], strict=True)
        ]
        gradient = torch.zeros_like(values[0]) if gradient is None else gradient
        backward = getattr(torch.ops.torchmdla, f"{ctx.name}_steps_backward")
        results = backward(gradient, others, initial, weight, values, ctx.reverse)
        of_gates, of_initial = results[: -ctx.count], results[-ctx.count :]
        of_product = of_gates[-1].flatten(0, 1)
        outputs, first = values[0], initial[0].unsqueeze(0)
        previous = torch.cat([outputs[1:], first] if ctx.reverse else [first, outputs[:-1]])
        of_weight = torch.mm(of_product.t(), previous.flatten(0, 1))
        of_bias = None if bias is None else of_product.sum(0)
        return None, None, of_gates[0], of_weight, of_bias, *of_initial


def _differentiate(ctx: Any, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> Sequence[Any]:
    """Return the gradients of the inputs by operators that can be differentiated again."""
    # Views part inputs that are the same tensor.
    apart: list[Any] = [x if x is None else x.view_as(x) for x in inputs]
    projected, weight, bias, *initial = apart
    (outputs, *_), (_, *last) = run_steps(CELLS[ctx.name], projected, initial, weight, bias, ctx.reverse)
    pairs = [(x, of) for x, of in zip((outputs, *last), gradients, strict=True) if of is not None]
    wanted = [k for k, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
    results = torch.autograd.grad(
        [x for x, _ in pairs],
        [apart[k] for k in wanted],
        [of for _, of in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_place = dict(zip(wanted, results, strict=True))
    return [by_place.get(k) for k in range(len(inputs))]
