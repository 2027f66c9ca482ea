"""Compiled programs of models in files: saved, and loaded onto the device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.program_file import DamagedProgram, ProgramFile
from torchmdla.mdla.calls import copy_of, options_with
from torchmdla.mdla.costs import Report, report_of
from torchmdla.mdla.measuring import Networks
from torchmdla.mdla.recording import Call, recording
from torchmdla.quantisation.data import arguments_of
from torchmdla.structures import parse_structure
from torchmdla.support.files import atomic_write

# Nodes that the graph of a saved program may have beside its group; they do not compute.
_NO_WORK = frozenset({"prim::Constant", "prim::GetAttr", "prim::TupleConstruct", "prim::ListConstruct"})


def save(model: Any, inputs: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Compile a model for the device and save the program with its weights in a file.

    Args:
        model: as for :func:`calibrate`; the whole model must be one group, for inputs of these sizes.
        inputs: a float32 tensor, or a tuple or list of them.
        path: path of the file; an existing file is replaced at the end.
        **options: options of the device that replace those in use. The file has them, except the library.

    Raises:
        ValueError: part of the model is computed outside of the device, or an input or result is not a suitable tensor.
        TypeError: ``model`` is not a model, or an option does not exist.
        DeviceError: the library fails.
        OSError: the file cannot be written.
    """
    tensors = _dense_copies(arguments_of(inputs))
    chosen = options_with(options)
    with Networks(chosen) as networks, recording(networks.run) as recorder, torch.no_grad():
        scripted = copy_of(model, tensors)
        results, calls = recorder.calls_of(scripted, tensors)
        call = _only_call(scripted, tensors, calls)
        file = _file_of(call, tensors, results, networks.binary(call.group), chosen)
    with atomic_write(Path(path)) as temporary:
        temporary.write_bytes(file.to_bytes())


def _dense_copies(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return dense copies, so that each tensor has its own address."""
    if not inputs or not all(isinstance(leaf, Tensor) and leaf.dtype == torch.float32 for leaf in inputs):
        raise ValueError("a program in a file takes float32 tensors and nothing else")
    return tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in inputs)


def _only_call(scripted: Any, inputs: Sequence[Any], calls: Sequence[Call]) -> Call:
    nodes = [node.kind() for node in scripted.graph_for(*inputs).nodes()]
    outside = sorted({kind for kind in nodes if kind not in _NO_WORK and "CompilationGroup" not in kind})
    if outside or len(calls) != 1:
        what = f"outside of the device: {', '.join(outside)}" if outside else f"{len(calls)} groups on the device"
        raise ValueError(f"the model is not one group: there is {what}")
    return calls[0]


def _file_of(call: Call, inputs: Sequence[Tensor], results: Any, binary: bytes, options: Options) -> ProgramFile:
    leaves, structure = pytree.tree_flatten(results)
    addresses = {leaf.data_ptr() if isinstance(leaf, Tensor) else None for leaf in leaves}
    if not addresses <= set(call.output_addresses) or not all(leaf.dim() and leaf.is_contiguous() for leaf in leaves):
        raise ValueError("a result of the model is not a dense tensor with dimensions that the device computes")
    pointers = [tensor.data_ptr() for tensor in inputs]
    if not set(call.input_addresses) <= set(pointers):
        raise ValueError("the device gets something else than the model's inputs")
    return ProgramFile(
        binary,
        tuple(tuple(tensor.shape) for tensor in inputs),
        tuple(pointers.index(address) for address in call.input_addresses),
        tuple(array.shape for array in call.outputs),
        tuple(call.output_addresses.index(leaf.data_ptr()) for leaf in leaves),
        pytree.treespec_dumps(structure),
        {name: value for name, value in asdict(options).items() if value is not None and name != "library"},
    )


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
