"""LLVM's attributes of generated functions."""

from __future__ import annotations

from torchmdla.compiler.program import Program

# The processor that every feature is added to, by architecture.
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}


def function_attributes(program: Program, is_kernel: bool = True) -> str:
    """Return LLVM's attributes of generated functions: of kernels, or of functions that call kernels.

    The engine adds a function to each of the second kind that calls it; nothing else does, and no copy of it belongs
    there. LLVM's vectoriser of straight code takes time that grows with the square of a block's length, has nothing to
    find there, and leaves functions without implicit floats alone.

    Features are named one by one on top of the architecture's baseline, because a processor's name promises more than
    a virtual machine may offer.
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
