"""Device that forms the mdla device's groups and passes each call to Python."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchmdla import api
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Target
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.levels.onnx import Port as ProgramPort
from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla import MdlaDevice
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.loader import BEFORE_ARGUMENTS, FAILED, FUNCTION, Packer
from torchmdla.devices.mdla.runtime_library import array_at
from torchmdla.errors import DeviceError
from torchmdla.support import forks

_PACKED = 1

_sessions = itertools.count()
# A session changes the device of groups in the whole process.
_lock = threading.Lock()


def _reset_lock() -> None:
    """Replace the lock, because a session of a thread that does not exist here never ends."""
    global _lock
    _lock = threading.Lock()


forks.reset_in_child(_reset_lock)


@dataclass(frozen=True)
class Group:
    """Program of a group, and its ONNX file with the current weights."""

    program: DeviceProgram
    model: bytes


@dataclass(frozen=True)
class Call:
    """One call of a group; the addresses identify the tensors of its inputs and outputs."""

    group: Group
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    input_addresses: tuple[int, ...]
    output_addresses: tuple[int, ...]


Run = Callable[[Group, Sequence[Array]], Sequence[Array]]


class Recorder(MdlaDevice):
    """Device that computes groups with ``run`` and keeps their calls, in order, in ``calls``."""

    name = "mdla-recording"

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._run = run
        self._groups: dict[int, Group] = {}
        self._fault: BaseException | None = None
        # The features are unique to this session, so that no other session shares its packs.
        self._features = f'{{"debug": "recording {next(_sessions)}"}}'

    def target(self) -> Target:
        # The mdla device lowers the programs, because compile processes know it.
        return Target(MdlaDevice.name, features=self._features)

    def load(self, artifact: Artifact) -> LoadedCode:
        packer = _GroupPacker(artifact, self)
        functions = FUNCTION(partial(self.record, packer)), FUNCTION(packer)
        entry, pack = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
        return LoadedCode(entry, (pack,), functions)

    def calls_of(self, scripted: Any, inputs: Sequence[Any]) -> tuple[Any, list[Call]]:
        """Return the results of ``scripted``, and its calls of groups once all of them are compiled.

        Raises:
            Exception: ``run`` raised it.
            DeviceError: as :meth:`number_of`.
        """
        for _ in range(api.WARM_UP_CALLS):
            self._call(scripted, inputs)
        self.calls.clear()
        return self._call(scripted, inputs), list(self.calls)

    def number_of(self, packer: _GroupPacker, buffers: Any) -> int:
        """Return the number that the entry knows the group by; this is the pack.

        Raises:
            DeviceError: the package ``onnx`` is missing, or the model is too large for a file.
        """
        try:
            group = Group(packer.program, packer.model(buffers))
        except DeviceError as error:
            self._fault = error  # PyTorch's interpreter replaces exceptions that leave a callback.
            raise
        number = len(self._groups) + 1
        self._groups[number] = group
        return number

    def _call(self, scripted: Any, inputs: Sequence[Any]) -> Any:
        try:
            return scripted(*inputs)
        finally:
            fault, self._fault = self._fault, None
            if fault is not None:
                raise fault

    def record(self, packer: _GroupPacker, buffers: Any) -> int:
        """Run a group and record its call; this is the entry."""
        program = packer.program
        packed = ctypes.cast(buffers[_PACKED], ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))[0]
        group = self._groups[packed[0]]
        first_result = BEFORE_ARGUMENTS + len(packer.arguments)
        inputs = _arrays(buffers, program.inputs, BEFORE_ARGUMENTS)
        outputs = _arrays(buffers, program.outputs, first_result)
        try:
            copies = tuple(array.copy() for array in inputs)
            for array, result in zip(outputs, self._run(group, copies), strict=True):
                array[...] = result
        except BaseException as error:  # Exceptions must not leave a callback.
            self._fault = error
            return FAILED
        addresses = (tuple(array.ctypes.data for array in arrays) for arrays in (inputs, outputs))
        self.calls.append(Call(group, copies, tuple(array.copy() for array in outputs), *addresses))
        return 0


class _GroupPacker(Packer):
    """Packer that stores the number of a group in place of a context."""

    def __init__(self, artifact: Artifact, recorder: Recorder) -> None:
        super().__init__(artifact)
        self._recorder = recorder

    def context(self, buffers: Any) -> int:
        return self._recorder.number_of(self, buffers)


def _arrays(buffers: Any, ports: Sequence[ProgramPort], before: int) -> list[Array]:
    return [array_at(buffers[before + port.position], port.shape) for port in ports]


@contextmanager
def recording(run: Run) -> Iterator[Recorder]:
    """Run the groups of programs that are new to PyTorch's executor by ``run`` until the block ends."""
    recorder = Recorder(run)
    with _lock, api.using(recorder):
        yield recorder
