"""Loader of programs in files: TorchScript archives, exported programs, pickled modules."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchmdla.cli import Argument, argument
from torchmdla.report.rendering import count_text
from torchmdla.support import jit


class FileError(Exception):
    """Error: a file has unexpected contents; the message describes them."""


def program_arguments(more: str) -> list[Argument]:
    """Return the arguments for a program in a file and the inputs of a call.

    ``more`` describes further forms of the inputs in the help.
    """
    return [
        argument("file", help="written by torch.jit.save, torch.export.save or torch.save(module)"),
        argument(
            "--input",
            action="append",
            default=[],
            metavar="SIZES[:DTYPE]",
            help=f"an input of a call, as 1x3x224x224 or 1x128:int64; {more}once for each input",
        ),
        argument("--allow-pickle", action="store_true", help="read pickled modules, which runs their code"),
    ]


def load_program(path: str, allow_pickle: bool = False) -> Any:
    """Return the program in a file. The contents determine the format, not the name.

    Args:
        path: written by ``torch.jit.save``, ``torch.export.save`` or ``torch.save(module, …)``.
        allow_pickle: read the last format, and exported programs with more than data; this runs code in the file.

    Raises:
        FileError: the file does not exist, or does not contain a program.
    """
    try:
        names = _names(path)
        if any(name.endswith("/constants.pkl") for name in names):
            return jit.load(path, "cpu")
        if any(Path(name).name in _EXPORTED or "/models/" in f"/{name}" for name in names):
            return _load_exported(path, allow_pickle)
        return _unpickle(path, allow_pickle)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # Loaders raise various errors on a damaged file.
        raise FileError(f"{path} cannot be loaded: {type(error).__name__}: {str(error)[:300]}") from error


def read_mlir(path: str) -> str | None:
    """Return the text of a file that contains an MLIR module; None for other contents or a missing file."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _MLIR_PATTERN.search(text) else None


# Matches a function, or a module with any contents.
_MLIR_PATTERN = re.compile(r"\b(?:func|llvm)\.func\b|^\s*(?:builtin\.)?module\b[^=\n]*{", re.MULTILINE)


def check_inputs(program: Any, inputs: Sequence[object]) -> None:
    """Check that the inputs suffice for a call of ``program``.

    Raises:
        FileError: no inputs are given, and the file does not contain a default; or an exported program has another
            number of inputs.
    """
    examples = getattr(program, "example_inputs", None)
    if inputs and examples and len(inputs) != len(examples[0]):
        raise FileError(f"the program takes {count_text(len(examples[0]), 'input')}, got {len(inputs)}")
    if inputs or not isinstance(program, torch.nn.Module) or isinstance(program, torch.fx.GraphModule):
        return
    if isinstance(program, torch.jit.ScriptModule):
        arguments = program.forward.schema.arguments[1:]  # type: ignore[attr-defined]
        if all(argument.has_default_value() for argument in arguments):
            return
    raise FileError("--input is needed, once for each input of a call, as --input 1x3x224x224")


_EXPORTED = frozenset(("serialized_exported_program.json", "archive_format"))


def _names(path: str) -> list[str]:
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise FileError(f"{path} is not a TorchScript archive, an exported program or a pickled module")
        return zipfile.ZipFile(file).namelist()


def _load_exported(path: str, allow_pickle: bool) -> Any:
    import torch.export

    from torchmdla.cli.exported import UnsafeProgramError, load_data_only

    try:
        return torch.export.load(path) if allow_pickle else load_data_only(path)
    except UnsafeProgramError as error:
        raise FileError(
            f"{path} holds more than data: {error}. Reading it may run code: give --allow-pickle if you trust the file"
        ) from None


def _unpickle(path: str, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise FileError(
            f"{path} was written by torch.save. A pickled module runs code when it is read: give --allow-pickle if you "
            "trust the file, or save the program with torch.jit.save or torch.export.save"
        )
    loaded = torch.load(path, map_location="cpu", weights_only=False)
    if not isinstance(loaded, torch.nn.Module):
        raise FileError(f"{path} holds a {type(loaded).__name__}, not a module; a program is more than its weights")
    return loaded
