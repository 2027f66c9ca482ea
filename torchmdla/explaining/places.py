"""Where Python calls operators that stand in no graph: between the graphs of ``torch.compile``, in functions that
TorchScript leaves to Python, on a lazy device."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

from torchmdla.importer.sources import is_users


def lines_of(call: Callable[[], Any], ops: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The lines (``file:line``) from which this thread calls ``ops`` (``aten::nonzero``) in one more ``call``, by op.
    What Python calls by another name than the operator's, an infix ``+`` say, is not found."""
    wanted = {op.partition("::")[2]: op for op in ops}
    found: defaultdict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (op := wanted.get(getattr(called, "__name__", ""))) and (line := _line(frame)):
            found[op].add(line)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {op: tuple(sorted(lines)) for op, lines in found.items()}


def _line(frame: FrameType | None) -> str:
    """Of the innermost frame that is the user's; empty where there is none."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path) and not path.startswith("<"):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
