"""Capabilities of devices: small interfaces that a device inherits from beside :class:`torchmdla.devices.Device`.

    class Npu(Device, CallSelection, Arithmetic): ...

The rest of torchmdla asks ``isinstance(device, CallSelection)``. A device without a capability has the default that the
class documents.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Record, TunedKernel
from torchmdla.devices.device import Device, LoadedCode, Node, NodeTypes
from torchmdla.devices.levels import Layouts, LegalProgram, Level, composite_ops_of
from torchmdla.errors import CompileError

# A progress callback: the kernel that is measured, the number of decisions tried, and the gain so far.
Progress = Callable[[TunedKernel, int, float], object]


class CallSelection(ABC):
    """Selection of calls by the types of their tensors and their constants.

    Default: each call of :attr:`Device.ops` with the dtypes of :attr:`Device.dtypes`.
    """

    @abstractmethod
    def refusal(self, node: Node, types: NodeTypes) -> str:
        """Return why a program must not contain this call, as ``"its depth is not a multiple of 16"``; empty if it may.

        The method is called before a group is formed where types are known by then (``torch.compile``,
        ``torch.export``), and before a group is compiled, with the types of its first run. The group is formed and
        compiled without the calls that are refused, and reports contain the reason. The method must be fast and
        deterministic. An exception is a refusal, with the exception as the reason.
        """


class Arithmetic(ABC):  # noqa: B024 (each member has a default)
    """Number formats of a device's computations. Default: the formats of the tensors."""

    @property
    def precision(self) -> str | None:
        """Return the number format of computations (:data:`torchmdla.testing.compare.FORMATS`).

        None means the format of the tensors.
        """
        return None

    @property
    def multiplies_bf16(self) -> bool:
        """Return whether products of bfloat16 take less time than those of float32.

        If true, PyTorch's settings determine which float32 products are computed in bfloat16
        (``torch.set_float32_matmul_precision("medium")``, ``torch.backends.mkldnn.matmul.fp32_precision = "bf16"``).
        """
        return False


class Asynchronous(ABC):  # noqa: B024 (its member has a default)
    """Execution beside the program: an entry may return before its results are in host memory.

    Loaded code then has ``wait`` and ``forget`` (:class:`torchmdla.devices.LoadedCode`). In TorchScript, the program
    continues after such an entry, and waits before anything but a group of the same device reads the results. Results
    that only such groups read stay in the memory of the device. Other frontends wait before a call returns.

    Default: the results are in host memory when the entry returns.
    """

    @property
    def leaves_results_pending(self) -> bool:
        """Return whether the program continues before the results are in host memory.

        If false, each call waits, which is simpler to debug.
        """
        return True


class Legalisation(ABC):  # noqa: B024 (each member has a default)
    """Form of the programs that a device gets.

    Default: the Torch dialect, in which the operators that the importer decomposes are decomposed.
    """

    @property
    def composite_ops(self) -> frozenset[str]:
        """Return the operators that the importer must not decompose, by schema name with overload.

        The device has an operation of its own for each of them. Default: those for which its :attr:`level` has one.
        """
        return composite_ops_of(self.level)

    @property
    def level(self) -> Level:
        """Return the level of the programs that the device lowers."""
        return "torch"

    @property
    def layouts(self) -> Layouts:
        """Return the layouts that the device prefers at its level."""
        return Layouts()

    def legalise(self, program: Program) -> LegalProgram:
        """Return ``program`` at the device's level with its layouts, in MLIR's current context.

        :meth:`torchmdla.devices.Device.lower` calls it::

            with torchmdla.compiler.mlir.new_context(), torch_mlir.ir.Location.unknown():
                legal = self.legalise(program)

        Raises:
            CompileError: the level does not have an operation of the program. The group is then compiled around it.
        """
        from torchmdla.devices.levels.legalise import legalise

        return legalise(program, self.level, self.layouts)


class HostProcessor(ABC):
    """Computation on the processor of PyTorch's operators.

    Compiled groups are compared with PyTorch's operators, which replace them if they are faster. Default: another
    processor.
    """

    @property
    def competes_with_eager(self) -> bool:
        """Return whether compiled groups are compared with PyTorch's operators."""
        return True

    @property
    def host_identity(self) -> str:
        """Return a text that identifies this machine, without delay; empty where :attr:`host` is empty."""
        return ""

    @property
    def host(self) -> str:
        """Return the device's description of this machine, as text.

        The description is slow to determine. It is constant for one value of :attr:`host_identity`.
        """
        return ""

    @abstractmethod
    def set_host(self, host: str) -> None:
        """Set a stored value of :attr:`host`, so that the device does not determine it again.

        It is called only for devices where :attr:`host_identity` is not empty.

        Raises:
            ValueError: the device did not write this text.
        """


