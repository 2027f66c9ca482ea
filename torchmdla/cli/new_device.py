"""Command ``python -m torchmdla new-device``: write the package of a new device, which works at once.

The package is a copy of ``torchmdla/share/new_device`` under another name.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmdla import devices
from torchmdla.cli import Command, argument, report_failure
from torchmdla.version import __version__

_TEMPLATE = Path(__file__).parents[1] / "share" / "new_device"

# Files that a build or a run leaves in the template of a checkout.
_BUILT = re.compile(r"__pycache__|\.so$|^(build|dist)/")

_REQUIREMENT = re.compile(r"torchmdla>=[\d.]+,<[\d.]+")


def _run(options: argparse.Namespace) -> int:
    folder = Path(options.folder or options.name)
    try:
        _check_name(options.name)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists already: name an empty folder, or a new one")
        for path, text in package_files(options.name):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except (ValueError, OSError) as error:
        return report_failure(error)
    print(
        f"{folder}: the device {options.name}. Next:\n"
        f"  cd {folder}\n"
        '  pip install ".[test]"\n'
        "  python -m pytest\n"
        f"  python -m torchmdla.testing --device {options.name}"
    )
    return 0


def _check_name(name: str) -> None:
    """Check that a Python package, C functions and a device can have the name.

    Raises:
        ValueError: they cannot.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(
            f"{name!r} cannot be the name of a device: use lower-case letters, digits and _, as in acme_npu"
        )
    if name in devices.names() or name in ("torch", "torchmdla"):
        raise ValueError(f"the name {name!r} is taken: devices are {', '.join(devices.names())}")


def package_files(name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of the package of a device, each with its text."""
    names = _names(name)
    for path in sorted(_TEMPLATE.rglob("*")):
        place = path.relative_to(_TEMPLATE).as_posix()
        if path.is_file() and not _BUILT.search(place):
            text = _REQUIREMENT.sub(_compatible_versions(), _renamed(path.read_text(encoding="utf-8"), names))
            yield Path(_renamed(place, names)), text


def _names(name: str) -> Mapping[str, str]:
    camel_case = "".join(part.capitalize() for part in name.split("_"))
    return {"mychip": name, "MyChip": camel_case, "MYCHIP": name.upper()}


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub("|".join(names), lambda match: names[match[0]], text)


def _compatible_versions() -> str:
    """Return the requirement of a package that was tested with this version (docs/device_kits.md)."""
    major, minor, *_ = map(int, re.findall(r"\d+", __version__))
    following = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f"torchmdla>={major}.{minor},<{following}"


COMMAND = Command(
    "new-device",
    "write the package of a device of your own, which works at once",
    _run,
    [
        argument("name", metavar="NAME", help="the device's name, and that of its Python package, such as acme_npu"),
        argument("folder", nargs="?", metavar="FOLDER", help="where the package goes, a new folder; NAME"),
    ],
    epilog="""\
example:
  python -m torchmdla new-device acme_npu
  cd acme_npu
  pip install ".[test]"
  python -m pytest

The package has a device, a C library of its instructions with a build by CMake, tests against eager, a workflow for
continuous integration, and pyproject.toml with the entry point by which torchmdla finds the device.
docs/device_guide.md shows how it works and how to replace its parts by those of your hardware.

exit status:
  0  the package is written
  2  the name cannot be used, or the folder has files
""",
)
