"""Packages: files of programs that contain the compiled code of their groups."""

from __future__ import annotations

from torchmdla.packages.format import DamagedPackage, PackageInfo, TargetInfo
from torchmdla.packages.loading import info, load, other_extra_files
from torchmdla.packages.saving import save
from torchmdla.packages.signing import require_signatures

__all__ = [
    "DamagedPackage",
    "PackageInfo",
    "TargetInfo",
    "info",
    "load",
    "other_extra_files",
    "require_signatures",
    "save",
]
