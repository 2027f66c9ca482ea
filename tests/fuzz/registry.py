"""Random calls of the operators that the cpu device supports, as text.

A call is based on a sample of the operator. One of the sample's sizes becomes ``n``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.programs.operators import operator

# Operators whose values do not alias others. Copies that eager does not make are not faults. The operators of
# ``quantized_decomposed`` are left out: they support few drawn arguments, and do not exist before Python imports them.
NAMES = sorted(name for name in SAMPLES if name.startswith("aten::") and operator(name) is not None)

_RECURRENT = re.compile(r"::(lstm|gru|rnn)_?")

# A function that returns the name of a tensor for an argument, from the sample and the required sizes as text.
Find = Callable[[Tensor, tuple[str, ...]], str]


def call(random: Random, find: Find) -> str:
    """Return a call of a random operator. ``find`` returns its tensors."""
    name = random.choice(NAMES)
    arguments = random.choice(SAMPLES[name])
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    lengths = sorted(_varied(name, tensors))
    # All sizes that are equal to the chosen one become n, so that products still fit. A call that fails is drawn again.
    varying = random.choice(lengths) if lengths and random.random() < 0.9 else None

    operands: list[str] = []

    def written(value: Any) -> str:
        if isinstance(value, Tensor):
            operands.append(find(value, tuple("n" if size == varying else str(size) for size in value.shape)))
            return operands[-1]
        if value == "cpu":  # Use the device of the program.
            return f"{operands[0]}.device"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(written, value))}]"
        if isinstance(value, float) and value in (float("inf"), -float("inf")):
            return f"float('{value}')"
        return repr(value)

    schema = operator(name)._schema.arguments
    parts = [
        f"{argument.name}={written(value)}" if argument.kwarg_only else written(value)
        for argument, value in zip(schema, arguments, strict=False)
    ]
    space, _, rest = name.partition("::")
    function = rest.partition(".")[0]
    # Factory functions create their tensor on the default device only if they are called by their name in torch.
    prefix = "torch" if not tensors and hasattr(torch, function) else f"torch.ops.{space}"
    return f"{prefix}.{function}({', '.join(parts)})"


def _varied(name: str, tensors: list[Tensor]) -> set[int]:
    """Return the sizes of an operator's sample that may be replaced by any size."""
    if _RECURRENT.search(name):  # Eager does not check whether states and weights fit, and reads out of bounds.
        return {size for size in tensors[0].shape if size != tensors[1].shape[0]}
    return {size for tensor in tensors for size in tensor.shape if size > 1}


def draw_like(sample: Tensor, sizes: tuple[str, ...]) -> str:
    """Return the text that draws a tensor like a sample, but of other sizes."""
    shape = "".join(f"{size}, " for size in sizes)
    if sample.dtype == torch.bool:
        return f"booleans({shape.removesuffix(', ')})"
    if not sample.is_floating_point():
        return f"integers({shape}high={int(sample.max()) + 1})"
    if float(sample.min()) >= 0:
        return f"positive({shape.removesuffix(', ')})"
    if sample.numel() > 2 and float(sample.abs().max()) <= 0.9:
        return f"between(-0.9, 0.9, {shape.removesuffix(', ')})"
    return f"normal({shape.removesuffix(', ')})"