class CrossCompilation(ABC):
    """Compilation for other machines, which files with compiled code need.

    Default: files have code for this machine, whose target is ``"native"``. A machine uses it if its
    :meth:`Device.target` is the same.
    """

    @abstractmethod
    def target_for(self, processor: str) -> Target:
        """Return the target of programs compiled for other machines, by the user-level name of their processor.

        ``"native"`` is this machine.

        Raises:
            ValueError: the processor does not exist.
        """

    @abstractmethod
    def features(self, target: Target) -> tuple[str, ...]:
        """Return the features that code for ``target`` needs.

        A machine uses the code if it has all of them. If the code is an image, they are processor features by LLVM's
        names. Otherwise the names are the device's own, and a machine has the features of :meth:`Device.target`.
        """

    def packing(self, target: Target) -> Target:
        """Return the target of code that packs constants on this machine, for code for ``target``.

        Its layouts are those of ``target``. It is ``target`` itself if this machine can run such code. Otherwise the
        code consists of the packs alone.
        """
        return target

    def freestanding(self, target: Target) -> Target:
        """Return ``target`` for code that calls only the C library and the device calls, not libtorch.

        Raises:
            TypeError: the device does not have such code.
        """
        raise TypeError(f"the code for {target.device!r} needs libtorch")


class LibraryLoading(ABC):
    """Loading of code by a shared library with the C interface of ``torchmdla/device.h``.

    Programs in C++ and those without PyTorch load it. Default: the code is an image, or Python loads it
    (:meth:`Device.load`).
    """

    @property
    @abstractmethod
    def library(self) -> str:
        """Return the path of the library."""

    def load_by_library(self, artifact: Artifact) -> LoadedCode:
        """Return the code that the library loads, for :meth:`Device.load`.

        Raises:
            CompileError: the library cannot be opened, or does not load the code.
        """
        from torchmdla import _C

        manifest = artifact.manifest
        try:
            code = _C.DeviceLibrary(self.library).load(
                artifact.object_code,
                manifest.entry,
                manifest.workspace,
                manifest.fault,
                [pack.symbol for pack in manifest.packs],
            )
        except _C.DeviceLibraryError as error:
            raise CompileError(str(error)) from error
        return LoadedCode(
            code.entry,
            code.packs,
            code,
            code.workspace,
            code.releases,
            code.fault,
            code.context,
            code.wait,
            code.forget,
        )


class Tuning(ABC):
    """Measured decisions in place of those of a cost model. Default: nothing is measured."""

    @property
    @abstractmethod
    def machine(self) -> str:
        """Return a text that identifies the machine for which measurements of kernels are valid.

        Records of a machine go into the programs that are compiled on it (:mod:`torchmdla.compiler.records`). Empty if
        measurements are not to be used.
        """

    def calibration(self) -> Mapping[str, Callable[[], Constant]]:
        """Return the functions that measure the constants of :attr:`machine`, by name.

        Each function runs in this process and takes some seconds at most.
        """
        return {}

    @abstractmethod
    def tune(
        self,
        program: Program,
        places: Sequence[float],
        seconds: float,
        known: Mapping[str, Record],
        skip: Sequence[str] = (),
        progress: Progress = lambda kernel, tried, gain: None,
    ) -> Iterator[TunedKernel]:
        """Measure decisions for the kernels of a program, in a separate process, the slowest kernels first.

        A later result for a kernel replaces an earlier one.

        Args:
            program: the program.
            places: the seconds that each kernel of the program's manifest takes in a call.
            seconds: the time limit of the measurements.
            known: records by kernel. Kernels with finished records are not measured again.
            skip: kernels that are not measured.
            progress: function that is called during the measurement of a kernel.

        Raises:
            CompileError: the program cannot be compiled.
        """


class CostModel(ABC):
    """Estimates of time, which determine the calls that are worth their transfers.

    Default: a call is worth a group by its kind (:class:`torchmdla.devices.OpSupport`), and transfers are free.

    The times are in seconds on this machine. Errors by a constant factor matter only in comparisons with other devices.
    """

    @abstractmethod
    def call_seconds(self, node: Node, types: NodeTypes) -> float:
        """Return the time of a call in a group, without transfers. It must be finite and not negative."""

    @property
    def launch_seconds(self) -> float:
        """Return the time that each run of a group takes besides its calls and transfers."""
        return 0.0

    @property
    def transfer_seconds(self) -> float:
        """Return the time of a transfer of an empty tensor between the device's memory and the host's."""
        return 0.0

    @property
    def transfer_bandwidth(self) -> float:
        """Return the bytes that are transferred in a second."""
        return math.inf


class Composition(ABC):
    """Device that runs parts of its programs on other devices. Default: a device runs its programs itself."""

    @property
    @abstractmethod
    def components(self) -> tuple[Device, ...]:
        """Return the devices, in order of preference."""

    @abstractmethod
    def program_options(
        self, calls: Iterable[tuple[int, Node, NodeTypes]], measured: Sequence[tuple[tuple[str, str], ...]]
    ) -> tuple[tuple[str, str], ...]:
        """Return the options of a program, which contain what ``lower`` knows of its calls.

        Args:
            calls: the calls of the group: the number of the node, which locations in the program have, and its types.
            measured: the options of a program for each of the devices (:class:`Tuning`).
        """
