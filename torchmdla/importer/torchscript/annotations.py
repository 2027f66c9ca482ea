"""Facts about a scripted module that TorchScript does not contain: its exported members and their tensor arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.importer.types import element_type


@dataclass(frozen=True)
class Annotations:
    """Annotations of a scripted module.

    Paths lead from the module through submodules, as in ``"encoder.layer.forward"``. Annotations belong to the classes
    at the ends of the paths. They also apply to other modules of these classes.

    Attributes:
        exports: the methods and attributes that can be used from outside; None for all.
        arguments: method → argument → sizes and dtype of that tensor.
        mutable: method → those of ``arguments`` whose writes are visible to both the caller and the program. The others
            have value semantics: callers promise that they need no writes to them. Upstream's passes require that.
    """

    exports: Sequence[str] | None = None
    arguments: Mapping[str, Mapping[str, TensorSpec]] = field(default_factory=dict)
    mutable: Mapping[str, Collection[str]] = field(default_factory=dict)


def bound_of(spec: TensorSpec, is_mutable: bool) -> str:
    """Return the known type of an argument, ``"!torch.vtensor<[?,3],f32>"``.

    Raises:
        CompileError: If the dialect does not have the dtype.
    """
    sizes = ",".join("?" if size is None else str(size) for size in spec.shape)
    return f"!torch.{'tensor' if is_mutable else 'vtensor'}<[{sizes}],{element_type(spec.dtype)}>"
