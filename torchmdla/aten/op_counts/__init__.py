"""Operations of an op by kind, and the elements that it reads, from the sizes of its operands.

The rules are tables, one module for each op family. The key of a rule is the schema's name without namespace. A key
with an overload (``max.dim``) applies to that overload, a key without one to all overloads. An in-place op has the rule
of its functional counterpart. ``docs/aten.md`` has the conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchmdla.aten.calls import Call, Tensor
from torchmdla.aten.op_counts import elementwise, products, reductions, windows
from torchmdla.aten.op_counts.kinds import KINDS, Rule, each
from torchmdla.aten.schemas import OpSchema

__all__ = ["KINDS", "counts_of", "elements_read", "is_view", "rule_of"]

_RULES: Mapping[str, Rule] = {**elementwise.RULES, **reductions.RULES, **products.RULES, **windows.RULES}

# Ops that read only some elements of an argument: the argument's name, and the number of its elements read.
_LOOKUPS: Mapping[str, tuple[str, Callable[[Call], int]]] = {
    "embedding": ("weight", lambda call: call.out.numel),
    **dict.fromkeys(("index_select", "gather", "index", "take_along_dim"), ("self", lambda call: call.out.numel)),
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss_forward"), ("self", lambda call: call["target"].numel)),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), ("self", lambda call: 0)),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), ("self", lambda call: 0)),
    **dict.fromkeys(elementwise.METADATA, ("self", lambda call: 0)),
}


def rule_of(schema: OpSchema) -> Rule | None:
    """Return the rule for an op, or None if it has no rule."""
    overload = schema.schema.overload_name or "default"
    base = schema.base
    names = [f"{base}.{overload}", base]
    if base.endswith("_") and not base.endswith("__"):
        names += [f"{base[:-1]}.{overload}", base[:-1]]
    return next((_RULES[name] for name in names if name in _RULES), "" if schema.is_view else None)


def counts_of(call: Call) -> dict[str, int] | None:
    """Return the number of operations of each kind that an op computes, or None if it has no rule."""
    rule = rule_of(call.schema)
    if not rule:
        return None if rule is None else {}
    return dict(+(each(call.out.numel, rule) if isinstance(rule, str) else rule(call)))


def elements_read(call: Call) -> dict[str, int]:
    """Return the number of elements that an op reads of each argument; an argument that is used twice is read once."""
    read = {tensor.name: tensor.numel for tensor in call.inputs}
    if lookup := _LOOKUPS.get(call.schema.base.rstrip("_")):
        name, elements = lookup
        looked_up = call.arguments.get(name)
        if isinstance(looked_up, Tensor):
            read[looked_up.name] = min(elements(call), looked_up.numel)
    return read


def is_view(call: Call) -> bool:
    """Return whether the op touches no data: its results alias the elements of its argument."""
    if not call.schema.is_view or rule_of(call.schema) != "":
        return False
    first = call.inputs[0].element if call.inputs else ""
    return all(tensor.element == first for tensor in call.outputs)
