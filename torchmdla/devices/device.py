"""What a device is: the table of ops it takes, how it lowers a program, and how it loads an artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target

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
class LoadedCode:
    """An artifact in this process: addresses of its entry and of its packs, what keeps the code there, and the address
    of what tells the workspace of a dynamic program (0: it is static)."""

    entry: int
    packs: tuple[int, ...]
    owner: object
    workspace: int = 0


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

    @abstractmethod
    def target(self) -> Target:
        """The target of programs compiled for this machine."""

    @abstractmethod
    def lower(self, program: Program) -> Artifact:
        """Compiles a program. A pure function.

        Raises:
            torchmdla.CompileError: the program cannot be compiled; names the op and the diagnostic.
        """

    @abstractmethod
    def load(self, artifact: Artifact) -> LoadedCode:
        """Makes an artifact callable in this process."""
