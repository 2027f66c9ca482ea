"""Operation counts of ops that move, view or fill data, or compute with sizes and other numbers."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.aten.calls import Call
from torchmdla.aten.op_counts.kinds import Counts, Rule, words
from torchmdla.importer import schemas


def nothing(call: Call) -> Counts:
    """Return zero counts."""
    return {}


def _dropout(call: Call) -> Counts:
    """Return the counts of dropout.

    In training, elements are scaled and a mask is applied. Drawing the mask is not counted.
    """
    if not call["train"]:
        return {}
    return {"*": call.out.numel, "?": call.out.numel}


def _alpha_dropout(call: Call) -> Counts:
    return {"MAC": call.out.numel, "?": call.out.numel} if call["train"] else {}


def _accumulation(call: Call) -> Counts:
    """Return the counts of ``index_put``, which adds its values if ``accumulate`` is set."""
    return {"+": call["values"].numel} if call["accumulate"] else {}


# Ops that read only a tensor's type, without the namespace.
METADATA = frozenset(name.partition("::")[2] for name in schemas.METADATA)

_MOVING = """
clone _to_copy copy cat concat stack hstack vstack repeat repeat_interleave tile roll flip rot90 tril triu
constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle
embedding index_select gather index take_along_dim diag_embed select_scatter slice_scatter scatter
zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty
arange linspace eye scalar_tensor fill zero lift_fresh lift_fresh_copy
"""

_NUMBERS = """
item Int Float Bool IntImplicit FloatImplicit ScalarImplicit floordiv __not__ __is__ __isnot__ __getitem__ slice.t add.t
mul.left_t
"""

# Arithmetic on sizes. Its names are shared with ops on tensors, so the overload is required.
_ON_NUMBERS = """
add.default sub.default mul.default div.default floordiv.default remainder.default
add.int sub.int mul.int div.int remainder.int neg.int pow.int pow.int_to_int sqrt.int ceil.int floor.int
__and__.bool __or__.bool eq.int ne.int lt.int le.int gt.int ge.int eq.bool ne.bool eq.int_list ne.int_list
"""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*words(_MOVING), *words(_NUMBERS), *words(_ON_NUMBERS), *METADATA), nothing),
    "dropout": _dropout,
    "native_dropout": lambda call: {"*": call.out.numel, "?": call.out.numel},
    "feature_dropout": _dropout,
    "alpha_dropout": _alpha_dropout,
    "index_put": _accumulation,
    "_index_put_impl": _accumulation,
    "scatter_add": lambda call: {"+": call["src"].numel},
    "index_add": lambda call: {"MAC": call["source"].numel},
    "embedding_dense_backward": lambda call: {"+": call["grad_output"].numel},
    "select_backward": nothing,
    "slice_backward": nothing,
}
