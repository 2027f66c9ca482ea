"""Table of all rules, and the number of elements that an op reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts import (
    elementwise,
    losses,
    moving,
    normalisation,
    products,
    reductions,
    windows,
)
from torchmdla.aten.op_counts.kinds import Counts, Rule, total, words
from torchmdla.aten.schemas import OpSchema

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **products.RULES,
    **windows.RULES,
    **normalisation.RULES,
    **losses.RULES,
    **moving.RULES,
}

# Lookup ops read only some elements of an argument: the argument's name, and the number of its elements read.
_LOOKUPS: Mapping[str, tuple[str, Callable[[Call], int]]] = {
    "embedding": ("weight", lambda call: call.out.numel),
    "index_select": ("self", lambda call: call.out.numel),
    "gather": ("self", lambda call: call.out.numel),
    "index": ("self", lambda call: call.out.numel),
    "take_along_dim": ("self", lambda call: call.out.numel),
    "nll_loss": ("self", lambda call: call["target"].numel),
    "nll_loss_nd": ("self", lambda call: call["target"].numel),
    "nll_loss_forward": ("self", lambda call: call["target"].numel),
    # These ops read only the sizes of their argument.
    **{
        name: ("self", lambda call: 0)
        for name in (
            *words("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"),
            *moving.METADATA,
        )
    },
}


@dataclass(frozen=True)
class Work:
    """Elements that one op reads and writes, and the operations that it computes.

    ``read`` has the number of elements read of each tensor argument, by value name. An argument that is used twice is
    read once. ``written`` is the number of elements of the results. ``counts`` has the operations by kind, or None for
    an op without a rule.
    """

    read: Mapping[str, int] = field(default_factory=dict)
    written: int = 0
    counts: Counts | None = None


def rule_of(schema: OpSchema) -> Rule | None:
    """Return the rule for an op, or None if it has no rule."""
    overload = schema.schema.overload_name or "default"
    base = schema.base
    names = [f"{base}.{overload}", base]
    if base.endswith("_") and not base.endswith("__"):
        names += [f"{base[:-1]}.{overload}", base[:-1]]
    return next((RULES[name] for name in names if name in RULES), moving.nothing if schema.is_view else None)


def work_of(call: Call) -> Work:
    """Return the elements that an op reads and writes, and the operations that it computes."""
    rule = rule_of(call.schema)
    counts = None if rule is None else total(rule(call))
    if is_view(call):
        return Work(counts=counts)
    read = {tensor.name: tensor.numel for tensor in call.inputs}
    base = call.schema.base.rstrip("_")
    if base in _LOOKUPS:
        name, elements = _LOOKUPS[base]
        looked_up = call.arguments.get(name)
        if isinstance(looked_up, Tensor):
            read[looked_up.name] = min(elements(call), looked_up.numel)
    return Work(read, sum(tensor.numel for tensor in call.outputs), counts)


def is_view(call: Call) -> bool:
    """Return whether the op touches no data: its results alias the elements of its argument."""
    if not call.schema.is_view or rule_of(call.schema) is not moving.nothing:
        return False
    first = call.inputs[0].element if call.inputs else ""
    return all(tensor.element == first for tensor in call.outputs)
