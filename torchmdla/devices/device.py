"""What a device is: the table of ops it takes, how it lowers a program, and how it loads an artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import Constant, Record, TunedKernel

# Told of a kernel that is being measured, how many decisions were tried, and the gain so far.
Tell = Callable[[TunedKernel, int, float], object]

OpKind = Literal["compute", "cheap", "view", "shape", "item"]


@dataclass(frozen=True)
class OpSupport:
    """How a device takes one operator overload.

    ``kind``: ``"compute"`` is worth a group; ``"cheap"`` joins one but is not worth one alone; ``"view"`` may alias
    its first argument, so it is never a group's output; ``"shape"`` computes integers, booleans or lists from sizes and
    other such values; ``"item"`` turns a 0-d tensor into a number, so it is taken only where shape arithmetic made the
    tensor (``prim::NumToTensor``).
    ``where``: arguments that must be these constants in the graph (``{"train": False}``), by schema name.
    """

    kind: OpKind
    where: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorType:
    """A tensor as a run saw it: torch's name of the dtype (``"float32"``), and its sizes."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Node:
    """A call of an operator in a group.

    Attributes:
        op: its schema name with overload, as ``"aten::add.Tensor"``.
        values: the arguments that are no tensors, by schema name, as a run saw them.
    """

    op: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class NodeTypes:
    """The tensors of a :class:`Node`.

    Attributes:
        arguments: by schema name; a list of tensors is a tuple.
        results: in order; what is no tensor is None.
    """

    arguments: Mapping[str, TensorType | tuple[TensorType | None, ...]]
    results: tuple[TensorType | tuple[TensorType | None, ...] | None, ...]

    def tensors(self) -> Iterator[TensorType]:
        """Every tensor there is."""
        for one in (*self.arguments.values(), *self.results):
            yield from (tensor for tensor in (one if isinstance(one, tuple) else (one,)) if tensor is not None)


@dataclass(frozen=True)
class LoadedCode:
    """An artifact in this process.

    Attributes:
        entry: address of the entry.
        packs: addresses of the packs.
        owner: keeps the code there.
        workspace: address of what tells the workspace of a dynamic program; 0 where it is static.
        releases: for each pack the address of ``void release(void *buffer)``, which the runtime calls before it frees a
            buffer that the pack made, or 0; empty where none has one.
        fault: address of ``const char *fault(void)``, of a device that can fail where eager PyTorch would not: why the
            entry or a pack has just failed on the calling thread, naming the device's call; empty text where PyTorch's
            own error is due. 0 for devices that do not fail.
    """

    entry: int
    packs: tuple[int, ...]
    owner: object
    workspace: int = 0
    releases: tuple[int, ...] = ()
    fault: int = 0


