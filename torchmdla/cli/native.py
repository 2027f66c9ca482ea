"""Command ``python -m torchmdla info`` for a model file of the runtime without libtorch."""

from __future__ import annotations

from torchmdla.cli import failed, one_line
from torchmdla.report.rendering import size_text


def is_model(path: str) -> bool:
    """Return whether a file starts as a model file does."""
    from torchmdla.packages.native_file import begins_as_model

    try:
        return begins_as_model(path)
    except OSError:
        return False


def show(path: str) -> int:
    """Check a model file completely, and print its contents. Return the exit status."""
    from torchmdla.packages.native_file import DamagedModel, info_of

    try:
        info = info_of(path)
    except (DamagedModel, OSError) as error:
        return failed(f"{path}: {one_line(error)}")
    for kind, lines in (("input", info.inputs), ("output", info.outputs), ("code for", info.codes)):
        for line in lines:
            print(f"{kind:8}  {line}")
    print(f"weights   {len(info.weights)}, {size_text(info.weight_bytes)}; all checksums match")
    print(f"needs     {' '.join(info.features)}")
    print(f"made by   {', '.join(f'{name} {version}' for name, version in info.versions.items())}")
    return 0
