"""What users know of a scripted module and TorchScript does not say: who may call what, with which tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.importer.types import element_type


@dataclass(frozen=True)
class Annotations:
    """Annotations of a scripted module; paths lead from it through submodules, as ``"encoder.layer.forward"``.

    They belong to the classes that the paths lead to: other modules of these classes have them too.

    Attributes:
        exports: the methods and attributes that can be used from outside; None for all.
        arguments: method → argument → sizes and dtype of that tensor.
        mutable: method → those of ``arguments`` that callers and the program see each other write to. The others have
            value semantics: callers promise that they need no writes to them. Upstream's passes ask for that.
    """

    exports: Sequence[str] | None = None
    arguments: Mapping[str, Mapping[str, TensorSpec]] = field(default_factory=dict)
    mutable: Mapping[str, Collection[str]] = field(default_factory=dict)


def bound_of(spec: TensorSpec, is_mutable: bool) -> str:
    """The type that is known of an argument, ``"!torch.vtensor<[?,3],f32>"``.

    Raises:
        CompileError: the dialect has no such dtype.
    """
    sizes = ",".join("?" if size is None else str(size) for size in spec.shape)
    return f"!torch.{'tensor' if is_mutable else 'vtensor'}<[{sizes}],{element_type(spec.dtype)}>"
