"""Lines where Python calls operators that are not part of a graph.

Such calls are between the graphs of ``torch.compile``, in functions that TorchScript leaves to Python, and on a lazy
device.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

from torchmdla.importer.sources import is_users


def lines_of(call: Callable[[], Any], ops: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the lines (``file:line``) from which this thread calls ``ops`` in one more ``call``, by op.

    ``ops`` are names such as ``aten::nonzero``. Calls under another name than the operator's, such as an infix ``+``,
    are not found.
    """
    wanted = {op.partition("::")[2]: op for op in ops}
    result: defaultdict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (op := wanted.get(getattr(called, "__name__", ""))) and (line := _line(frame)):
            result[op].add(line)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {op: tuple(sorted(lines)) for op, lines in result.items()}


def _line(frame: FrameType | None) -> str:
    """Return the line of the innermost frame of the user's code, or an empty string."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path) and not path.startswith("<"):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
