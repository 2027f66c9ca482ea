"""Names of layers, stored in the attribute ``layer_name = "L<n>-<op>-<k>"`` of every op."""

from __future__ import annotations

from torch_mlir import ir

from torchmdla.aten.calls import LAYER_NAME, layer_name, layers
from torchmdla.aten.schemas import by_op


def layer_names(module: ir.Module) -> list[str]:
    """Name every layer of every function, in place, and return the names in order.

    A layer is an op of the dialect other than ``aten.constant``. ``L3-relu-1`` is the fourth layer of its function and
    the second relu. Existing names are replaced.

    Raises:
        AtenError: a function has control flow.
    """
    names = []
    for function in (op.operation for op in module.body.operations if op.operation.name == "func.func"):
        if not len(function.regions[0].blocks):
            continue
        counts: dict[str, int] = {}
        for number, op in enumerate(layers(function)):
            base = by_op()[op.name].base
            names.append(layer_name(number, base, counts.get(base, 0)))
            counts[base] = counts.get(base, 0) + 1
            with module.context:
                op.attributes[LAYER_NAME] = ir.StringAttr.get(names[-1])
    return names
