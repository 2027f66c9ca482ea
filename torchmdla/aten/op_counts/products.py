"""Operation counts of matrix products, contractions, attention, and recurrent cells and networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.elementwise import GELU, SIGMOID
from torchmdla.aten.op_counts.kinds import Counts, Rule, times, total
from torchmdla.aten.op_counts.normalisation import norm_counts
from torchmdla.aten.op_counts.reductions import softmax


def _product(left: str) -> Rule:
    """Return the rule for a product of matrices or vectors; the depth is the last size of ``left``."""
    return lambda call: {"MAC": call.out.numel * _depth(call[left])}


def _depth(left: Tensor) -> int:
    return left.shape[-1] if left.shape else 1


def _added_product(left: str) -> Rule:
    """Return the rule for ``beta · self + alpha · (left @ right)``."""

    def rule(call: Call) -> Counts:
        scales = sum(call[name] != 1 for name in ("beta", "alpha"))
        added = 0 if call["beta"] == 0 else call.out.numel
        return total({"MAC": call.out.numel * _depth(call[left]), "+": added, "*": scales * call.out.numel})

    return rule


def linear(rows: int, weight: Tensor, bias: Tensor | None) -> Counts:
    """Return the counts of ``rows`` rows times a weight of shape [outputs, inputs]."""
    outputs = weight.numel // max(_depth(weight), 1)
    return total({"MAC": rows * weight.numel, "+": rows * outputs if bias is not None else 0})


def _linear(call: Call) -> Counts:
    return linear(call["input"].numel // max(_depth(call["input"]), 1), call["weight"], call["bias"])


def _bilinear(call: Call) -> Counts:
    first, second = _depth(call["input1"]), _depth(call["input2"])
    bias = call.out.numel if call["bias"] is not None else 0
    # Each output has first · second terms, which are summed over the second, then over the first.
    return total({"MAC": call.out.numel * (first * second + first), "+": bias})


def _einsum(call: Call) -> Counts:
    """Return the counts of an einsum, whose operands are joined from the left.

    An index is summed in the first step after which neither a later operand nor the result has it.
    """
    inputs, _, output = call["equation"].replace(" ", "").partition("->")
    subscripts = inputs.split(",")
    if "..." in inputs or "->" not in call["equation"]:
        subscripts, output = _explicit(subscripts, output, "->" in call["equation"], call["tensors"])
    sizes: dict[str, int] = {}
    for subscript, tensor in zip(subscripts, call["tensors"], strict=True):
        for index, size in zip(subscript, tensor.shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    joined, steps = set(subscripts[0]), []
    for number, subscript in enumerate(subscripts[1:], start=2):
        steps.append({"MAC": math.prod(sizes[index] for index in joined | set(subscript))})
        later = set(output).union(*subscripts[number:])
        joined = (joined | set(subscript)) & later
    if len(subscripts) == 1:
        summed = joined - set(output)
        steps.append({"+": math.prod(sizes[index] for index in joined) if summed else 0})
    return total(*steps)


def _explicit(
    subscripts: Sequence[str], output: str, has_output: bool, tensors: Sequence[Tensor]
) -> tuple[list[str], str]:
    """Return the equation with a letter for every dimension of an ellipsis, and with its result's indices."""
    free = list(map(chr, range(0x3B1, 0x3CA)))
    named = [subscript.replace("...", "") for subscript in subscripts]
    ranks = [len(tensor.shape) - len(name) for name, tensor in zip(named, tensors, strict=True)]
    widest = "".join(free[: max(ranks)]) if any("..." in subscript for subscript in subscripts) else ""
    full = [
        subscript.replace("...", widest[len(widest) - rank :] if rank else "")
        for subscript, rank in zip(subscripts, ranks, strict=True)
    ]
    if has_output:
        return full, output.replace("...", widest)
    letters = "".join(named)
    return full, widest + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))


def _tensordot(call: Call) -> Counts:
    return {"MAC": call.out.numel * math.prod(call["self"].shape[dim] for dim in call["dims_self"])}


def attention(batch: int, queries: int, keys: int, depth: int, values: int) -> Counts:
    """Return the counts of scaled dot-product attention.

    It computes products of ``queries`` × ``keys`` of ``depth``, a softmax, and their mix of ``values`` columns.
    """
    scores = batch * queries * keys
    return total({"MAC": scores * (depth + values), "*": scores}, softmax(scores, batch * queries))


def _scaled_dot_product_attention(call: Call) -> Counts:
    *batch, queries, depth = call["query"].shape
    keys, values = call["key"].shape[-2], call["value"].shape[-1]
    scores = math.prod(batch) * queries * keys
    mask = call.arguments.get("attn_mask")
    masked = {} if mask is None else {"+" if mask.is_float else "?": scores}
    causal = {"?": scores} if call.arguments.get("is_causal") is True else {}
    return total(attention(math.prod(batch), queries, keys, depth, values), masked, causal)


def _multi_head(batch: int, length: int, width: int, heads: int, weights: Sequence[Any]) -> Counts:
    """Return the counts of the input and output projections and of the attention between them.

    Each of ``weights`` is a pair of weight and bias.
    """
    projections = [linear(batch * length, weight, bias) for weight, bias in weights]
    head = width // heads
    return total(*projections, attention(batch * heads, length, length, head, head))


def _native_multi_head_attention(call: Call) -> Counts:
    batch, length, width = call["query"].shape
    pairs = [(call["qkv_weight"], call["qkv_bias"]), (call["proj_weight"], call["proj_bias"])]
    return _multi_head(batch, length, width, call["num_head"], pairs)


def _transformer_encoder_layer(call: Call) -> Counts:
    batch, length, width = call["src"].shape
    rows, hidden = batch * length, call["ffn_weight_1"].shape[0]
    pairs = [(call["qkv_weight"], call["qkv_bias"]), (call["proj_weight"], call["proj_bias"])]
    activation = times(rows * hidden, GELU if call["use_gelu"] else {">": 1})
    return total(
        _multi_head(batch, length, width, call["num_heads"], pairs),
        linear(rows, call["ffn_weight_1"], call["ffn_bias_1"]),
        activation,
        linear(rows, call["ffn_weight_2"], call["ffn_bias_2"]),
        times(2, norm_counts(rows * width, rows, weight=True, bias=True)),
        {"+": 2 * rows * width},  # the residuals
    )


# --- recurrent cells and networks: products with weights, gates, and the state's update ---------------------------

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
    **dict.fromkeys(("mm", "_int_mm", "bmm", "mv"), _product("self")),
    "matmul": _product("self"),
    "dot": lambda call: {"MAC": call["self"].numel},
    "outer": lambda call: {"*": call.out.numel},
    "addmm": _added_product("mat1"),
    "addmv": _added_product("mat"),
    "baddbmm": _added_product("batch1"),
    "addbmm": lambda call: {"MAC": call["batch1"].numel * call["batch2"].shape[2], "+": call.out.numel},
    "linear": _linear,
    "bilinear": _bilinear,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "scaled_dot_product_attention": _scaled_dot_product_attention,
    "_native_multi_head_attention": _native_multi_head_attention,
    "_transformer_encoder_layer_fwd": _transformer_encoder_layer,
    **{f"{kind}_cell": _cell(kind) for kind in _UPDATES},
    **{f"{kind}.input": _network(kind) for kind in _UPDATES},
}
