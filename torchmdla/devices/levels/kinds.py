"""Names of levels and layouts, and programs at a level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from torchmdla.compiler.artifact import Pack

Level = Literal["torch", "linalg", "tosa", "stablehlo", "onnx", "loops"]
LEVELS: tuple[Level, ...] = get_args(Level)


def composite_ops_of(level: Level) -> frozenset[str]:
    """Return the operators for which a level has an operation, although the importer can decompose them."""
    if level != "onnx":
        return frozenset()
    from torchmdla.devices.levels.onnx import COMPOSITE_OPS

    return COMPOSITE_OPS


@dataclass(frozen=True)
class Layouts:
    """Layouts that a device prefers. Default: those of PyTorch.

    Attributes:
        channels_last: convolutions and pools have their channels last (NHWC), at the levels TOSA, which has no others,
            and linalg.
        blocks: sizes of the blocks of matrix products, for rows, columns and depth, at the level linalg. None means
            products without blocks.
        packs_weights: computations with parameters alone, such as conversions of weights, are functions ``@pack_0``, …,
            which a device runs once for each version of the weights. They are at the levels linalg, TOSA and StableHLO.
    """

    channels_last: bool = False
    blocks: tuple[int, int, int] | None = None
    packs_weights: bool = False


@dataclass(frozen=True)
class LegalProgram:
    """Program at a level.

    Attributes:
        level: the level.
        module: the program. At the levels Torch dialect, linalg, TOSA and StableHLO it is an ``ir.Module`` with
            ``@forward``. Its arguments are those of the program in order, then one for each of ``packs``. Its results
            are those of the program. At the level ONNX it is an
            :class:`~torchmdla.devices.levels.onnx.model.OnnxProgram`, and at the level loops a
            :class:`~torchmdla.devices.cpu.ir.loop_program.LoopProgram` before the passes of the cpu device.
        packs: the functions ``@pack_0``, … of the module, for the manifest. Each returns one tensor, which its buffer
            holds contiguously. A device that stores another form changes the recipe.
        parameters: the numbers of the arguments that are parameters and that ``@forward`` reads itself.
    """

    level: Level
    module: Any
    packs: tuple[Pack, ...] = ()
    parameters: tuple[int, ...] = ()
