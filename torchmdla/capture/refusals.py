"""Calls of a group that its device cannot compile, with a memory of earlier failures.

A call that failed once is left out of every group of the process where it would fail again. That holds for the same
device and options, tensors of the same dtypes and ranks, and the same other arguments
(:attr:`torchmdla.errors.CompileError.scope`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from weakref import WeakKeyDictionary

from torchmdla import _C
from torchmdla.capture.subgraph import Call, Subgraph
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.compiler.program import Target
from torchmdla.devices import CallSelection, Device
from torchmdla.devices.device import TensorType
from torchmdla.errors import CompileError
from torchmdla.importer import Record
from torchmdla.importer.builder import blame

# Most different calls of a group that are compiled alone, and most failures before one succeeds.
_MOST_TRIED, _MOST_FAILED = 64, 3

# The target includes the device's options.
_Op = tuple[Target, str]


class _Memory:
    """Failures of one device."""

    def __init__(self) -> None:
        self._errors: dict[_Op, dict[Hashable, CompileError]] = {}

    def add(self, target: Target, call: Call, error: CompileError) -> None:
        if error.scope != "place":
            by_types = self._errors.setdefault((target, call.node.op), {})
            # A copy: an exception that was raised has a traceback, which keeps its callers' variables alive.
            by_types[_call_key(call, with_sizes=error.scope == "sizes")] = CompileError(**error.fields())

    def find(self, target: Target, call: Call) -> CompileError | None:
        by_types = self._errors.get((target, call.node.op))
        if by_types is None:
            return None
        return by_types.get(_call_key(call, with_sizes=False)) or by_types.get(_call_key(call, with_sizes=True))


_memories: WeakKeyDictionary[Device, _Memory] = WeakKeyDictionary()
_left_out: Counter[Ungrouped] = Counter()
_failed: Counter[Ungrouped] = Counter()
_lock = threading.RLock()


def check(subgraph: Subgraph, record: Record, device: Device) -> None:
    """Check for calls that are known not to compile.

    Raises:
        CompileError: there are such calls; ``parts`` has one error for each.
    """
    if errors := _find_known_failures(subgraph, record, device):
        raise _refusal(errors)


def remember_failure(error: CompileError, subgraph: Subgraph, record: Record, device: Device) -> CompileError:
    """Remember ``error`` of compiling ``subgraph``, and return it as an error of all calls to leave out.

    If no call is at fault, ``error`` is returned unchanged.
    """
    to_blame = _failing_calls(error, list(subgraph.calls(record)))
    if error.parts or not to_blame:
        return error
    if len({_call_key(call, with_sizes=True) for call in to_blame}) == 1:
        _memory(device).add(device.target(), to_blame[0], error)
    blamed = {
        call.number: blame(error, call.node.op, subgraph.source(call.number) or error.source, call.number)
        for call in to_blame
    }
    return _refusal({**_find_known_failures(subgraph, record, device), **blamed})


def _failing_calls(error: CompileError, calls: Sequence[Call]) -> list[Call]:
    """Return the call that ``error`` refers to, or all calls of its op if it is less specific."""
    if error.nodes:
        return [call for call in calls if call.number in error.nodes]
    return [call for call in calls if call.node.op == error.op]


def find_failing_call(
    error: CompileError, subgraph: Subgraph, record: Record, compile_alone: Callable[[Subgraph, Record], object]
) -> CompileError | None:
    """Return ``error``, which names no op, as an error of the first call that fails alone for the same reason.

    The compiler may have crashed. The function returns None if the call cannot be determined: no call
    fails, or every one does. ``compile_alone`` compiles a subgraph of one call.
    """
    failure: CompileError | None = None
    compiled = 0
    tried: set[Hashable] = set()
    for call in subgraph.calls(record):
        key = call.node.op, _call_key(call, with_sizes=True)
        if key in tried or not any(isinstance(result, TensorType) for result in call.types.results):
            continue
        tried.add(key)
        try:
            compile_alone(*subgraph.extract_call(call.number, record))
            compiled += 1
        except CompileError as alone:
            if failure is None and alone.reason == error.reason:
                failure = CompileError(**{**alone.fields(), "op": call.node.op, "nodes": (call.number,)})
        if (failure and compiled) or len(tried) - compiled == _MOST_FAILED or len(tried) == _MOST_TRIED:
            break
    return failure if compiled else None


def count(error: CompileError, divided: bool) -> None:
    """Count the calls that a group is compiled without, or that keep it from being compiled."""
    with _lock:
        (_left_out if divided else _failed).update(map(as_ungrouped, error.parts or [error]))


def counts() -> Counter[Ungrouped]:
    """Return the operators that were left out of groups, with counts."""
    with _lock:
        return Counter(_left_out)


def failures() -> Counter[Ungrouped]:
    """Return the reasons why groups were not compiled, with counts."""
    with _lock:
        return Counter(_failed)


def forget() -> None:
    """Forget earlier failures, so that the calls are tried again."""
    with _lock:
        _memories.clear()


def reset_counts() -> None:
    with _lock:
        _left_out.clear()
        _failed.clear()


def call_until_compiled(call: Callable[[], object], least: int = 1) -> None:
    """Call ``least`` times, and once more after each call that divided a group or compiled one that can be compared.

    The parts of a division are compiled in the next call, and compared with PyTorch's operators in the one after.
    """

    def progress() -> int:
        statistics = _C.statistics()
        done = statistics["replaced"] + statistics["specialisations"] if _C.is_check_speed_on() else 0
        return sum(counts().values()) + done

    calls, before = 0, -1
    while calls < least or progress() != before:
        before = progress()
        call()
        calls += 1


def as_ungrouped(error: CompileError) -> Ungrouped:
    """Return the op of ``error``, the reason of its failure, and its location."""
    return Ungrouped(error.op, error.reason, error.source)


def _refusal(by_node: Mapping[int, CompileError]) -> CompileError:
    parts = list(by_node.values())
    return CompileError(**{**parts[0].fields(), "nodes": sorted(by_node)}, parts=parts)


def _memory(device: Device) -> _Memory:
    with _lock:
        return _memories.setdefault(device, _Memory())


def _find_known_failures(subgraph: Subgraph, record: Record, device: Device) -> dict[int, CompileError]:
    memory, target, dtypes = _memory(device), device.target(), device.dtypes
    errors: dict[int, CompileError] = {}
    for call in subgraph.calls(record):
        if error := memory.find(target, call) or _unsupported(call, device, dtypes):
            errors[call.number] = blame(error, call.node.op, subgraph.source(call.number), call.number)
    return errors


def _unsupported(call: Call, device: Device, dtypes: Collection[str]) -> CompileError | None:
    """Return the error that the device reports for a call without compiling it, or None."""
    for tensor in call.types.tensors():
        if tensor.dtype not in dtypes:
            return CompileError(f"dtype torch.{tensor.dtype} is not taken by device {device.name!r}")
    reason = reason_of_device(call, device)
    return CompileError(reason) if reason else None


def reason_of_device(call: Call, device: Device) -> str:
    """Return why ``device`` selects to leave out a call; empty if it takes the call."""
    if not isinstance(device, CallSelection):
        return ""
    try:
        reason = device.refusal(call.node, call.types)
    except Exception as error:  # A fault of the device costs this call, not the groups around it.
        reason = f"its refusal() raised {type(error).__name__}: {error}"
    return f"device {device.name!r} does not take it: {reason}" if reason else ""


def _call_key(call: Call, with_sizes: bool) -> Hashable:
    """Return a key that is equal for calls that compile alike."""

    def key(value: object) -> Hashable:
        if isinstance(value, TensorType):
            return value.dtype, value.shape if with_sizes else value.rank
        if isinstance(value, list | tuple):
            return tuple(map(key, value))
        # A float may be known only at run time.
        return type(value), None if isinstance(value, float) else str(value)

    arguments = {**call.types.arguments, **call.node.values}
    return tuple(sorted((name, key(value)) for name, value in arguments.items())), with_sizes
