"""Code that PyTorch saves: artifacts among those of ``torch.compiler.save_cache_artifacts``, and packages of groups.

PyTorch collects the artifacts that a process compiles or finds, and gives their bytes to another process. The program
that passes bytes to ``load_cache_artifacts`` trusts them: they may contain pickles of PyTorch. Compiled code among them
has to be intact and of the program under whose key it is. It is refused if the process requires signatures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.compiler import _cache

from torchmdla import _C
from torchmdla.compile_service import service
from torchmdla.compile_service.cache import parse_artifact
from torchmdla.compiler.artifact import Artifact

_TYPE = "torchmdla"

# A function of groups, each with a function that returns inputs for it. It returns the records of a package with the
# groups' code.
Packager = Callable[[Sequence[tuple[_C.Group, Callable[[], Sequence[Any]]]]], Mapping[str, bytes]]

_packager: Packager = lambda groups: {}  # noqa: E731


class GroupArtifact(_cache.CacheArtifact):
    """Artifact of one program; the key is the program's."""

    def populate_cache(self) -> None:
        """Keep the artifact in memory and on disk."""
        try:
            if _C.are_signatures_required():
                raise ValueError("signatures are required, and cache artifacts have none (docs/trust.md)")
            service.default_service().add(self.key, parse_artifact(self.content, self.key))
        except ValueError as error:
            warnings.warn(f"torchmdla: a cache artifact is not used: {error}", RuntimeWarning, stacklevel=2)

    @staticmethod
    def type() -> str:
        return _TYPE


def register() -> None:
    """Let ``torch.compiler.load_cache_artifacts`` know the artifacts of torchmdla."""
    _cache.CacheArtifactFactory.register(GroupArtifact)


def set_packager(packager: Packager) -> None:
    """Set the function that packages the groups of saved graphs. Packages belong to a layer above this one."""
    global _packager
    _packager = packager


def package_groups(groups: Sequence[tuple[_C.Group, Callable[[], Sequence[Any]]]]) -> Mapping[str, bytes]:
    """Return the records of a package with the code of groups, each with a function that returns inputs for it."""
    return _packager(groups)


def record_from_now_on() -> None:
    """Give PyTorch the artifact of each program that this process compiles or finds."""
    service.set_observer(_record)


def _record(key: str, artifact: Artifact) -> None:
    # Without Dynamo's lock, which guards PyTorch's lists: its owner may wait for this thread, which compiles.
    _cache.CacheArtifactManager.record_artifact(_TYPE, key, artifact.to_bytes())
