"""The C++ extension: fusion pass, run function, device calls."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

class Counts(TypedDict):
    groups: int
    specialisations: int
    dynamic: int
    not_dynamic: dict[str, int]
    fallbacks: dict[str, int]

class Executable:
    """Compiled code bound to the inputs and outputs of a group."""

    def __init__(
        self,
        *,
        entry: int,
        packs: Sequence[tuple[int, str, Sequence[int], int]],
        workspace_bytes: int,
        owner: object,
        inputs: Sequence[tuple[str, object]],
        outputs: Sequence[tuple[str, object]],
        workspace: int = 0,
    ) -> None: ...

def set_compiler(
    compile: Callable[[torch._C.Graph, dict[str, Any], list[int], str], Executable],
    compile_dynamic: Callable[
        [
            torch._C.Graph,
            dict[str, Any],
            list[int],
            str,
            tuple[int, ...],
            list[tuple[tuple[int, ...], dict[str, Any]]],
        ],
        tuple[Executable, Callable[[dict[str, Any], tuple[int, ...]], bool]],
    ],
    make_meta: Callable[[torch.dtype, tuple[int, ...], tuple[int, ...]], object],
    error_type: type[Exception],
) -> None: ...
def set_device(
    device: str, ops: Sequence[tuple[str, str, str, dict[str, object]]], dtypes: Sequence[torch.dtype]
) -> None: ...
def set_enabled(on: bool) -> None: ...
def is_enabled() -> bool: ...
def set_strict(on: bool) -> None: ...
def set_background(on: bool) -> None: ...
def set_dynamic(on: bool) -> None: ...
def set_submit(submit: Callable[[Callable[[], None]], object]) -> None: ...
def is_strict() -> bool: ...
def set_max_specialisations(most: int) -> None: ...
def statistics() -> Counts: ...
def reset_statistics() -> None: ...
def device_calls() -> dict[str, int]: ...
