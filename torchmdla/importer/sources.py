"""Where an op stands in the user's program, and which op a compiler's diagnostic speaks of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import chain

import torch

from torchmdla import _C
from torchmdla.errors import CompileError
from torchmdla.importer.builder import blame
from torchmdla.importer.types import ImportedGraph

# Scripted code gives a traceback's line, traced code a stack of "file(line): function".
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): ", re.MULTILINE)
_LOCATION = re.compile(r'"(?P<op>\w+::[\w.]+)"\("graph":(?P<node>\d+):\d+\)')
_PLACE = re.compile(r"graph:(?P<node>\d+)")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# PyTorch's own code, but not torchvision's beside it; ours, but not that of models; what a TorchScript archive has of a
# program beside the lines that it was written in.
_NOT_THE_USERS = (os.path.join(os.path.dirname(torch.__file__), ""), os.path.join(_PACKAGE, ""), "code/__torch__")
_MODELS = os.path.join(_PACKAGE, "testing", "")


def is_users(path: str) -> bool:
    """Whether a file is neither PyTorch's own nor torchmdla's."""
    return not path.startswith(_NOT_THE_USERS) or path.startswith(_MODELS)


def source_of(node: torch._C.Node) -> str:
    """``file:line`` of a node, the innermost that is not PyTorch's own code; empty when unknown."""
    return source_in(_C.source_ranges(node))


def source_in(source_ranges: str) -> str:
    """Return the same for a result of ``_C.source_ranges``."""
    return _innermost(chain(_SCRIPTED.finditer(source_ranges), _TRACED.finditer(source_ranges)))


def source_of_trace(stack_trace: str | None) -> str:
    """``file:line`` of the innermost frame of a Python stack trace that is not PyTorch's own code; empty when unknown.

    FX nodes keep the trace of what made them in ``node.meta["stack_trace"]``.
    """
    return _innermost([*_SCRIPTED.finditer(stack_trace or "")][::-1])


def _innermost(frames: Iterable[re.Match[str]]) -> str:
    """Return the first of ``frames``, which go from the innermost outwards, that is the user's; else the first."""
    first = ""
    for frame in frames:
        place = f"{frame['file']}:{frame['line']}"
        if is_users(place):
            return place
        first = first or place
    return first


def located(error: CompileError, imported: ImportedGraph) -> CompileError:
    """``error`` of a compiler as one of the node that its diagnostic, or else its place, names first: with the node's
    op (``aten::add.Tensor``) and place in the user's program (``file:line``)."""
    match = _LOCATION.search(error.diagnostic) or _PLACE.fullmatch(error.source)
    if match is None or (node := int(match["node"])) >= len(imported.sources):
        return error
    op, source = match.groupdict().get("op"), imported.sources[node]
    if op in (None, imported.ops[node]):
        return blame(error, imported.ops[node], source, node)
    return blame(error, op, source)
