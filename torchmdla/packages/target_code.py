"""A specialisation's code for a target, with what its packs make of constants."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchmdla import _C, devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Target
from torchmdla.packages.packing import packed
from torchmdla.packages.specialisation import PackedWeight, Specialisation, TargetCode
from torchmdla.packages.weights import Weights


def runs_here(target: Target, device: devices.Device) -> bool:
    """Whether this machine has what code for ``target`` needs."""
    return set(device.features(target)) <= set(device.features(device.target_for("native")))


def code_of(one: Specialisation, artifact: Artifact, device: devices.Device, weights: Weights | None) -> TargetCode:
    """The code of ``one``. What its packs make of constants is added to ``weights``, if there are any; it must run here
    then.

    Raises:
        CompileError: the artifact does not load, or a pack reports an error.
    """
    packs = artifact.manifest.packs
    if weights is None:
        return TargetCode(artifact, [None] * len(packs))
    constants = one.constants
    buffers = packed(device.load(artifact), artifact.manifest, constants)
    return TargetCode(
        artifact,
        [
            None if buffer is None else _packed(buffer, [constants[place] for place in pack.arguments], weights)
            for pack, buffer in zip(packs, buffers, strict=True)
        ],
    )


def _packed(buffer: torch.Tensor, parameters: Sequence[torch.Tensor], weights: Weights) -> PackedWeight:
    number = weights.add(buffer)
    return PackedWeight(weights.infos[number].offset, _C.content_hash(buffer), tuple(map(_C.content_hash, parameters)))
