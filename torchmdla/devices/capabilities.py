"""Capabilities of devices: small interfaces that a device inherits from beside :class:`torchmdla.devices.Device`.

    class Npu(Device, CallSelection, Arithmetic): ...

The rest of torchmdla asks ``isinstance(device, CallSelection)``. A device without a capability has the default that the
class documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Record, TunedKernel
from torchmdla.devices.device import LoadedCode, Node, NodeTypes
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

        The method is called for every call of a group after the group's first run, before it is compiled. The group is
        compiled without the calls that are refused, and reports contain the reason. The method must be fast and
        deterministic.
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


class Legalisation(ABC):
    """Form of the programs that a device gets. Default: the operators that the importer decomposes are decomposed."""

    @property
    @abstractmethod
    def composite_ops(self) -> frozenset[str]:
        """Return the operators that the importer must not decompose, by schema name with overload.

        The device has an operation of its own for each of them.
        """


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
        return LoadedCode(code.entry, code.packs, code, code.workspace, code.releases, code.fault)


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
