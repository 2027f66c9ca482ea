"""Loader of artifacts of the mdla device.

The entry is one function of the binding for all programs. The packed buffer contains the differences: a context, which
the program's pack loads with the model and the current weights. The pack is a Python function. The runtime calls it
without the GIL, and without holding a lock that Python could wait for.
"""

from __future__ import annotations

import ctypes
import math
import tempfile
from pathlib import Path

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import interrupts
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.levels.onnx import Port as ProgramPort
from torchmdla.devices.levels.onnx.weights import evaluate
from torchmdla.devices.mdla import batches, calibration, runtime_library
from torchmdla.devices.mdla.batches import Inferences
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.lowering import NEEDS_ONNX
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.runtime_library import Port, array_at
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError, DeviceError

# The type of an entry or a pack.
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

# The number of buffers before the arguments of an entry, the index of a pack's destination, and the number of buffers
# before a pack's parameters.
BEFORE_ARGUMENTS, _DESTINATION, _BEFORE_PARAMETERS = 3, 1, 2

# Statuses of a pack: a permanent failure for these weights; an exception is held.
FAILED, _INTERRUPTED = 1, -1


def load(artifact: Artifact) -> LoadedCode:
    """Return the program's entry and pack. The device's library is not used before the pack runs.

    Raises:
        CompileError: torchmdla was built without the binding.
    """
    return _shared.of(artifact)


def _load(artifact: Artifact) -> LoadedCode:
    try:
        runtime_library.runtime()
    except OSError as error:
        raise CompileError("torchmdla was built without the mdla device", diagnostic=str(error)) from error
    pack = FUNCTION(Packer(artifact))
    return LoadedCode(
        entry=runtime_library.address_of("mdla_entry"),
        packs=(ctypes.cast(pack, ctypes.c_void_p).value or 0,),
        owner=pack,
        releases=(runtime_library.address_of("mdla_release"),),
        fault=runtime_library.address_of("mdla_fault"),
    )


_shared = SharedCode(_load)


class Packer:
    """Pack of a program, as a function of the ABI: it stores the address of a context in its destination."""

    def __init__(self, artifact: Artifact) -> None:
        self.program = DeviceProgram.from_bytes(artifact.object_code)
        self.arguments = artifact.manifest.arguments
        (self._pack,) = artifact.manifest.packs

    def __call__(self, buffers: ctypes._Pointer[ctypes.c_void_p]) -> int:
        try:
            context = self.context(buffers)
        except DeviceError as error:
            return _store_fault(error.fault)
        except KeyboardInterrupt as error:
            interrupts.hold(error)
            return _store_fault("ie_compile: interrupted", _INTERRUPTED)
        except BaseException as error:
            return _store_fault(f"torchmdla: internal error: {type(error).__name__}: {error}")
        ctypes.cast(buffers[_DESTINATION], ctypes.POINTER(ctypes.c_void_p))[0] = context
        return 0

    def context(self, buffers: ctypes._Pointer[ctypes.c_void_p]) -> int:
        """Return the address of a context for the entry, from the buffers of the pack.

        Raises:
            DeviceError: the library failed, or the precision needs calibration inputs and there are not any.
        """
        program, options = self.program, Options.from_text(self.program.target)
        samples = calibration.samples_for(program, options)
        inferences = batches.compile_batches(self.model(buffers), program, options, samples)
        return load_context(options, inferences, program.inputs, program.outputs, len(self.arguments))

    def model(self, buffers: ctypes._Pointer[ctypes.c_void_p]) -> bytes:
        """Return the ONNX file that contains the weights."""
        try:
            import onnx
        except ModuleNotFoundError:  # The artifact is from a cache, so lowering did not check this.
            raise DeviceError(f"ie_compile: {NEEDS_ONNX}") from None
        from torchmdla.devices.levels.onnx.graph import add_weights

        parameters = {
            position: array_at(buffers[_BEFORE_PARAMETERS + place], self.arguments[position].shape)
            for place, position in enumerate(self._pack.arguments)
        }
        weights = {name: evaluate(recipe, parameters) for name, recipe in self.program.weights.items()}
        try:
            file: bytes = add_weights(onnx.load_from_string(self.program.model), weights).SerializeToString()
        except ValueError as error:  # The file exceeds 2 GiB.
            raise DeviceError(f"ie_compile: the model is too large for an ONNX file: {error}") from error
        return file


def _store_fault(fault: str, status: int = FAILED) -> int:
    runtime_library.runtime().mdla_set_fault(fault.encode())
    return status


def load_context(
    options: Options,
    inferences: Inferences,
    inputs: tuple[ProgramPort, ...],
    outputs: tuple[ProgramPort, ...],
    first_result: int,
) -> int:
    """Return the address of a new context on the device; free it by ``mdla_unload``.

    ``inputs`` and ``outputs`` are those of a call of the entry, which is one or more ``inferences``. ``first_result``
    is the number of arguments of the entry.

    Raises:
        DeviceError: the library is not usable, or refuses a flag or the binary.
    """

    def array(ports: tuple[ProgramPort, ...], before: int) -> ctypes.Array[Port]:
        elements = [math.prod(port.shape) // inferences.parts for port in ports]
        pairs = zip(ports, elements, strict=True)
        return (Port * len(ports))(*(Port(before + port.position, count) for port, count in pairs))

    with tempfile.TemporaryDirectory(prefix="torchmdla-mdla-") as place:
        path = Path(place) / "model.bin"
        path.write_bytes(inferences.binary)
        context: int | None = runtime_library.runtime().mdla_load(
            options.library.encode(),
            runtime_library.flag_array(options.flags()),
            str(path).encode(),
            array(inputs, BEFORE_ARGUMENTS),
            len(inputs),
            array(outputs, BEFORE_ARGUMENTS + first_result),
            len(outputs),
            inferences.parts,
            options.seconds,
        )
    if not context:
        raise DeviceError(runtime_library.fault())
    return context
