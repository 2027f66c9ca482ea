"""Interface of a device: the table of supported operators, the compilation of a program, the loading of an artifact.

A device has six mandatory members. All that only some devices have is in :mod:`torchmdla.devices.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target

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
    """Type of a tensor in a run.

    Attributes:
        dtype: torch's name of the dtype (``"float32"``).
        shape: the sizes.
        strides: in elements, as ``Tensor.stride()``. Default: those of a contiguous tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.strides:
            steps = accumulate(reversed(self.shape[1:]), lambda step, size: step * max(size, 1), initial=1)
            object.__setattr__(self, "strides", tuple(steps)[::-1] if self.shape else ())

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements are in the order of the dimensions, without gaps."""
        contiguous = TensorType(self.dtype, self.shape).strides
        places = zip(self.shape, self.strides, contiguous, strict=True)
        return 0 in self.shape or all(size == 1 or stride == expected for size, stride, expected in places)


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
        context: address that the entry and the packs get in place of the workspace, so that programs can share one
            entry; 0 for none. ``owner`` keeps it valid.
        wait: address of ``int32_t wait(void *result)``, for a device whose entry may return before its results are in
            host memory; 0 for other devices. The function copies the result at this address to host memory and returns
            0, or another status if the device failed. It returns 0 at once for other addresses.
        forget: address of ``void forget(void *result)``. The runtime calls it instead of ``wait`` for a result that is
            freed before it was read. Set if ``wait`` is set.
        pack_contexts: for each pack the address that it gets in place of ``context``, or 0 for the workspace. Empty if
            all packs get ``context``.
    """

    entry: int
    packs: tuple[int, ...]
    owner: object
    workspace: int = 0
    releases: tuple[int, ...] = ()
    fault: int = 0
    context: int = 0
    wait: int = 0
    forget: int = 0
    pack_contexts: tuple[int, ...] = ()


class Device(ABC):
    """Base class of devices.

    Subclasses register by the entry point group ``torchmdla.devices`` or :func:`register`. ``lower`` runs in a compiler
    process where torch is absent. All other methods run in the user's process. Import torch and torch_mlir inside
    methods only.

    A subclass has the mandatory members ``name``, ``ops``, ``dtypes``, ``target``, ``lower`` and ``load``, and also
    inherits from the classes of :mod:`torchmdla.devices.capabilities` that describe what else it can do.
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

    @property
    def version(self) -> str:
        """Return the version of external tools that make the device's artifacts, such as a compiler that it runs.

        An artifact of another version is not used. Omit the sources of the device's package and the package's version;
        they are already included.
        """
        return ""

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

    @abstractmethod
    def load(self, artifact: Artifact) -> LoadedCode:
        """Make an artifact callable in this process."""
