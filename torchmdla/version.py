"""The versions: torchmdla's, and those of PyTorch that it supports. Each stands here alone, but for pyproject.toml's
range, which a test compares. ``setup.py`` runs this file, so it imports nothing of torchmdla."""

from __future__ import annotations

__version__ = "0.1.0"

# Minor versions that the tests pass with.
TORCH_VERSIONS = ("2.13", "2.14")


def minor_of(version: str) -> str:
    """``"2.13"`` of ``"2.13.0+cpu"``."""
    return ".".join(version.split(".")[:2])


def extension_folder(torch_version: str) -> str:
    """The folder of the package with the extension for a version of PyTorch and its patch releases."""
    return f"torch_{minor_of(torch_version).replace('.', '_')}"
