"""Constant tensors, hidden from the Torch dialect's folders.

Upstream folds operators of constant tensors while it lowers them, and some results are wrong. A negative integer
combined with a tensor of floats becomes a number near 2⁶⁴. ``sign`` changes sides. Therefore constants are arguments
while the Torch dialect is lowered. They become constants again in linalg, whose folders are right::

    %0 = torch.aten.full %sizes, %int-1, …      →   @forward(…, %c: !torch.vtensor<[2,3],f32>)
                                                →   %cst = arith.constant dense<-1.0> : tensor<2x3xf32>
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from torchmdla.compiler.mlir import forward_of, ops_named

_LITERAL = "torch.vtensor.literal"

# Index of the operand that an operator fills a tensor with.
_FILLS: Mapping[str, int] = {
    "torch.aten.full": 1,
    "torch.aten.full_like": 1,
    "torch.aten.new_full": 2,
    "torch.aten.fill.Scalar": 1,
    "torch.aten.scalar_tensor": 0,
    "torch.aten.tensor.int": 0,
    "torch.aten.tensor.float": 0,
    "torch.aten.tensor.bool": 0,
    "torch.prim.NumToTensor.Scalar": 0,
}
# Number that an operator fills a tensor with.
_NUMBERS: Mapping[str, int] = {
    f"torch.aten.{name}": number
    for number, names in enumerate((("zeros", "zeros_like", "new_zeros"), ("ones", "ones_like", "new_ones")))
    for name in names
}

_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,]*)\],([a-z]+\d+)>")


def hide(module: ir.Module) -> list[Any]:
    """Replace the constant tensors of ``@forward``, in the Torch dialect and in place, by arguments.

    Returns:
        The values of the last arguments, in order, as attributes of the builtin dialect.
    """
    function = forward_of(module)
    block = function.regions[0].blocks[0]
    hidden = []
    for op in ops_named(function, {_LITERAL, *_FILLS, *_NUMBERS}):
        value = _value(op)
        if value is not None and op.parent == function:
            op.results[0].replace_all_uses_with(block.add_argument(op.results[0].type, op.location))
            op.erase()
            hidden.append(value)
    _update_type(function)
    return hidden


def restore(
    module: ir.Module,
    hidden: list[Any],
    constant: Callable[[Any], Any] = lambda value: arith.ConstantOp(value.type, value).result,
) -> None:
    """Replace the arguments that :func:`hide` has added, after the lowering and in place, by constants.

    Args:
        module: the module.
        hidden: the values of :func:`hide`.
        constant: function that returns the constant tensor of a value, in linalg on tensors by default.
    """
    function = forward_of(module)
    block = function.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        for value in reversed(hidden):
            argument = list(block.arguments)[-1]
            if next(iter(argument.uses), None) is not None:
                argument.replace_all_uses_with(constant(value))
            block.erase_argument(len(block.arguments) - 1)
    _update_type(function)


def _update_type(function: Any) -> None:
    arguments = [argument.type for argument in function.regions[0].blocks[0].arguments]
    kind = ir.FunctionType.get(arguments, list(function.type.results))
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def _value(op: Any) -> Any | None:
    """Return the value of a constant tensor; None if the value or its sizes are unknown."""
    if op.name == _LITERAL:
        text = re.sub(r"(?<=[x<])si(?=\d+>$)", "i", str(op.attributes["value"]))
        return None if text.startswith("dense_resource") else ir.Attribute.parse(text)
    match = _TENSOR.fullmatch(str(op.results[0].type))
    number = _NUMBERS[op.name] if op.name in _NUMBERS else _number(op.operands[_FILLS[op.name]])
    if match is None or number is None:
        return None
    element = ir.Type.parse(match[2].removeprefix("s"))
    splat = _element(number, element)
    if splat is None:
        return None
    sizes = [int(size) for size in match[1].split(",") if size]
    return ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get(sizes, element), splat)


def _number(value: Any) -> float | int | None:
    """Return the value of a constant number of the Torch dialect, or None."""
    op = value.owner if isinstance(value, ir.OpResult) else None
    if op is None or not op.name.startswith("torch.constant.") or "value" not in op.attributes:
        return None
    attribute = op.attributes["value"]
    return attribute.value if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr) else None


def _element(number: float | int, element: ir.Type) -> Any | None:
    """Return ``number`` as PyTorch converts it; None if PyTorch leaves the conversion to the processor."""
    if not isinstance(element, ir.IntegerType):
        return ir.FloatAttr.get(element, float(number))
    if element.width == 1:
        return ir.BoolAttr.get(bool(number))
    if not math.isfinite(number):
        return None
    half = 1 << (element.width - 1)
    return ir.IntegerAttr.get(element, (int(number) + half) % (2 * half) - half)
