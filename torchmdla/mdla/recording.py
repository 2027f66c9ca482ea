"""What the device would be given: a device that forms the mdla device's groups and hands each call to Python."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchmdla import api
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Target
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.mdla import MdlaDevice
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.device_program import Port as ProgramPort
from torchmdla.devices.mdla.loader import BEFORE_ARGUMENTS, FAILED, FUNCTION, Packer
from torchmdla.devices.mdla.runtime_library import array_at
from torchmdla.devices.mdla.weights import Array
from torchmdla.errors import DeviceError

_PACKED = 1

_sessions = itertools.count()
# Sessions change which device groups are for, in the whole process.
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """The session of a thread that is not here never ends."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True)
class Group:
    """A group's program, and its ONNX file with the weights of the moment."""

    program: DeviceProgram
    model: bytes


@dataclass(frozen=True)
class Call:
    """One call of a group: addresses tell the tensors that its inputs and outputs are."""

    group: Group
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    input_addresses: tuple[int, ...]
    output_addresses: tuple[int, ...]


Run = Callable[[Group, Sequence[Array]], Sequence[Array]]


class Recorder(MdlaDevice):
    """Computes groups by ``run`` and keeps their calls, in order, in ``calls``."""

    name = "mdla-recording"

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._run = run
        self._groups: dict[int, Group] = {}
        self._fault: BaseException | None = None
        # Of this session alone, so that no other shares its packs.
        self._features = f'{{"debug": "recording {next(_sessions)}"}}'

    def target(self) -> Target:
        # Lowered by the mdla device, which compile processes know.
        return Target(MdlaDevice.name, features=self._features)

    def load(self, artifact: Artifact) -> LoadedCode:
        packer = _GroupPacker(artifact, self)
        functions = FUNCTION(_Entry(self, packer)), FUNCTION(packer)
        entry, pack = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
        return LoadedCode(entry, (pack,), functions)

    def calls_of(self, scripted: Any, inputs: Sequence[Any]) -> tuple[Any, list[Call]]:
        """The results of ``scripted``, and the calls of groups that it makes once all of them are compiled.

        Raises:
            Exception: what ``run`` raised.
            DeviceError: as :meth:`number_of`.
        """
        for _ in range(api.WARM_UP_CALLS):
            self._called(scripted, inputs)
        self.calls.clear()
        return self._called(scripted, inputs), list(self.calls)

    def number_of(self, packer: _GroupPacker, buffers: Any) -> int:
        """The pack: what the entry knows the group by.

        Raises:
            DeviceError: the package ``onnx`` is not there, or the model is too large for a file.
        """
        try:
            group = Group(packer.program, packer.model(buffers))
        except DeviceError as error:
            self._fault = error  # Of what leaves a callback, PyTorch's interpreter makes something else.
            raise
        number = len(self._groups) + 1
        self._groups[number] = group
        return number

    def _called(self, scripted: Any, inputs: Sequence[Any]) -> Any:
        try:
            return scripted(*inputs)
        finally:
            fault, self._fault = self._fault, None
            if fault is not None:
                raise fault

    def record(self, packer: _GroupPacker, buffers: Any) -> int:
        """The entry."""
        program = packer.program
        packed = ctypes.cast(buffers[_PACKED], ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))[0]
        group = self._groups[packed[0]]
        first_result = BEFORE_ARGUMENTS + len(packer.arguments)
        inputs = _arrays(buffers, program.inputs, BEFORE_ARGUMENTS)
        outputs = _arrays(buffers, program.outputs, first_result)
        try:
            kept = tuple(array.copy() for array in inputs)
            for array, made in zip(outputs, self._run(group, kept), strict=True):
                array[...] = made
        except BaseException as error:  # Nothing may leave a callback.
            self._fault = error
            return FAILED
        addresses = (tuple(array.ctypes.data for array in arrays) for arrays in (inputs, outputs))
        self.calls.append(Call(group, kept, tuple(array.copy() for array in outputs), *addresses))
        return 0


class _GroupPacker(Packer):
    """Leaves the number of a group where the device's pack leaves a context."""

    def __init__(self, artifact: Artifact, recorder: Recorder) -> None:
        super().__init__(artifact)
        self._recorder = recorder

    def context(self, buffers: Any) -> int:
        return self._recorder.number_of(self, buffers)


class _Entry:
    def __init__(self, recorder: Recorder, packer: _GroupPacker) -> None:
        self._recorder, self._packer = recorder, packer

    def __call__(self, buffers: Any) -> int:
        return self._recorder.record(self._packer, buffers)


def _arrays(buffers: Any, ports: Sequence[ProgramPort], before: int) -> list[Array]:
    return [array_at(buffers[before + port.position], port.shape) for port in ports]


@contextmanager
def recording(run: Run) -> Iterator[Recorder]:
    """A session: programs that are new to PyTorch's executor run their groups by ``run`` until the block ends."""
    recorder = Recorder(run)
    with _lock, api.using(recorder):
        yield recorder
