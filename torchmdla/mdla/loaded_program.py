"""Compiled program from a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.program_file import DamagedProgram, ProgramFile
from torchmdla.mdla.arguments import options_with
from torchmdla.mdla.costs import Report, report_of
from torchmdla.structures import parse_structure


class LoadedProgram:
    """Compiled program on the device.

    Any thread may call it. Close it with :meth:`close`, or use it in a ``with`` statement.

    Attributes:
        input_shapes: shapes of the arguments.
    """

    def __init__(self, file: ProgramFile, options: Options) -> None:
        self.input_shapes = file.inputs
        self._file = file
        self._structure = parse_structure(file.structure)
        self._network = Network(file.binary, [file.inputs[place] for place in file.used], file.outputs, options)

    def __call__(self, *inputs: Any) -> Any:
        """Return the model's results, as float32 tensors in the model's own structure.

        Args:
            inputs: CPU tensors or arrays of :attr:`input_shapes`, float32 or convertible to it.

        Raises:
            ValueError: the number of inputs or their shapes are wrong.
            DeviceError: the library reported an error.
        """
        arrays = [
            np.asarray(input_.detach() if isinstance(input_, Tensor) else input_, dtype=np.float32) for input_ in inputs
        ]
        shapes = tuple(array.shape for array in arrays)
        if shapes != self.input_shapes:
            raise ValueError(f"inputs of shapes {list(self.input_shapes)} are needed, got {list(shapes)}")
        outputs = self._network.run(*(arrays[place] for place in self._file.used))
        return pytree.tree_unflatten(
            [torch.from_numpy(outputs[place]) for place in self._file.results], self._structure
        )

    def report(self) -> Report:
        """Return the same report as :func:`report`.

        Raises:
            DeviceError: the library does not report figures.
        """
        return Report(tuple(report_of(self._network)))

    def close(self) -> None:
        """Remove the program from the device; repeated calls have no effect."""
        self._network.close()

    def __enter__(self) -> LoadedProgram:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(path: str | os.PathLike[str], *, library: str | os.PathLike[str] | None = None) -> LoadedProgram:
    """Load the program of a file that :func:`save` wrote onto the device.

    Neither a PyTorch model nor ONNX is needed.

    Args:
        path: path of the file.
        library: the library that runs the program, instead of the one in use.

    Raises:
        DamagedProgram: the file is not a program, has another version, or was altered. No part of it has run.
        DeviceError: the library is not usable, or rejects the program.
        OSError: the file cannot be read.
    """
    try:
        file = ProgramFile.from_bytes(Path(path).read_bytes())
    except DamagedProgram as error:
        raise DamagedProgram(f"{path}: {error}") from None
    used = options_with({"library": library}).library
    return LoadedProgram(file, Options.of({**file.options, "library": used}))
