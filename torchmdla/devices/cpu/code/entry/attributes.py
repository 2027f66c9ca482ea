"""LLVM attributes of generated functions."""

from __future__ import annotations

from torchmdla.compiler.program import Program

# The baseline processor by architecture, to which features are added.
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}


def function_attributes(program: Program, is_kernel: bool = True) -> str:
    """Return the LLVM attributes of generated functions: of kernels, or of functions that call kernels.

    A function of the second kind is called only by a function that the engine adds, and should not be inlined there.
    LLVM's vectoriser of straight-line code finds nothing in such functions, but takes quadratic time in a block's
    length. It skips functions with ``noimplicitfloat``.

    Features are listed individually on top of the architecture's baseline. A processor's name promises features that a
    virtual machine may not offer.
    """
    target = program.target
    items = ['passthrough = [["prefer-vector-width", "512"]]']
    if not is_kernel:
        items = ["no_inline", 'passthrough = ["noimplicitfloat"]']
    baseline = _BASELINES.get(target.triple.split("-")[0])
    if baseline:
        items.append(f'target_cpu = "{baseline}"')
    if target.cpu:
        items.append(f'tune_cpu = "{target.cpu}"')
    features = [f'"{name}"' for name in target.features.split(",") if name.startswith("+")]
    if features:
        items.append(f"target_features = #llvm.target_features<[{', '.join(features)}]>")
    return f"attributes {{{', '.join(items)}}}"
