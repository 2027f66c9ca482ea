"""Interface of a device: the table of supported operators, the compilation of a program, the loading of an artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Record, TunedKernel

# A progress callback: the kernel that is measured, the number of decisions tried, and the gain so far.
Progress = Callable[[TunedKernel, int, float], object]

OpKind = Literal["compute", "cheap", "view", "shape", "item"]


@dataclass(frozen=True)
class OpSupport:
    """Support of a device for one operator overload.

    ``kind``: ``"compute"`` is worth a group. ``"cheap"`` joins a group but is not worth one alone. ``"view"`` may alias
        its first argument, so it is never a group's output. ``"shape"`` computes integers, booleans or lists from sizes
        and other such values. ``"item"`` converts a 0-d tensor to a number. It is supported only where shape arithmetic
        produced the tensor (``prim::NumToTensor``).

    ``where``: arguments that must be these constants in the graph (``{"train": False}``), by schema name.
    """

    kind: OpKind
    where: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorType:
    """Type of a tensor in a run: torch's name of the dtype (``"float32"``), and its sizes."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Node:
    """Call of an operator in a group.

    Attributes:
        op: its schema name with overload, as ``"aten::add.Tensor"``.
        values: the arguments that are not tensors, by schema name, with the values of a run.
    """

    op: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class NodeTypes:
    """Types of the tensors of a :class:`Node`.

    Attributes:
        arguments: by schema name; a list of tensors is a tuple.
        results: in order, with None for a result that is not a tensor.
    """

    arguments: Mapping[str, TensorType | tuple[TensorType | None, ...]]
    results: tuple[TensorType | tuple[TensorType | None, ...] | None, ...]

    def tensors(self) -> Iterator[TensorType]:
        """Yield the type of every tensor."""
        for value in (*self.arguments.values(), *self.results):
            yield from (tensor for tensor in (value if isinstance(value, tuple) else (value,)) if tensor is not None)


@dataclass(frozen=True)
class LoadedCode:
    """Artifact loaded in this process.

    Attributes:
        entry: address of the entry.
        packs: addresses of the packs.
        owner: object that keeps the code loaded.
        workspace: address of the function that computes the workspace size of a dynamic program; 0 for a static
            program.
        releases: for each pack the address of ``void release(void *buffer)``, or 0. The runtime calls it before it
            frees a buffer that the pack filled. Empty if no pack has one.
        fault: address of ``const char *fault(void)``, for a device that can fail where eager PyTorch would not; 0 for
            other devices. The function returns why the entry or a pack has just failed on the calling thread, with the
            name of the device's call. An empty text means that PyTorch's own error is due.
    """

    entry: int
    packs: tuple[int, ...]
    owner: object
    workspace: int = 0
    releases: tuple[int, ...] = ()
    fault: int = 0


