"""Operation counts of matrix products, contractions, attention, and recurrent cells and networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts.elementwise import GELU, SIGMOID
from torchmdla.aten.op_counts.kinds import Counts, Rule, each
from torchmdla.aten.op_counts.reductions import normalisation, softmax


def _depth(left: Tensor) -> int:
    return left.shape[-1] if left.shape else 1


def _product(call: Call) -> Counts:
    return each(call.out.numel * _depth(call["self"]), "MAC")


def _added_product(left: str) -> Rule:
    """Return the rule for ``beta · self + alpha · (left @ right)``."""

    def rule(call: Call) -> Counts:
        scales = sum(call[name] != 1 for name in ("beta", "alpha"))
        added = "+" if call["beta"] != 0 else ""
        return each(call.out.numel * _depth(call[left]), "MAC") + each(call.out.numel, added + " *" * scales)

    return rule


def _linear(call: Call) -> Counts:
    rows = call["input"].numel // max(_depth(call["input"]), 1)
    return each(rows * call["weight"].numel, "MAC") + _bias(call)


def _bilinear(call: Call) -> Counts:
    first, second = _depth(call["input1"]), _depth(call["input2"])
    # Each output has first · second terms, which are summed over the second, then over the first.
    return each(call.out.numel * (first * second + first), "MAC") + _bias(call)


def _bias(call: Call) -> Counts:
    return each(call.out.numel, "+" if call["bias"] is not None else "")


# Letters for the dimensions of an ellipsis, which are aligned at the right.
_ELLIPSIS = "".join(map(chr, range(0x3B1, 0x3CA)))


def _einsum(call: Call) -> Counts:
    """Return the counts of an einsum, whose operands are joined from the left.

    An index is summed in the first step after which neither a later operand nor the result has it.
    """
    inputs, arrow, output = call["equation"].replace(" ", "").partition("->")
    subscripts: list[str] = []
    sizes: dict[str, int] = {}
    for subscript, tensor in zip(inputs.split(","), call["tensors"], strict=True):
        rank = len(tensor.shape) - len(subscript.replace("...", ""))
        subscripts.append(subscript.replace("...", _ELLIPSIS[len(_ELLIPSIS) - rank :]))
        for index, size in zip(subscripts[-1], tensor.shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    letters = "".join(subscripts)
    results = set(output.replace("...", _ELLIPSIS) if arrow else _ELLIPSIS)
    if not arrow:
        results.update(letter for letter in letters if letters.count(letter) == 1)
    joined, counts = set(subscripts[0]), Counts()
    for number, subscript in enumerate(subscripts[1:], start=2):
        joined |= set(subscript)
        counts += each(math.prod(sizes[index] for index in joined), "MAC")
        joined &= results.union(*subscripts[number:])
    if len(subscripts) == 1 and not joined <= results:
        counts += each(math.prod(sizes[index] for index in joined), "+")
    return counts


def _tensordot(call: Call) -> Counts:
    return each(call.out.numel * math.prod(call["self"].shape[dim] for dim in call["dims_self"]), "MAC")


def _attention(batch: int, queries: int, keys: int, depth: int, values: int) -> Counts:
    """Return the counts of scaled dot-product attention.

    It computes products of ``queries`` × ``keys`` of ``depth``, a softmax, and their mix of ``values`` columns.
    """
    scores = batch * queries * keys
    return each(scores * (depth + values), "MAC") + each(scores, "*") + softmax(scores, batch * queries)


def _scaled_dot_product_attention(call: Call) -> Counts:
    *batch, queries, depth = call["query"].shape
    keys, values = call["key"].shape[-2], call["value"].shape[-1]
    mask = call.arguments.get("attn_mask")
    masked = "" if mask is None else "+" if mask.is_float else "?"
    causal = "?" if call.arguments.get("is_causal") is True else ""
    masks = each(math.prod(batch) * queries * keys, f"{masked} {causal}")
    return _attention(math.prod(batch), queries, keys, depth, values) + masks


def _flash_attention(call: Call) -> Counts:
    """Return the counts of attention, and of the logarithm of each row's sum of powers."""
    rows = math.prod(call["query"].shape[:-1])
    return _scaled_dot_product_attention(call) + each(rows, "log +")


