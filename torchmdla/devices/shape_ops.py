"""Operators on sizes and numbers, which devices do not compute.

The importer knows their results from the recorded run.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.devices.device import OpKind, OpSupport

_SHAPE = """
size size.int dim numel len.Tensor len.t is_floating_point is_complex
Int.Scalar Int.bool Float.Scalar Float.int Bool.int
add add.int sub sub.int mul mul.int div div.int floordiv floordiv.int remainder remainder.int neg.int
pow.int pow.int_to_int sqrt.int ceil.int floor.int __and__.bool __or__.bool __not__ __is__ __isnot__
eq.int ne.int lt.int le.int gt.int ge.int eq.bool ne.bool eq.int_list ne.int_list
__getitem__.t slice.t add.t mul.left_t
"""

_ITEM = "Int.Tensor Float.Tensor Bool.Tensor IntImplicit FloatImplicit ScalarImplicit item"

_PRIM_SHAPE = (
    "NumToTensor.Scalar NumToTensor.bool dtype device max.int min.int max.self_int min.self_int BroadcastSizes"
)


def entries(namespace: str, names: str, kind: OpKind) -> dict[str, OpSupport]:
    """Return table rows for ``names``, a list separated by white space."""
    return {f"{namespace}::{name}": OpSupport(kind) for name in names.split()}


SHAPE_OPS: Mapping[str, OpSupport] = {
    **entries("aten", _SHAPE, "shape"),
    **entries("prim", _PRIM_SHAPE, "shape"),
    **entries("aten", _ITEM, "item"),
}
