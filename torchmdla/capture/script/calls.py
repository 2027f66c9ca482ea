"""Python expressions and functions for the operators that Python runs itself."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchmdla.importer.schemas import find_schema
from torchmdla.script.operators import OPERATORS, text_of

# Expressions that have the operators' results. The operands are names or literals.
EXPRESSIONS: Mapping[str, str] = {
    **dict.fromkeys(("aten::len.t", "aten::len.any", *(f"aten::len.Dict_{key}" for key in ("str", "int"))), "len({0})"),
    **{
        f"aten::{name}.{kind}": f"{{0}} {symbol} {{1}}"
        for name, symbol in (("lt", "<"), ("gt", ">"), ("le", "<="), ("ge", ">="), ("eq", "=="), ("ne", "!="))
        for kind in ("int", "float", "str")
    },
    **{f"aten::{name}.float": f"{{0}} {symbol} {{1}}" for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*"))},
    **{f"aten::{name}.bool": f"{{0}} {symbol} {{1}}" for name, symbol in (("__and__", "and"), ("__or__", "or"))},
    "aten::__not__": "not {0}",
    "aten::append.t": "append({0}, {1})",
    "aten::Bool.int": "{0} != 0",
    "aten::__contains__.str": "{1} in {0}",
    "aten::__contains__.int": "{1} in {0}",
    "aten::keys.str": "list({0})",
    "aten::dim": "{0}.dim()",
    "aten::size": "list({0}.shape)",
    "prim::device": "{0}.device",
    "prim::unchecked_cast": "{0}",
    "prim::unchecked_unwrap_optional": "{0}",
    "prim::TupleIndex": "{0}[{1}]",
    "prim::IfThenElse": "({1} if {0} else {2})",
    "aten::is_grad_enabled": "is_grad_enabled()",
}


def function_of(op: str) -> Callable[..., Any]:
    """Return the function that runs an operator, with the arguments that are keywords in its schema by name.

    Raises:
        NotImplementedError: neither PyTorch nor the language has the operator.
    """
    function = _FUNCTIONS.get(op) or OPERATORS.get(op)
    if function is not None:
        return function
    name, _, overload = op.partition(".")
    try:
        return torch._C._get_operation_overload(name, overload)[0]  # type: ignore[no-any-return]
    except RuntimeError:
        raise NotImplementedError(f"the operator {op} is unknown to this version of PyTorch") from None


def keywords_of(op: str) -> tuple[str, ...]:
    """Return the names of an operator's arguments that are keywords, which come last."""
    if op in _FUNCTIONS or op in OPERATORS or (schema := find_schema(op)) is None:
        return ()
    return tuple(argument.name for argument in schema.arguments if argument.kwarg_only)


def _print(*values: Any) -> None:
    print(*map(text_of, values))


def _sort(values: list[Any], reverse: bool) -> None:
    values.sort(reverse=reverse)


def _wait(future: Any) -> Any:
    return future.wait()


def _manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "prim::Print": _print,
    "aten::warn": lambda message, level: warnings.warn(message, stacklevel=level),
    "aten::sort.any": _sort,
    "aten::sorted.any": sorted,
    "aten::wait": _wait,
    "aten::backward": lambda tensor, gradient, retain, create: tensor.backward(gradient, retain, create),
    "aten::set_grad_enabled": lambda on: torch._C._set_grad_enabled(on),
    "aten::is_grad_enabled": torch.is_grad_enabled,
    "aten::manual_seed": _manual_seed,
    "aten::device": torch.device,
    "aten::device.with_index": torch.device,
    "prim::type": lambda device: device.type,
    "prim::index": lambda device: device.index,
    "prim::id": lambda value: 0 if value is None else id(value),
    "prim::ModuleContainerIndex.list": lambda module, index: module._modules[str(index)],
    "prim::ModuleContainerIndex.dict": lambda module, key: module._modules[key],
    "prim::tolist": lambda tensor, dims, kind: tensor.tolist(),
    "prim::Uninitialized": lambda: None,
    "aten::is_scripting": lambda: True,
}


@functools.cache
def _tensor_printer() -> Callable[[torch.Tensor], str]:
    """Return libtorch's printer of tensors, or Python's where PyTorch has no interpreter."""
    try:
        graph = torch._C.parse_ir("graph(%x : Tensor):\n  %r : str = aten::str(%x)\n  return (%r)\n")
        return torch._C._create_function_from_graph("text", graph)
    except (AttributeError, RuntimeError):
        return str


@text_of.register(torch.Tensor)
def _(value: torch.Tensor) -> str:
    return _tensor_printer()(value)