class Device(ABC):
    """Base class of devices.

    Subclasses register by the entry point group ``torchmdla.devices`` or :func:`register`. ``lower`` runs in a compiler
    process where torch is absent. All other methods run in the user's process. Import torch and torch_mlir inside
    methods only.
    """

    name: str

    @property
    @abstractmethod
    def ops(self) -> Mapping[str, OpSupport]:
        """Return the supported operators by schema name with overload, as ``"aten::add.Tensor"``."""

    @property
    @abstractmethod
    def dtypes(self) -> frozenset[str]:
        """Return the supported tensor dtypes of a group's inputs and outputs, by torch's name."""

    def supports(self, node: Node, types: NodeTypes) -> bool:
        """Return whether a program may contain this call with tensors of these types.

        This covers restrictions beyond :attr:`ops` and :attr:`dtypes`. It is called for every call of a group after its
        first run, before compilation. The group is compiled without the calls that are not supported. The method must
        be fast and deterministic.
        """
        return True

    @property
    def version(self) -> str:
        """Return the version of external tools that make the device's artifacts, such as a compiler that it runs.

        An artifact of another version is not used. Omit the sources of the device's package and the package's version;
        they are already included.
        """
        return ""

    @property
    def composite_ops(self) -> frozenset[str]:
        """Return the operators that the importer must not decompose, by schema name with overload.

        The device has an operation of its own for each of them.
        """
        return frozenset()

    @property
    def multiplies_bf16(self) -> bool:
        """Return whether products of bfloat16 take less time than those of float32.

        If true, PyTorch's settings determine which float32 products are computed in bfloat16
        (``torch.set_float32_matmul_precision("medium")``, ``torch.backends.mkldnn.matmul.fp32_precision = "bf16"``).
        """
        return False

    @property
    def competes_with_eager(self) -> bool:
        """Return whether compiled groups are compared with PyTorch's operators, which replace them if they are faster.

        True for a device that computes on the processor of PyTorch's operators.
        """
        return False

    @property
    def precision(self) -> str | None:
        """Return the number format of computations (:data:`torchmdla.testing.compare.FORMATS`).

        None means the format of the tensors.
        """
        return None

    def configure(self, **options: Any) -> None:
        """Set the options that :func:`torchmdla.enable` received beside its own arguments.

        They apply to groups that are compiled later. The method is called at each :func:`torchmdla.enable` of the
        device, also without options.

        Raises:
            TypeError: the device does not have such an option.
            ValueError: the value of an option is not valid.
        """
        if options:
            raise TypeError(f"device {self.name!r}: unknown option {min(options)!r}")

    @abstractmethod
    def target(self) -> Target:
        """Return the target of programs compiled for this machine."""

    def target_for(self, processor: str) -> Target:
        """Return the target of programs compiled for other machines, by the user-level name of their processor.

        Raises:
            TypeError: the device only compiles for this machine.
            ValueError: the processor does not exist.
        """
        raise TypeError(f"device {self.name!r} compiles for this machine alone")

    def freestanding(self, target: Target) -> Target:
        """Return ``target`` for code that calls only the C library and the device calls, not libtorch.

        Raises:
            TypeError: the device does not have such code.
        """
        raise TypeError(f"device {self.name!r} has no code that runs without libtorch")

    def packing(self, target: Target) -> Target:
        """Return the target of code that packs constants on this machine, for code for ``target``.

        Its layouts are those of ``target``. It is ``target`` itself if this machine can run such code. Otherwise the
        code consists of the packs alone.
        """
        return target

    def features(self, target: Target) -> tuple[str, ...]:
        """Return the processor features that code for ``target`` needs, by LLVM's names.

        Packages are selected by these features.
        """
        return ()

    def warm_up(self) -> None:  # noqa: B027 (a device may need nothing)
        """Import what :meth:`lower` needs. A compiler process calls it while it waits for its first program."""

    @abstractmethod
    def lower(self, program: Program) -> Artifact:
        """Compile a program. This is a pure function.

        Raises:
            torchmdla.CompileError: the program cannot be compiled; the error contains the op and the diagnostic. The
                group is then compiled without that op. If the diagnostic contains the location of the operation in the
                program, it identifies the call of the op.
        """

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

    def set_host(self, host: str) -> None:
        """Set a stored value of :attr:`host`, so that the device does not determine it again.

        It is called only for devices where :attr:`host` is not empty.

        Raises:
            ValueError: the device did not write this text.
        """
        raise ValueError(f"device {self.name!r} knows nothing of machines")

    @property
    def machine(self) -> str:
        """Return a text that identifies the machine for which measurements of kernels are valid.

        Records of a machine go into the programs that are compiled on it (:mod:`torchmdla.compiler.records`). Empty if
        nothing is measured, or measurements are not to be used.
        """
        return ""

    def calibration(self) -> Mapping[str, Callable[[], Constant]]:
        """Return the functions that measure the constants of :attr:`machine`, by name.

        Each function runs in this process and takes some seconds at most. Empty if the device does not have constants.
        """
        return {}

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
        raise NotImplementedError(f"device {self.name!r} has nothing to tune")

    @abstractmethod
    def load(self, artifact: Artifact) -> LoadedCode:
        """Make an artifact callable in this process."""
