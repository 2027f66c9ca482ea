"""What to do about a reason for which something does not run compiled."""

from __future__ import annotations

import re

# An operator, a reason (both as regular expressions, which the first row that fits decides), and the advice.
_ADVICE = tuple(
    (re.compile(op), re.compile(reason), advice)
    for op, reason, advice in (
        ("^prim::PythonOp", "", "write it in TorchScript: Python runs between compiled groups"),
        (
            "nonzero|masked_select|unique|bincount|argwhere",
            "no such operator",
            "its result's size depends on the data: keep all elements, with torch.where(mask, x, 0)",
        ),
        (
            "^(?!aten::|prim::|$)",
            "no such operator",
            "write the custom operator with PyTorch's own, or teach the device: CONTRIBUTING.md, Add an operator",
        ),
        (
            "",
            "no such operator",
            "use operators of torchmdla.supported_ops(), or teach the device: CONTRIBUTING.md, Add an operator",
        ),
        ("", "dtype", "compute in float32 or float64: model.float(), x.float(); integers in int64 or int32"),
        ("dropout", "", "call model.eval() if this is inference"),
        ("", "with these arguments", "call it with other arguments if that is what you mean (model.eval())"),
        ("", "has effects", "write to a new tensor, draw random numbers in a place of their own"),
        ("", "writes through", "make a new tensor (torch.where, slice_scatter) in place of the write"),
        ("", "stands alone", "nothing: eager PyTorch is as fast here"),
        ("", "neither a tensor nor a number", "keep lists, dictionaries and objects out of the computation"),
        ("", "a loop changes", "make the integer a tensor, or write the loop out"),
        ("", "no part of a graph", "have it in what is scripted, traced or compiled: Python calls it between graphs"),
        ("", "dispatch mode", "call it outside of autocast, vmap and TorchDispatchMode"),
        ("", "requires grad", "call it under torch.no_grad() if this is inference"),
        ("", "forward-mode", "call it without forward-mode gradients if this is inference"),
        ("", "plain strided CPU", "give it dense tensors on the CPU"),
        ("", "being compiled", "nothing: it passes"),
        ("", "too many specialisations", "pad to fewer sizes, or torchmdla.enable(max_specialisations=…)"),
        ("", "reported an error", "see what eager PyTorch raises for these inputs"),
        ("", "switched off", "torchmdla.enable()"),
        ("", "differs between sizes", "pad to a few sizes, or compute without the size as a value at this place"),
        ("", "", "TORCHMDLA_DUMP=dump keeps what the compiler was given and made: docs/debugging.md"),
    )
)


def advice(op: str, reason: str) -> str:
    """What to do about ``reason``, said of ``op`` (empty where it is of no operator)."""
    return next(text for of, about, text in _ADVICE if of.search(op) and about.search(reason))
