"""Reader of structures of values (``torch.utils._pytree``) in files.

PyTorch's own reader imports any module that a file names, so it is not safe here.
"""

from __future__ import annotations

import json
from typing import Any

from torch.utils import _pytree as pytree

_SEQUENCES = frozenset({"builtins.tuple", "builtins.list"})
_DICT = "builtins.dict"


def parse_structure(text: str) -> pytree.TreeSpec:
    """Return the structure that ``treespec_dumps`` wrote.

    It may have tuples, lists, and dicts whose keys are strings and numbers.

    Raises:
        ValueError: the text describes something else.
    """
    try:
        _, root = json.loads(text)
        _check(root)
        return pytree.treespec_loads(text)
    except (AttributeError, KeyError, NotImplementedError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"no structure of tuples, lists and dicts: {error!r}") from error


def _check(node: dict[str, Any]) -> None:
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if kind is None:
        holds = context is None and children == []
    elif kind == _DICT:
        keys = json.loads(context)
        holds = isinstance(keys, list) and all(type(key) in (str, int, float) for key in keys)
        holds = holds and len(set(keys)) == len(keys) == len(children)
    else:
        holds = kind in _SEQUENCES and context == "null"
    if not holds or not isinstance(children, list):
        raise ValueError(f"{kind!r} with the context {context!r} and {len(children)} parts")
    for child in children:
        _check(child)
