"""Advice on the reasons why something does not run compiled, or is compiled for each of its sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Regular expressions for an operator and a reason, and the advice. The first row that matches is used.
_Rows = tuple[tuple[re.Pattern[str], re.Pattern[str], str], ...]


def _rows(rows: Iterable[tuple[str, str, str]]) -> _Rows:
    return tuple((re.compile(op), re.compile(reason), advice) for op, reason, advice in rows)


# Prefix of the reasons why a group is compiled for each of its sizes.
_BETWEEN_SIZES = "it differs between sizes: "

_PAD = "pad to a few sizes"

_SIZES = _rows(
    ("", reason, advice)
    for reason, advice in (
        (
            "does not at the call's|conditions on sizes leave|must be equal",
            "let no condition or value of the program fix a size: a mask in place of `if x.size(0) > n`, inputs whose "
            f"sizes differ where the program lets them; or {_PAD}",
        ),
        (
            "bindings, roles, dtypes or layouts",
            f"give inputs of one dtype and memory format (x.contiguous()); or {_PAD}",
        ),
        (
            "sums and products|more than 64 bits|not a sum or product|not a polynomial|power of sizes|"
            "depends on \\w+ of sizes",
            "compute sizes by sums, products and whole divisions, or pad ahead to multiples of what they are divided "
            "by",
        ),
        (
            "values of a constant tensor|a constant depends|computed from the sizes ahead|several names",
            "have numbers that depend on a size as tensors: torch.arange(n, device=x.device), an input of its own",
        ),
        (
            "index .* of .* elements|elements are cut off",
            "see that slices, indices and crops lie inside of their tensors at all sizes",
        ),
        ("convolution without batch", "give the convolution a batch: x[None]"),
        ("padding is computed", "write the padding of the convolution as numbers, in place of 'same'"),
        (
            "made of the weights ahead",
            "resize or slice weights (position embeddings) at the most sizes ahead, and slice by the call's",
        ),
        (
            "no kernels \\(a scan, a sort, a loop\\)",
            f"cumsum, sort, topk and the like are compiled for each size: {_PAD}, or call them in a program of their "
            "own",
        ),
        (
            "which operations|how many operations|what it computes|share memory",
            f"the code has another structure at other sizes: have no loop over a size, no split into parts of it; or "
            f"{_PAD}",
        ),
        ("takes no sizes that vary", f"{_PAD}: this device compiles for each"),
        ("a quantised result", f"{_PAD}, or dequantise what the program returns"),
        ("shape function|neither an integer nor", f"{_PAD}, and report it: it is a gap of torchmdla's"),
        ("", f"{_PAD}, or torchmdla.enable(dynamic=False), which does not try"),
    )
)

_ADVICE = _rows(
    (
        ("", "^it runs on device", "nothing: it runs compiled, on another device than the first"),
        ("", "^it is not worth device", 'nothing, or name a second device: torchmdla.enable(device="npu,cpu")'),
        ("^prim::PythonOp", "", "write it in TorchScript: Python runs between compiled groups"),
        (
            "nonzero|masked_select|unique|bincount|argwhere",
            "no such operator|not part of a graph",
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
        ("", "gradients are recorded otherwise", "make the view inside of the torch.no_grad() that uses it"),
        ("", "is alone", "nothing: eager PyTorch is as fast here"),
        ("", "neither a tensor nor a number", "keep lists, dictionaries and objects out of the computation"),
        ("", "how long its result is", "nothing: eager computes it, and the groups behind it take any length"),
        ("", "a loop changes", "make the integer a tensor, or write the loop out"),
        (
            "",
            "run at once|runs it at once",
            "nothing, or compute it by other operators: it ends a graph, and the next one waits for it",
        ),
        ("", "not part of a graph", "have it in what is scripted, traced or compiled: Python calls it between graphs"),
        ("", "needs the package", "install it: nothing runs on this device without it"),
        ("", "dispatch mode", "call it outside of vmap and TorchDispatchMode"),
        ("", "requires grad", "call it under torch.no_grad() if this is inference"),
        ("", "forward-mode", "call it without forward-mode gradients if this is inference"),
        ("", "plain strided CPU", "give it dense tensors on the CPU"),
        ("", "being compiled", "nothing: it passes"),
        ("", "pass that forms groups failed", "report it: a fault of torchmdla's costs this graph its groups"),
        (
            "",
            "not authentic",
            "see that all machines have one secret or trusted keys, and who else can write to the store",
        ),
        ("", "^no answer within|^\\w+Error: ", "python -m torchmdla doctor asks the store; programs are compiled here"),
        ("", "too many specialisations", "pad to fewer sizes, or torchmdla.enable(max_specialisations=…)"),
        ("", "reported an error", "see what eager PyTorch raises for these inputs"),
        ("", "switched off", "torchmdla.enable()"),
        ("", "took less time than the compiled code", "nothing, or torchmdla.compile(…, tune=True)"),
        ("", "no package has code", "package the program with such inputs, too: docs/packages.md"),
        ("", "", "TORCHMDLA_DUMP=dump keeps what the compiler was given and made: docs/debugging.md"),
    )
)


def advice(op: str, reason: str) -> str:
    """Return the advice on ``reason`` for the operator ``op`` (empty if the reason has no operator)."""
    rows = _SIZES if reason.startswith(_BETWEEN_SIZES) else _ADVICE
    return next(text for of, about, text in rows if of.search(op) and about.search(reason))
