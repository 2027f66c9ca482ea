"""Places of ops in the user's program, and the op that a compiler's diagnostic refers to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

import torch

from torchmdla import _C
from torchmdla.errors import CompileError
from torchmdla.importer.builder import blame
from torchmdla.importer.types import ImportedGraph

# Scripted code has lines of a traceback. Traced code has a stack of "file(line): function".
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): ", re.MULTILINE)
_LOCATION = re.compile(r'"(?P<op>\w+::[\w.]+)"\("graph":(?P<node>\d+):\d+\)')
_PLACE = re.compile(r"graph:(?P<node>\d+)")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Paths of PyTorch's code (not torchvision's, which is beside it), of torchmdla's code (except its models), and of code
# in a TorchScript archive that is not the original source.
_LIBRARY_PATHS = (os.path.join(os.path.dirname(torch.__file__), ""), os.path.join(_PACKAGE, ""), "code/__torch__")
_MODELS = os.path.join(_PACKAGE, "testing", "")


def is_user_file(path: str) -> bool:
    """Return whether a file belongs to neither PyTorch nor torchmdla."""
    return not path.startswith(_LIBRARY_PATHS) or path.startswith(_MODELS)


def source_of(node: torch._C.Node) -> str:
    """Return ``file:line`` of a node: the innermost place outside PyTorch's code. It is empty when unknown."""
    return source_in_ranges(_C.source_ranges(node))


@lru_cache(maxsize=64)
def source_in_ranges(source_ranges: str) -> str:
    """Return the place as :func:`source_of` does, for a result of ``_C.source_ranges``."""
    return _innermost(chain(_SCRIPTED.finditer(source_ranges), _TRACED.finditer(source_ranges)))


def source_of_trace(stack_trace: str | None) -> str:
    """Return ``file:line`` of the innermost frame of a Python stack trace outside PyTorch's code.

    The result is empty when unknown. FX nodes keep the trace of their creation in ``node.meta["stack_trace"]``.
    """
    return _innermost([*_SCRIPTED.finditer(stack_trace or "")][::-1])


def _innermost(frames: Iterable[re.Match[str]]) -> str:
    """Return the innermost of ``frames`` that is the user's, or else the first. ``frames`` go outwards."""
    first = ""
    for frame in frames:
        place = f"{frame['file']}:{frame['line']}"
        if is_user_file(place):
            return place
        first = first or place
    return first


def with_location(error: CompileError, imported: ImportedGraph) -> CompileError:
    """Return a compiler's ``error`` with the op and place of the node that it names.

    The node comes from the diagnostic, or else from the error's place. The op is a schema name (``aten::add.Tensor``).
    The place is in the user's program (``file:line``).
    """
    match = _LOCATION.search(error.diagnostic) or _PLACE.fullmatch(error.source)
    if match is None or (node := int(match["node"])) >= len(imported.sources):
        return error
    op, source = match.groupdict().get("op"), imported.sources[node]
    if op in (None, imported.ops[node]):
        return blame(error, imported.ops[node], source, node)
    return blame(error, op, source)
