"""Code of a specialisation for a target, with the packed constants."""

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
    """Return whether this machine has the features that code for ``target`` needs."""
    return set(device.features(target)) <= set(device.features(device.target_for("native")))


def code_of(
    specialisation: Specialisation, artifact: Artifact, device: devices.Device, weights: Weights | None
) -> TargetCode:
    """Return the code of a specialisation for a target.

    If ``weights`` is given, the packs run on the constants and their outputs are added to it. The code must then run on
    this machine.

    Raises:
        CompileError: the artifact does not load, or a pack reports an error.
    """
    packs = artifact.manifest.packs
    if weights is None:
        return TargetCode(artifact, [None] * len(packs))
    constants = specialisation.constants
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