class Device(ABC):
    """One device. Subclasses register by the entry point group ``torchmdla.devices`` or :func:`register`.

    ``lower`` runs in a compiler process where torch is absent, everything else in the user's process. Import torch
    and torch_mlir inside methods only.
    """

    name: str

    @property
    @abstractmethod
    def ops(self) -> Mapping[str, OpSupport]:
        """Supported operators by schema name with overload, as ``"aten::add.Tensor"``."""

    @property
    @abstractmethod
    def dtypes(self) -> frozenset[str]:
        """Tensor dtypes that a group may take or make, by torch's name."""

    def supports(self, node: Node, types: NodeTypes) -> bool:
        """Whether a program may hold this call with tensors of these types, as far as :attr:`ops` and :attr:`dtypes` do
        not say it already. Asked for every call of a group after its first run, before it is compiled; the group is
        compiled around calls that are not. Quick, and always the same for the same arguments.
        """
        return True

    @property
    def version(self) -> str:
        """Of what makes its artifacts beside Python code (a compiler that it runs): an artifact of another version is
        not used. The sources of the device's package, and the package's version, need no mention."""
        return ""

    @property
    def composite_ops(self) -> frozenset[str]:
        """Operators that programs hold as themselves, by schema name with overload, although the importer would write
        them in terms of others: what the device has an operation of its own for."""
        return frozenset()

    @property
    def multiplies_bf16(self) -> bool:
        """Whether products of bfloat16 take less time than those of float32: PyTorch's settings decide then which
        products of float32 are computed so (``torch.set_float32_matmul_precision("medium")``,
        ``torch.backends.mkldnn.matmul.fp32_precision = "bf16"``)."""
        return False

    @property
    def precision(self) -> str | None:
        """The number format that it computes in (:data:`torchmdla.testing.compare.FORMATS`), where that is not what
        tensors are in."""
        return None

    def configure(self, **options: Any) -> None:
        """Takes what :func:`torchmdla.enable` was given beside its own arguments; it holds for groups compiled from
        then on. Called at each :func:`torchmdla.enable` of the device, without options too.

        Raises:
            TypeError: the device has no such option.
            ValueError: not a value of an option.
        """
        if options:
            raise TypeError(f"device {self.name!r} has no option {min(options)!r}")

    @abstractmethod
    def target(self) -> Target:
        """The target of programs compiled for this machine."""

    def target_for(self, processor: str) -> Target:
        """The target of programs compiled for other machines, by the name that users have for these.

        Raises:
            TypeError: the device compiles for this machine alone.
            ValueError: no such processor.
        """
        raise TypeError(f"device {self.name!r} compiles for this machine alone")

    def freestanding(self, target: Target) -> Target:
        """``target`` for code that calls the C library and the device calls alone, nothing of libtorch.

        Raises:
            TypeError: the device has no such code.
        """
        raise TypeError(f"device {self.name!r} has no code that runs without libtorch")

    def features(self, target: Target) -> tuple[str, ...]:
        """What code for ``target`` needs of a processor, by LLVM's names: what packages are chosen by."""
        return ()

    def warm_up(self) -> None:  # noqa: B027 (a device may need nothing)
        """Import what :meth:`lower` needs. A compiler process calls it while it waits for its first program."""

    @abstractmethod
    def lower(self, program: Program) -> Artifact:
        """Compiles a program. A pure function.

        Raises:
            torchmdla.CompileError: the program cannot be compiled; names the op and the diagnostic. Its group is
                compiled around that op. A diagnostic that holds the location of the operation in the program tells
                which call of the op it is.
        """

    @property
    def host_identity(self) -> str:
        """What tells this machine from others, as text, at once; empty where :attr:`host` is, too."""
        return ""

    @property
    def host(self) -> str:
        """What the device knows of this machine, as text: slow to learn, and the same as long as
        :attr:`host_identity`."""
        return ""

    def set_host(self, host: str) -> None:
        """Spares the device to learn :attr:`host`; called where that is not empty.

        Raises:
            ValueError: it is not what the device wrote.
        """
        raise ValueError(f"device {self.name!r} knows nothing of machines")

    @property
    def machine(self) -> str:
        """What measurements of its kernels hold for, as text: records of one machine go into the programs that are
        compiled there (:mod:`torchmdla.compiler.records`). Empty where nothing is measured, or is to be used."""
        return ""

    def calibration(self) -> Mapping[str, Callable[[], Constant]]:
        """What measures the constants that hold for :attr:`machine`, by name, each in some seconds at most, in this
        process. Empty where the device has none."""
        return {}

    def tune(
        self,
        program: Program,
        places: Sequence[float],
        seconds: float,
        known: Mapping[str, Record],
        skip: Sequence[str] = (),
        tell: Tell = lambda kernel, tried, gain: None,
    ) -> Iterator[TunedKernel]:
        """Measures decisions for the kernels of a program, in a process of its own, those that take most time first.
        What comes later of a kernel counts.

        Args:
            places: seconds of the kernels of its manifest in a call.
            seconds: to take.
            known: records by kernel, which are not measured again if they are finished.
            skip: kernels that are left alone.
            tell: called while a kernel is measured.

        Raises:
            CompileError: the program cannot be compiled.
        """
        raise NotImplementedError(f"device {self.name!r} has nothing to tune")

    @abstractmethod
    def load(self, artifact: Artifact) -> LoadedCode:
        """Makes an artifact callable in this process."""
