"""Levels: the forms in which a device can get its programs (:class:`torchmdla.devices.Legalisation`).

Nothing here imports torch, because :meth:`torchmdla.devices.Device.lower` runs in a compiler process without it. This
module does not import MLIR either, because every start of torchmdla imports it.
"""

from torchmdla.devices.levels.kinds import LEVELS, Layouts, LegalProgram, Level, composite_ops_of

__all__ = ["LEVELS", "Layouts", "LegalProgram", "Level", "composite_ops_of"]
