"""Devices for tests that get their programs at a level, and compile them as the cpu device does.

Compiler processes import this module, so it does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.mlir import forward_of, located_text, new_context, run
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.cpu import CpuDevice
from torchmdla.devices.levels import Layouts, Level
from torchmdla.devices.levels.legalise import lower_tosa


class _LevelDevice(CpuDevice, devices.Legalisation):
    _level: Level
    _layouts = Layouts()

    @property
    def level(self) -> Level:
        return self._level

    @property
    def layouts(self) -> Layouts:
        return self._layouts

    def target(self) -> Target:
        return dataclasses.replace(super().target(), device=self.name)

    def lower(self, program: Program) -> Artifact:
        with new_context(), ir.Location.unknown():
            legal = self.legalise(program)
            call_packs(legal.module, [(pack.symbol, pack.arguments) for pack in legal.packs])
            run(legal.module, "inline", "canonicalize")
            if self.level == "tosa":
                lower_tosa(legal.module)
            elif self.level == "stablehlo":
                run(legal.module, "stablehlo-legalize-to-linalg")
            run(legal.module, "linalg-generalize-named-ops", "symbol-privatize{exclude=forward}", "symbol-dce")
            text = located_text(legal.module)
        artifact = super().lower(dataclasses.replace(program, mlir=text))
        return dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, program=program.key))


def call_packs(module: Any, packs: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Replace the last arguments of ``@forward`` by calls of the functions that compute them."""
    function = forward_of(module)
    block = function.regions[0].blocks[0]
    first = len(list(block.arguments)) - len(packs)
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        for number, (symbol, parameters) in enumerate(packs):
            call = ir.Operation.create(
                "func.call",
                [block.arguments[first + number].type],
                [block.arguments[parameter] for parameter in parameters],
                attributes={"callee": ir.FlatSymbolRefAttr.get(symbol)},
            )
            block.arguments[first + number].replace_all_uses_with(call.result)
    for _ in packs:
        block.erase_argument(first)
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], list(function.type.results))
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


class LinalgDevice(_LevelDevice):
    name = "of_linalg"
    _level = "linalg"
    _layouts = Layouts(packs_weights=True)


class ChannelsLastDevice(_LevelDevice):
    name = "of_channels_last"
    _level = "linalg"
    _layouts = Layouts(channels_last=True, packs_weights=True)


class TosaDevice(_LevelDevice):
    name = "of_tosa"
    _level = "tosa"
    _layouts = Layouts(channels_last=True, packs_weights=True)


class StablehloDevice(_LevelDevice):
    name = "of_stablehlo"
    _level = "stablehlo"
    _layouts = Layouts(packs_weights=True)
