"""Where an op stands in the user's program, and which op a compiler's diagnostic speaks of."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from torchmdla.importer.types import ImportedGraph

# Scripted code gives a traceback's line, traced code a stack of "file(line): function".
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): ", re.MULTILINE)
_LOCATION = re.compile(r'"(?P<op>\w+::[\w.]+)"\("graph":(?P<node>\d+):\d+\)')
_TORCH = os.path.dirname(torch.__file__)


def source_of(node: torch._C.Node) -> str:
    """``file:line`` of a node, the innermost that is not PyTorch's own code; empty when unknown."""
    text = str(node.sourceRange())
    return _innermost([*_SCRIPTED.finditer(text), *_TRACED.finditer(text)])


def source_of_trace(stack_trace: str | None) -> str:
    """``file:line`` of the innermost frame of a Python stack trace that is not PyTorch's own code; empty when unknown.

    FX nodes keep the trace of what made them in ``node.meta["stack_trace"]``.
    """
    return _innermost([*_SCRIPTED.finditer(stack_trace or "")][::-1])


def _innermost(frames: Sequence[re.Match[str]]) -> str:
    """The first of ``frames`` outside of PyTorch, which go from the innermost outwards."""
    places = [f"{frame['file']}:{frame['line']}" for frame in frames]
    outside = [place for place in places if not place.startswith(_TORCH)]
    return next(iter(outside or places), "")


def locate(imported: ImportedGraph, diagnostic: str) -> tuple[str, str]:
    """The op (``aten::add.Tensor``) that a diagnostic of MLIR names first, and its place (``file:line``).

    Both are empty when the diagnostic has no location of the graph.
    """
    match = _LOCATION.search(diagnostic)
    if match is None:
        return "", ""
    node = int(match["node"])
    return match["op"], imported.sources[node] if node < len(imported.sources) else ""
