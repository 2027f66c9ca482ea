"""Device that converts programs to levels and returns the names of their operations instead of code.

A compiler process converts them, because upstream's passes end the process on some programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import Device, LoadedCode, OpSupport
from torchmdla.devices.levels import Layouts


class LevelProbe(Device):
    """Device whose targets are levels: the features of a target are a level and the layouts (:func:`target_of`)."""

    # A place, from which any process imports it without a registration.
    name = "torchmdla.testing.level_probe:LevelProbe"
    ops: Mapping[str, OpSupport] = {}
    dtypes = frozenset[str]()

    def target(self) -> Target:
        return target_of("torch", Layouts())

    def lower(self, program: Program) -> Artifact:
        from torch_mlir import ir

        from torchmdla.compiler.mlir import shared_context
        from torchmdla.devices.levels.legalise import legalise, names_of_operations

        level, channels_last, blocks, packs_weights = json.loads(program.target.features)
        layouts = Layouts(channels_last, tuple(blocks) if blocks else None, packs_weights)
        with shared_context(), ir.Location.unknown():
            names = sorted(names_of_operations(legalise(program, level, layouts)))
        return Artifact(json.dumps(names).encode(), Manifest(program.key, "", program.arguments, program.results, 0))

    def load(self, artifact: Artifact) -> LoadedCode:
        raise NotImplementedError("its artifacts are lists of names")


def target_of(level: str, layouts: Layouts) -> Target:
    """Return the target for which the device lists the operations of a program at ``level``."""
    fields = [level, layouts.channels_last, layouts.blocks, layouts.packs_weights]
    return Target(LevelProbe.name, features=json.dumps(fields))
