"""LLVM's attributes of generated functions."""

from __future__ import annotations

from torchmdla.compiler.program import Program

# The processor that every feature is added to, by architecture.
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}


def function_attributes(program: Program, *own: str) -> str:
    """LLVM's target attributes of generated functions, behind what attributes they have of their ``own``.

    Features are named one by one on top of the architecture's baseline, because a processor's name promises more than
    a virtual machine may offer.
    """
    target, items = program.target, [*own, 'passthrough = [["prefer-vector-width", "512"]]']
    baseline = _BASELINES.get(target.triple.split("-")[0])
    if baseline:
        items.append(f'target_cpu = "{baseline}"')
    if target.cpu:
        items.append(f'tune_cpu = "{target.cpu}"')
    features = [f'"{name}"' for name in target.features.split(",") if name.startswith("+")]
    if features:
        items.append(f"target_features = #llvm.target_features<[{', '.join(features)}]>")
    return f"attributes {{{', '.join(items)}}}"
