"""Which calls of a group its device does not compile, and what is known of that before a compile is tried.

What failed once is left out of every group of the process from then on, where it would fail again: with the same
device and options, for tensors of the same dtypes and ranks and the same other arguments
(:attr:`torchmdla.errors.CompileError.scope`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

from torchmdla.capture.subgraph import Call, Subgraph
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.compiler.program import Target
from torchmdla.devices import Device
from torchmdla.devices.device import TensorType
from torchmdla.errors import CompileError
from torchmdla.importer import Record
from torchmdla.importer.builder import blame

# How many different calls of a group are compiled alone, and how many may fail before one does not.
_MOST_TRIED, _MOST_FAILED = 64, 3

# The device's options are in its target.
_Op = tuple[Target, str]


class _Memory:
    """Failures of one device."""

    def __init__(self) -> None:
        self._errors: dict[_Op, dict[Hashable, CompileError]] = {}

    def add(self, target: Target, call: Call, error: CompileError) -> None:
        if error.scope != "place":
            by_types = self._errors.setdefault((target, call.node.op), {})
            # A copy: an exception that was raised has a traceback, which keeps its callers' variables alive.
            by_types[_described(call, with_sizes=error.scope == "sizes")] = CompileError(**error.fields())

    def find(self, target: Target, call: Call) -> CompileError | None:
        by_types = self._errors.get((target, call.node.op))
        if by_types is None:
            return None
        return by_types.get(_described(call, with_sizes=False)) or by_types.get(_described(call, with_sizes=True))


_memories: WeakKeyDictionary[Device, _Memory] = WeakKeyDictionary()
_left_out: Counter[Ungrouped] = Counter()
_failed: Counter[Ungrouped] = Counter()
_lock = threading.RLock()


def check(subgraph: Subgraph, record: Record, device: Device) -> None:
    """Looks for calls that are known not to compile.

    Raises:
        CompileError: there are some; its ``parts`` are one for each.
    """
    if found := _known(subgraph, record, device):
        raise _refusal(found)


def remembered(error: CompileError, subgraph: Subgraph, record: Record, device: Device) -> CompileError:
    """``error`` of compiling ``subgraph``, remembered, as that of all calls to leave out; as it is where no call is to
    blame."""
    to_blame = _to_blame(error, list(subgraph.calls(record)))
    if error.parts or not to_blame:
        return error
    if len({_described(call, with_sizes=True) for call in to_blame}) == 1:
        _memory(device).add(device.target(), to_blame[0], error)
    blamed = {
        call.number: blame(error, call.node.op, subgraph.source(call.number) or error.source, call.number)
        for call in to_blame
    }
    return _refusal({**_known(subgraph, record, device), **blamed})


def _to_blame(error: CompileError, calls: Sequence[Call]) -> list[Call]:
    """The call that ``error`` speaks of, or all of its op where it says no more."""
    if error.nodes:
        return [call for call in calls if call.number in error.nodes]
    return [call for call in calls if call.node.op == error.op]


def blamed_alone(
    error: CompileError, subgraph: Subgraph, record: Record, compile_alone: Callable[[Subgraph, Record], object]
) -> CompileError | None:
    """``error``, which names no op (the compiler may have crashed), as that of the first call that fails in the same
    way alone. None where that cannot be told: no call does, or every one.

    ``compile_alone`` compiles a subgraph of one call.
    """
    failure: CompileError | None = None
    compiled = 0
    tried: set[Hashable] = set()
    for call in subgraph.calls(record):
        key = call.node.op, _described(call, with_sizes=True)
        if key in tried or not any(isinstance(result, TensorType) for result in call.types.results):
            continue
        tried.add(key)
        try:
            compile_alone(*subgraph.alone(call.number, record))
            compiled += 1
        except CompileError as alone:
            if failure is None and alone.reason == error.reason:
                failure = CompileError(**{**alone.fields(), "op": call.node.op, "nodes": (call.number,)})
        if (failure and compiled) or len(tried) - compiled == _MOST_FAILED or len(tried) == _MOST_TRIED:
            break
    return failure if compiled else None


def count(error: CompileError, divided: bool) -> None:
    """Counts the calls that a group is compiled without, or that it is not compiled for."""
    with _lock:
        (_left_out if divided else _failed).update(map(described, error.parts or [error]))


def counts() -> Counter[Ungrouped]:
    """What was left out of groups, and how often."""
    with _lock:
        return Counter(_left_out)


def failures() -> Counter[Ungrouped]:
    """For what groups were not compiled, and how often."""
    with _lock:
        return Counter(_failed)


def forget() -> None:
    """What failed before is tried again."""
    with _lock:
        _memories.clear()


def reset_counts() -> None:
    with _lock:
        _left_out.clear()
        _failed.clear()


def call_until_whole(call: Callable[[], object], least: int = 1) -> None:
    """Calls ``least`` times, and once more after each call that divided a group: the next one compiles its parts."""
    calls, before = 0, -1
    while calls < least or sum(counts().values()) != before:
        before = sum(counts().values())
        call()
        calls += 1


def described(error: CompileError) -> Ungrouped:
    """An op, why it fails, and where it stands."""
    return Ungrouped(error.op, error.reason, error.source)


def _refusal(by_node: Mapping[int, CompileError]) -> CompileError:
    parts = list(by_node.values())
    return CompileError(**{**parts[0].fields(), "nodes": sorted(by_node)}, parts=parts)


def _memory(device: Device) -> _Memory:
    with _lock:
        return _memories.setdefault(device, _Memory())


def _known(subgraph: Subgraph, record: Record, device: Device) -> dict[int, CompileError]:
    memory, target, dtypes = _memory(device), device.target(), device.dtypes
    found: dict[int, CompileError] = {}
    for call in subgraph.calls(record):
        if error := memory.find(target, call) or _unsupported(call, device, dtypes):
            found[call.number] = blame(error, call.node.op, subgraph.source(call.number), call.number)
    return found


def _unsupported(call: Call, device: Device, dtypes: Collection[str]) -> CompileError | None:
    """What the device says of a call without trying."""
    for tensor in call.types.tensors():
        if tensor.dtype not in dtypes:
            return CompileError(f"dtype torch.{tensor.dtype} is not taken by device {device.name!r}")
    if not device.supports(call.node, call.types):
        return CompileError(f"device {device.name!r} does not take it with these types")
    return None


def _described(call: Call, with_sizes: bool) -> Hashable:
    """Equal for calls that compile alike."""

    def one(value: object) -> Hashable:
        if isinstance(value, TensorType):
            return value.dtype, value.shape if with_sizes else value.rank
        if isinstance(value, list | tuple):
            return tuple(map(one, value))
        # A float may be known at run time only.
        return type(value), None if isinstance(value, float) else str(value)

    arguments = {**call.types.arguments, **call.node.values}
    return tuple(sorted((name, one(value)) for name, value in arguments.items())), with_sizes
