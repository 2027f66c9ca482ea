"""Operation counts of recurrent cells and networks: products with weights, gates, and the state's update."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.elementwise import SIGMOID
from torchmdla.aten.op_counts.kinds import Counts, Rule, times, total

# Counts per element of the hidden state and per step, without the products. The two products of each gate are added.
# For the candidate of a GRU, one of them is first multiplied by the reset gate. Activations and the new state follow.
_UPDATES: Mapping[str, Mapping[str, int]] = {
    "lstm": total({"+": 4}, times(3, SIGMOID), {"tanh": 2}, {"*": 2, "MAC": 1}),
    "gru": total({"+": 2, "MAC": 1}, times(2, SIGMOID), {"tanh": 1}, {"-": 1, "MAC": 1}),
    "rnn_tanh": {"+": 1, "tanh": 1},
    "rnn_relu": {"+": 1, ">": 1},
}
_GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _cell(kind: str) -> Rule:
    def rule(call: Call) -> Counts:
        hidden = call["hx"][0] if isinstance(call["hx"], list) else call["hx"]
        rows = hidden.numel // max(hidden.shape[-1], 1)
        weights = [tensor for tensor in (call["w_ih"], call["w_hh"], call["b_ih"], call["b_hh"]) if tensor is not None]
        return total(_products(rows, weights), times(hidden.numel, _UPDATES[kind]))

    return rule


def _network(kind: str) -> Rule:
    """Return the rule for every layer and direction at every step."""

    def rule(call: Call) -> Counts:
        value, weights = call["input"], call["params"]
        rows = value.numel // max(value.shape[-1], 1)
        # The first weight of each layer and direction is [gates · hidden, input]; the weights of the state follow.
        size = (4 if call["has_biases"] else 2) + _is_projected(kind, call)
        cells = [weights[start].shape[0] // _GATES[kind] for start in range(0, len(weights), size)]
        return total(_products(rows, weights), *(times(rows * hidden, _UPDATES[kind]) for hidden in cells))

    return rule


def _is_projected(kind: str, call: Call) -> bool:
    """Return whether each cell has one more weight, which projects its state."""
    if kind != "lstm":
        return False
    layers = call["num_layers"] * (2 if call["bidirectional"] else 1)
    return len(call["params"]) // layers in (3, 5)


def _products(rows: int, weights: list[Tensor]) -> Counts:
    """Return the counts of multiplying every row by every matrix and adding every bias."""
    matrices = sum(weight.numel for weight in weights if len(weight.shape) == 2)
    biases = sum(weight.numel for weight in weights if len(weight.shape) == 1)
    return total({"MAC": rows * matrices, "+": rows * biases})


RULES: Mapping[str, Rule] = {
    **{f"{kind}_cell": _cell(kind) for kind in _UPDATES},
    **{f"{kind}.input": _network(kind) for kind in _UPDATES},
}
