"""Versions of torchmdla and of the PyTorch releases that it supports.

They are defined only here. A test compares the range in pyproject.toml with them. ``setup.py`` runs this file, so it
imports nothing of torchmdla.
"""

from __future__ import annotations

__version__ = "0.1.0"

# Minor versions that the tests pass with.
TORCH_VERSIONS = ("2.13", "2.14", "2.15")


def minor_of(version: str) -> str:
    """Return the minor version, such as ``"2.13"`` for ``"2.13.0+cpu"``."""
    return ".".join(version.split(".")[:2])


def extension_folder(torch_version: str) -> str:
    """Return the package's folder with the extension for a version of PyTorch and its patch releases."""
    return f"torch_{minor_of(torch_version).replace('.', '_')}"
