"""Selection of the compiled extension that fits the installed PyTorch.

PyTorch's C++ ABI is stable within the patch releases of a minor version. An extension that was built against another
minor version does not load, or fails when it passes PyTorch's objects to Python. Therefore each extension is stored in
a folder named after its version (``torch_2_13``). A copy of torchmdla may contain several.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from importlib import machinery
from pathlib import Path

from torchmdla.version import TORCH_VERSIONS, extension_folder, minor_of


class MissingTorchError(ImportError):
    """Error: PyTorch is not installed, or does not load. Parts of torchmdla that do not need it work."""


def add_to(path: MutableSequence[str]) -> None:
    """Make the extension a submodule, ``_C``, of the package that has this ``__path__``.

    Raises:
        MissingTorchError: PyTorch is not installed, or does not load.
        ImportError: no extension is built, or no extension fits PyTorch's version.
    """
    package = Path(path[0])
    files = [f"_C{suffix}" for suffix in machinery.EXTENSION_SUFFIXES]
    built = [
        version
        for version in TORCH_VERSIONS
        if any((package / extension_folder(version) / file).exists() for file in files)
    ]
    if not built:
        raise ImportError(
            f"this copy of torchmdla ({package}) has no compiled extension. In a checkout, build it in place (`make "
            "build`, or `pip install --no-build-isolation --editable .`), or run Python in another folder to use the "
            "copy that is installed"
        )
    install = f"pip install 'torch=={built[-1]}.*'"
    try:
        import torch
    except ModuleNotFoundError as error:
        reason = "is not installed" if error.name == "torch" else f"does not load ({error})"
        raise MissingTorchError(f"torchmdla needs PyTorch, which {reason}: {install}") from error
    except (ImportError, OSError) as error:
        raise MissingTorchError(f"torchmdla needs PyTorch, which does not load ({error}): {install}") from error
    if minor_of(torch.__version__) not in built:
        raise ImportError(
            f"torch {torch.__version__} is installed, and this copy of torchmdla ({package}) is for torch "
            f"{_join_versions(built)}: {install}{_build_hint(torch.__version__)}"
        )
    path.insert(0, str(package / extension_folder(torch.__version__)))


def _build_hint(version: str) -> str:
    if minor_of(version) in TORCH_VERSIONS:
        return ", or build torchmdla for this one: `pip install --no-build-isolation .` in a checkout"
    return f". Built from source, torchmdla supports torch {_join_versions(TORCH_VERSIONS)}"


def _join_versions(versions: list[str] | tuple[str, ...]) -> str:
    *others, last = versions
    return f"{', '.join(others)} and {last}" if others else last
