"""Times of several functions, taken in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Function = Callable[[], object]

# A round calls a quick function again until this has passed, in seconds: a clock call costs some 50 ns, and a function
# right after another one finds the caches full of the other's data.
SPAN = 0.01


def interleaved(
    functions: Mapping[str, Function],
    rounds: int,
    span: float = SPAN,
    on_round: Callable[[int], object] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of one call of each function, a value for each round.

    A round goes through all functions, so that a slow phase of the machine meets them all, in the order of
    :func:`order_of`. Each is called once untimed, then for at least ``span`` seconds; the mean of these calls is the
    round's value.

    Args:
        functions: by name; what they return is dropped.
        rounds: at least 1.
        span: in seconds; 0 for one call a round.
        on_round: called with the round's index before it begins.
        clock: in seconds; ``time.thread_time`` for what runs on the calling thread alone, beside busy processes.
    """
    calls = {name: calls_in(function, span, clock) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds):
        on_round(index)
        for name in order_of(list(functions), index):
            functions[name]()
            times[name].append(time_calls(functions[name], calls[name], clock))
    return times


def order_of(names: Sequence[str], index: int) -> list[str]:
    """The order of round ``index``: every second one goes backwards but for the last name, so that a function does not
    always follow the same other, and, of two or more, never itself: it would find the caches full of its own data."""
    *others, last = names
    return [*(reversed(others) if index % 2 else others), last]


def calls_in(function: Function, span: float, clock: Callable[[], float] = time.perf_counter) -> int:
    """How many calls fill ``span`` seconds, at least 1. The first call does not count: it may set things up."""
    function()
    return max(1, int(span / max(time_calls(function, 1, clock), 1e-7)))


def time_calls(function: Function, calls: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, the mean of ``calls``."""
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def summary(times: Sequence[float]) -> dict[str, float]:
    """The least and the median, in milliseconds."""
    return {"min": min(times) * 1e3, "median": statistics.median(times) * 1e3}