def _flash_attention_gradients(call: Call) -> Counts:
    """Return the counts of the gradients of attention: five products, and weights computed again from scores."""
    rows, depth = math.prod(call["query"].shape[:-1]), call["query"].shape[-1]
    scores = rows * call["key"].shape[-2]
    mask = call.arguments.get("attn_mask")
    hidden = f"{'' if mask is None else '+'} {'?' if call.arguments.get('is_causal') is True else ''}"
    weights = each(scores, f"* - exp {hidden}")
    return each(scores * depth * 5 + rows * depth, "MAC") + weights + each(scores, "- * *")


def _multi_head(call: Call, value: Tensor, heads: int) -> Counts:
    """Return the counts of the input and output projections of ``value`` and of the attention between them."""
    batch, length, width = value.shape
    weights = (call[name] for name in ("qkv_weight", "qkv_bias", "proj_weight", "proj_bias"))
    head = width // heads
    return _projections(batch * length, weights) + _attention(batch * heads, length, length, head, head)


def _projections(rows: int, weights: Iterable[Tensor | None]) -> Counts:
    """Return the counts of multiplying every row by every matrix and adding every bias."""
    counts = Counts()
    for weight in weights:
        if weight is not None:
            counts += each(rows * weight.numel, "MAC" if len(weight.shape) == 2 else "+")
    return counts


def _encoder_layer(call: Call) -> Counts:
    batch, length, width = call["src"].shape
    rows, hidden = batch * length, call["ffn_weight_1"].shape[0]
    weights = (call[name] for name in ("ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2"))
    return (
        _multi_head(call, call["src"], call["num_heads"])
        + _projections(rows, weights)
        + each(rows * hidden, GELU if call["use_gelu"] else ">")
        + normalisation(2 * rows * width, 2 * rows)
        + each(2 * rows * width, "+")  # the residuals
    )


# --- recurrent cells and networks: products with weights, gates, and the state's update ---------------------------

# Number of gates, and kinds for each element of the hidden state and each step, without the products. The two products
# of each gate are added. For the candidate of a GRU, one of them is first multiplied by the reset gate. Activations and
# the new state follow.
_CELLS: Mapping[str, tuple[int, str]] = {
    "lstm": (4, f"+ + + + {SIGMOID} {SIGMOID} {SIGMOID} tanh tanh * * MAC"),
    "gru": (3, f"+ + MAC {SIGMOID} {SIGMOID} tanh - MAC"),
    "rnn_tanh": (1, "+ tanh"),
    "rnn_relu": (1, "+ >"),
}


def _cell(update: str) -> Rule:
    def rule(call: Call) -> Counts:
        hidden = call["hx"][0] if isinstance(call["hx"], list) else call["hx"]
        weights = (call[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh"))
        return _projections(hidden.numel // max(_depth(hidden), 1), weights) + each(hidden.numel, update)

    return rule


def _network(gates: int, update: str) -> Rule:
    """Return the rule for every layer and direction at every step."""

    def rule(call: Call) -> Counts:
        value, weights = call["input"], call["params"]
        rows = value.numel // max(_depth(value), 1)
        # The first weight of each layer and direction is [gates · hidden, input]; the weights of the state follow.
        size = len(weights) // (call["num_layers"] * (2 if call["bidirectional"] else 1))
        hidden = sum(weight.shape[0] // gates for weight in weights[::size])
        return _projections(rows, weights) + each(rows * hidden, update)

    return rule


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "_int_mm", "bmm", "mv", "matmul"), _product),
    "dot": lambda call: each(call["self"].numel, "MAC"),
    "outer": "*",
    "addmm": _added_product("mat1"),
    "addmv": _added_product("mat"),
    "baddbmm": _added_product("batch1"),
    "addbmm": lambda call: each(call["batch1"].numel * call["batch2"].shape[2], "MAC") + each(call.out.numel, "+"),
    "linear": _linear,
    "bilinear": _bilinear,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "scaled_dot_product_attention": _scaled_dot_product_attention,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_attention_gradients,
    "_native_multi_head_attention": lambda call: _multi_head(call, call["query"], call["num_head"]),
    "_transformer_encoder_layer_fwd": _encoder_layer,
    **{f"{kind}_cell": _cell(update) for kind, (_, update) in _CELLS.items()},
    **{f"{kind}.input": _network(*cell) for kind, cell in _CELLS.items()},
}
