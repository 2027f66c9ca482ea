"""Calls of every operator that the cpu device takes, as text, after their samples; a size of them becomes ``n``."""

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

# Of values that share what they read or write with nobody. Copies that eager does not make are not what is looked for,
# nor is ``quantized_decomposed``, which takes hardly anything that is drawn, and nothing before Python has imported it.
NAMES = sorted(name for name in SAMPLES if name.startswith("aten::") and operator(name) is not None)

_RECURRENT = re.compile(r"::(lstm|gru|rnn)_?")

# What finds a tensor for a place: sample and the sizes that it should have, as text, to a name.
Find = Callable[[Tensor, tuple[str, ...]], str]


def call(random: Random, find: Find) -> str:
    """A call of an operator drawn at random. ``find`` gives the tensors."""
    name = random.choice(NAMES)
    arguments = random.choice(SAMPLES[name])
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    lengths = sorted(_varied(name, tensors))
    # Every size that was equal to one is n then: products still fit, and what does not is drawn anew.
    varying = random.choice(lengths) if lengths and random.random() < 0.9 else None

    found: list[str] = []

    def written(value: Any) -> str:
        if isinstance(value, Tensor):
            found.append(find(value, tuple("n" if size == varying else str(size) for size in value.shape)))
            return found[-1]
        if value == "cpu":  # Whatever device the program is on.
            return f"{found[0]}.device"
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
    # What makes a tensor of nothing makes it on the default device by its own name alone.
    prefix = "torch" if not tensors and hasattr(torch, function) else f"torch.ops.{space}"
    return f"{prefix}.{function}({', '.join(parts)})"


def _varied(name: str, tensors: list[Tensor]) -> set[int]:
    """The sizes of an operator's sample that may be any."""
    if _RECURRENT.search(name):  # Eager does not look whether states and weights fit, and reads beside them.
        return {size for size in tensors[0].shape if size != tensors[1].shape[0]}
    return {size for tensor in tensors for size in tensor.shape if size > 1}


def draw_like(sample: Tensor, sizes: tuple[str, ...]) -> str:
    """What draws a tensor like a sample, of other sizes."""
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
