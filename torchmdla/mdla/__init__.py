"""Tools for the mdla device: number formats from data, errors and cycles by layer, compiled programs in files.

The functions use the library and the options of :func:`torchmdla.enable` for ``device="mdla"``. Without such a call
they use the emulator and the library's defaults. Keyword arguments replace single options. The functions use a copy of
the model, whose groups are the same as those that run. They do not change the caller's model.
"""

from __future__ import annotations

from torchmdla.devices.mdla.options import include_path, library_path
from torchmdla.devices.mdla.program_file import DamagedProgram
from torchmdla.mdla.comparison import compare
from torchmdla.mdla.costs import LayerReport, Report, report
from torchmdla.mdla.files import LoadedProgram, load, save
from torchmdla.mdla.formats import Calibration, LayerFormat, calibrate
from torchmdla.quantisation.comparison import Comparison, LayerError

__all__ = [
    "Calibration",
    "Comparison",
    "DamagedProgram",
    "LayerError",
    "LayerFormat",
    "LayerReport",
    "LoadedProgram",
    "Report",
    "calibrate",
    "compare",
    "include_path",
    "library_path",
    "load",
    "report",
    "save",
]
